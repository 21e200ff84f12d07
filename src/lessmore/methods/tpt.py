"""TPT: for each image alone, the prompt is tuned until the image's confident views agree.

    loss(v) = Ent( mean over the chosen views of softmax(z(view, v)) ),   one AdamW step on the context v

Every image starts from the same words, so nothing is carried over.
"""

from __future__ import annotations

from dataclasses import dataclass

import PIL.Image
import torch
from torch import Tensor

from lessmore.core.costs import Accounting
from lessmore.core.encoder import encode
from lessmore.errors import ConfigError
from lessmore.methods.context import WORDS, embed_classes, frame_prompts
from lessmore.methods.registry import Episodic, Facts, Outcome, Setup, register_method
from lessmore.methods.tent import entropy
from lessmore.methods.views import ViewOptions, first_view_steps, make_views
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
    """What the context starts as."""

    def __post_init__(self) -> None:
        """Validate once; every later use may trust the values."""
        super().__post_init__()
        if self.steps < 1:
            raise ConfigError(f"steps is a number from 1, not {self.steps}")
        if not 0 < self.selection <= 1 or not self.lr > 0:
            raise ConfigError(f"selection must lie in (0, 1] and lr be positive, not {self.selection} and {self.lr}")


def confident_views(logits: Tensor, share: float) -> Tensor:
    """Numbers of the views with the least entropy, the most confident first.

    Args:
        logits: Of all views, `[V, C]`.
        share: Fraction of the views to keep, rounded down; at least one is kept.
    """
    return entropy(logits).sort(stable=True).indices[: max(1, int(share * len(logits)))]


def marginal_entropy(logits: Tensor) -> Tensor:
    """Entropy of the mean answer of several views, logits `[V, C]` → `[]`."""
    return entropy(logits.log_softmax(dim=-1).logsumexp(dim=0))


@register_method("tpt", TPTOptions)
class TPT(Episodic):
    """Holds the class prompts; every image starts from their words."""

    def __init__(self, setup: Setup, options: TPTOptions) -> None:
        self.setup = setup
        self.options = options
        self.frame = frame_prompts(setup.model, setup.classes, options.words)
        self.facts = Facts(
            training_free=False,
            kind="episodic",
            views=options.views,
            needs_gradients=True,
            learnable_parameters=self.frame.start.numel(),
        )

    def views(self, image: PIL.Image.Image | Tensor, seed: int) -> Tensor:
        """The plain image and random crops of it, `[V, 3, S, S]`.

        Args:
            image: RGB, or preprocessed pixels `[3, S, S]`.
            seed: Seeds the crops, together with the image.
        """
        return make_views(self.setup.model, image, seed, self.options, mixed=self.options.augmix)

    def predict(self, pixels: Tensor) -> Outcome:
        """Tune the prompt on the views `[V, 3, S, S]` of one image, and answer the first of them with it."""
        encoded = encode(self.setup.vision, pixels, self.setup.preset.condensation)
        with torch.enable_grad():
            context = self.tuned(encoded.feature)
        scores = self.logits(encoded.feature[:1], embed_classes(self.frame, context))[0].softmax(dim=-1)
        logits = zero_shot_logits(encoded, self.setup.text, self.setup.logit_scale)[0]
        return Outcome(logits, scores, logits.softmax(dim=-1), None, first_view_steps(encoded.steps))

    def tuned(self, features: Tensor) -> Tensor:
        """The context `[n, D]` after its steps on the views' features `[V, E]`; views are chosen once, at the start."""
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
        """Numbers of the views to use, from the logits `[V, C]` of all of them."""
        return confident_views(logits, self.options.selection)

    def loss(self, logits: Tensor, text: Tensor) -> Tensor:
        """What one image's step minimises.

        Args:
            logits: Of the chosen views, `[v, C]`.
            text: Class embeddings under the present context, `[C, E]`; for losses that look at them.
        """
        return marginal_entropy(logits)

    def logits(self, features: Tensor, text: Tensor) -> Tensor:
        """Logits of views, `[V, C]`.

        Args:
            features: L2-normalised, `[V, E]`.
            text: Class embeddings, `[C, E]`.
        """
        return self.setup.logit_scale * (features @ text.T)

    def macs(self, accounting: Accounting = "matmul") -> int:
        """All views, the class prompts with their gradient in every step, and the prompts once more for the answer.

        Args:
            accounting: See `Method.macs`.
        """
        images, prompts = self.setup.image_macs(accounting), self.frame.macs(self.setup, accounting)
        steps = self.options.steps * self.frame.gradient_macs(self.setup) if accounting == "matmul" else 0
        return self.facts.views * images + prompts + steps
