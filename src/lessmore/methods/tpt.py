"""TPT: for every image alone, the prompt moves until the confident ones among its views agree.

    loss(v) = Ent( mean over the chosen views of softmax(z(view, v)) ),   one AdamW step on the context v

The step starts from the same words for every image, so nothing is carried over.
"""

from __future__ import annotations

from dataclasses import dataclass

import PIL.Image
import torch
from torch import Tensor

from lessmore.core.costs import Accounting
from lessmore.core.encoder import encode
from lessmore.errors import ConfigError
from lessmore.methods.context import WORDS, embed_classes, frame
from lessmore.methods.registry import Episodic, Facts, Outcome, Setup, register_method
from lessmore.methods.tent import entropy
from lessmore.methods.views import ViewOptions, make_views, of_plain
from lessmore.methods.zeroshot import zero_shot_logits


@dataclass(frozen=True)
class TPTOptions(ViewOptions):
    """TPT's own settings, as published."""

    augmix: bool = True
    """Crops are mixed with distorted ones (AugMix); published runs do so on all sets but ImageNet and its kin."""
    selection: float = 0.1
    """Share of the views that is used, those with the least entropy; one at least."""
    lr: float = 5e-3
    steps: int = 1
    words: str = WORDS
    """What the context begins as."""

    def __post_init__(self) -> None:
        """Validate once; every later use may trust the values."""
        super().__post_init__()
        if self.steps < 1:
            raise ConfigError(f"steps is a number from 1, not {self.steps}")
        if not 0 < self.selection <= 1 or not self.lr > 0:
            raise ConfigError(f"selection must lie in (0, 1] and lr be positive, not {self.selection} and {self.lr}")


def confident(logits: Tensor, share: float) -> Tensor:
    """Which of the views, logits [V, C], have the least entropy: numbers [max(1, ⌊share·V⌋)], the surest first."""
    return entropy(logits).sort(stable=True).indices[: max(1, int(share * len(logits)))]


def marginal_entropy(logits: Tensor) -> Tensor:
    """Entropy of the mean answer of several views, logits [V, C] → []."""
    return entropy(logits.log_softmax(dim=-1).logsumexp(dim=0))


@register_method("tpt", TPTOptions)
class TPT(Episodic):
    """Holds the frame of the class prompts; every image starts from its words."""

    def __init__(self, setup: Setup, options: TPTOptions) -> None:
        self.setup = setup
        self.options = options
        self.frame = frame(setup.model, setup.classes, options.words)
        self.facts = Facts(
            training_free=False,
            kind="episodic",
            views=options.views,
            needs_gradients=True,
            learnable_parameters=self.frame.start.numel(),
        )

    def views(self, image: PIL.Image.Image | Tensor, seed: int) -> Tensor:
        """The plain image and random crops of it, [V, 3, S, S]."""
        return make_views(self.setup.model, image, seed, self.options, mixed=self.options.augmix)

    def predict(self, pixels: Tensor) -> Outcome:
        """Tune the prompt on the views [V, 3, S, S] of one image, and answer the first of them with it."""
        encoded = encode(self.setup.vision, pixels, self.setup.preset.condensation)
        with torch.enable_grad():
            context = self.tuned(encoded.feature)
        scores = self.logits(encoded.feature[:1], embed_classes(self.frame, context))[0].softmax(dim=-1)
        logits = zero_shot_logits(encoded, self.setup.text, self.setup.logit_scale)[0]
        return Outcome(logits, scores, logits.softmax(dim=-1), None, of_plain(encoded.steps))

    def tuned(self, features: Tensor) -> Tensor:
        """The context [n, D] after its steps on views' features [V, E]; the views are chosen once, before the first."""
        context = self.frame.start.clone().requires_grad_()
        optimiser = torch.optim.AdamW([context], self.options.lr)
        chosen = None
        for _ in range(self.options.steps):
            text = embed_classes(self.frame, context)
            if chosen is None:
                chosen = features[self.choose(self.logits(features, text.detach()))]
            (context.grad,) = torch.autograd.grad(self.loss(self.logits(chosen, text), text), context)
            optimiser.step()
        return context.detach()

    def choose(self, logits: Tensor) -> Tensor:
        """Numbers of the views to use, given all their logits [V, C]."""
        return confident(logits, self.options.selection)

    def loss(self, logits: Tensor, text: Tensor) -> Tensor:
        """What is minimised, from the chosen views' logits [v, C] and the class embeddings [C, E]."""
        return marginal_entropy(logits)

    def logits(self, features: Tensor, text: Tensor) -> Tensor:
        """Features [V, E] against class embeddings [C, E] → [V, C]."""
        return self.setup.logit_scale * (features @ text.T)

    def macs(self, accounting: Accounting = "matmul") -> int:
        """All views, every step's class prompts with their gradient, and the prompts once more for the answer."""
        images, prompts = self.setup.image_macs(accounting), self.frame.macs(self.setup, accounting)
        steps = self.options.steps * self.frame.gradient_macs(self.setup) if accounting == "matmul" else 0
        return self.facts.views * images + prompts + steps
