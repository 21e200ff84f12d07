"""BATCLIP: the LayerNorms of both towers adapt so that images come close to their texts and classes move apart.

Maharana et al., "BATCLIP: Bimodal Online Test-Time Adaptation for CLIP", ICCV 2025, arXiv 2412.02837. x_i are the
features of a batch before they are normalised, y_i the answers, v_k the mean of the x_i that are answered with k, for
the K classes answered at all, t_k the class embeddings:

    loss = mean_i H(p_i) − 1/K · Σ_k v_k·t_k − Σ_k Σ_{l≠k} (1 − cos(v_k, v_l))

Entropy falls, classes move towards their texts, and away from each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lessmore.core.costs import Accounting
from lessmore.core.encoder import Encoded
from lessmore.core.text import TextTower
from lessmore.methods.context import WORDS, frame_prompts
from lessmore.methods.registry import Setup, register_method
from lessmore.methods.tent import Tent, TentOptions, entropy, norm_affines, with_own_norms
from lessmore.methods.zeroshot import zero_shot_logits
from lessmore.storage.state import finite_problem


@dataclass(frozen=True)
class BATCLIPOptions(TentOptions):
    """BATCLIP's own settings; the rate is the authors', for batches of 64 and 200."""

    lr: float = 1e-3
    """AdamW's learning rate of a step on 64 images; a step on fewer takes it in proportion."""
    momentum: float = 0.9
    """AdamW's first decay rate."""
    nesterov: bool = False
    window: int = 16
    """Images per step: one step is made on every so many images. A single image has only one class, and nothing to move
    away from."""
    words: str = WORDS
    """The words before the name of a class."""


def answered_means(features: Tensor, answers: Tensor) -> tuple[Tensor, Tensor]:
    """The classes answered, ascending, `[K]`, and the mean features of their images, `[K, E]`.

    Args:
        features: `[B, E]`.
        answers: `[B]`.
    """
    classes, place = answers.unique(return_inverse=True)
    member = F.one_hot(place, len(classes)).to(features.dtype)
    return classes, (member / member.sum(dim=0)).T @ features


def bimodal_loss(logits: Tensor, features: Tensor, text: Tensor) -> Tensor:
    """The loss of a batch, `[]`.

    Args:
        logits: `[B, C]`.
        features: Before they are normalised, `[B, E]`.
        text: Class embeddings, `[C, E]`.
    """
    classes, means = answered_means(features, logits.argmax(dim=1))
    towards = (means * text[classes]).sum(dim=1).mean()
    unit = F.normalize(means, dim=1)
    apart = (1 - unit @ unit.T).fill_diagonal_(0).sum()
    return entropy(logits).mean() - towards - apart


@register_method("batclip", BATCLIPOptions)
class BATCLIP(Tent):
    """The affines of both towers, and AdamW's two moments of each."""

    buffers: ClassVar[dict[str, str]] = {"momentum": "exp_avg", "square": "exp_avg_sq", "steps": "step"}
    options: BATCLIPOptions

    def __init__(self, setup: Setup, options: BATCLIPOptions) -> None:
        self.frame = frame_prompts(setup.model, setup.classes, options.words)
        self.reader: TextTower = with_own_norms(setup.model.text)
        super().__init__(setup, options)

    def norms(self) -> dict[str, nn.Parameter]:
        """Those of the vision tower, and those of the text tower under `text.`."""
        return {**super().norms(), **{f"text.{k}": v for k, v in norm_affines(self.reader).items()}}

    def idle(self) -> int:
        """All parameters of both towers' norms are learnt."""
        return 0

    def new_optimiser(self) -> torch.optim.Optimizer:
        """AdamW, as the authors use it."""
        self.written: Tensor | None = None
        return torch.optim.AdamW(self.affines.values(), self.options.rate, betas=(self.options.momentum, 0.999))

    def logits(self, encoded: Encoded) -> Tensor:
        """Logits of a batch as both towers stand, `[B, C]`; without gradients, texts are embedded once a step."""
        if torch.is_grad_enabled() or self.written is None:
            self.written = F.normalize(self.reader(self.frame.tokens), dim=-1)
        return zero_shot_logits(encoded, self.written, self.setup.logit_scale)

    def adapt(self, pixels: Tensor, encoded: Encoded, logits: Tensor) -> None:
        """One step on a batch.

        Args:
            pixels: `[B, 3, H, W]`.
            encoded: What the vision tower made of them, with gradients attached.
            logits: The answers to them, with gradients attached, `[B, C]`.
        """
        assert encoded.length is not None
        assert self.written is not None
        features = encoded.feature * encoded.length[:, None]
        loss = bimodal_loss(logits, features, self.written.to(features.dtype))
        self.written = None
        self.step(self.gradients(loss))

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a `state()`, from any device."""
        super().restore(state)
        self.written = None

    @staticmethod
    def state_problem(state: Mapping[str, Tensor]) -> str | None:
        """Everything is finite, and mean squares and numbers of steps are not negative."""
        for name, tensor in state.items():
            if name.startswith(("square.", "steps.")) and bool((tensor < 0).any()):
                return f"{name} is negative"
        return finite_problem(state)

    def macs(self, accounting: Accounting = "matmul") -> int:
        """Tent's, and the class prompts through the text tower, with their gradient, once in a window.

        With a window of several images, the first answer after a step embeds the prompts once more.

        Args:
            accounting: See `Method.macs`.
        """
        if accounting == "paper":
            return self.setup.image_macs(accounting)
        once, k = self.frame.macs(self.setup), self.options.window
        step = self.frame.gradient_macs(self.setup) + (once if k > 1 else 0)
        return super().macs(accounting) + round(step / k)
