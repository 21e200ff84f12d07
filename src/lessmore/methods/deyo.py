"""DeYO: Tent on images whose answer is confident and depends on the shape of the object.

Lee et al., "Entropy is not Enough for Test-Time Adaptation: From the Perspective of Disentangled Factors", ICLR 2024,
arXiv 2403.07366. x' is the image x cut into cells that are put back in a random order, y the answer to x, H entropy:

    D = p_y(x) − p_y(x')                           how much of the answer the shape accounts for
    take part: H(x) < τ_H · ln C and D > τ_D
    loss = mean of (e^(H₀·ln C − H(x)) + e^D) · H(x),    the weights are not differentiated
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lessmore.core.costs import Accounting
from lessmore.core.encoder import Encoded
from lessmore.errors import ConfigError
from lessmore.methods.registry import Setup, register_method
from lessmore.methods.tent import LowerTent, LowerTentOptions, entropy
from lessmore.methods.views import content_seed


@dataclass(frozen=True)
class DeYOOptions(LowerTentOptions):
    """DeYO's own settings, as published for vision transformers."""

    margin: float = 0.5
    """τ_H: an image takes part if the entropy of its answer is below this share of the largest possible, ln C."""
    reference: float = 0.4
    """H₀: the share of ln C at which entropy weighs 1."""
    difference: float = 0.2
    """τ_D: an image takes part if its answer loses more than this with the shape."""
    cells: int = 4
    """Cells on a side of the image that is put together in another order."""
    seed: int = 0
    """Decides, together with the image, the order of the cells."""

    def __post_init__(self) -> None:
        """Validate once; every later use may trust the values."""
        super().__post_init__()
        if not 0 < self.margin <= 1 or not -1 <= self.difference <= 1:
            raise ConfigError(
                f"margin must lie in (0, 1] and difference in [-1, 1], not {self.margin} and {self.difference}"
            )
        if self.cells < 2:
            raise ConfigError(f"cells must be at least 2, or nothing changes its place, not {self.cells}")


def shuffled_cells(image: Tensor, cells: int, seed: int) -> Tensor:
    """An image cut into cells, in an order that depends on the image and the seed alone.

    Args:
        image: `[3, S, S]`; scaled to the next smaller multiple of the cells and back where they do not fit.
        cells: Cells on a side.
        seed: Another one gives another order.

    Returns:
        `[3, S, S]`.
    """
    side = image.shape[-1] // cells * cells
    draw = torch.Generator().manual_seed(content_seed(image.detach().float().cpu(), seed))
    order = torch.randperm(cells * cells, generator=draw).to(image.device)
    size = side // cells
    parts = _scaled(image, side).unfold(1, size, size).unfold(2, size, size).flatten(1, 2)[:, order]
    mixed = parts.unflatten(1, (cells, cells)).permute(0, 1, 3, 2, 4).reshape(-1, side, side)
    return _scaled(mixed, image.shape[-1])


def _scaled(image: Tensor, side: int) -> Tensor:
    if image.shape[-1] == side:
        return image
    return F.interpolate(image[None], (side, side), mode="bilinear", antialias=True)[0]


@register_method("deyo", DeYOOptions)
class DeYO(LowerTent):
    """Tent's affines and momentum; other images take part, with other weights."""

    options: DeYOOptions

    def __init__(self, setup: Setup, options: DeYOOptions) -> None:
        self.largest = math.log(len(setup.text))
        super().__init__(setup, options)

    def adapt(self, pixels: Tensor, encoded: Encoded, logits: Tensor) -> None:
        """One step on the images of a batch that take part; none if none does.

        Args:
            pixels: `[B, 3, H, W]`.
            encoded: What the tower made of them, with gradients attached.
            logits: The tower's answers to them, with gradients attached, `[B, C]`.
        """
        own, uncertain = self.options, entropy(logits)
        sure = (uncertain < own.margin * self.largest).nonzero()[:, 0]
        if not len(sure):
            return
        lost = self.lost(pixels[sure], logits[sure].detach())
        chosen = lost > own.difference
        if not chosen.any():
            return
        kept = uncertain[sure][chosen]
        weight = (own.reference * self.largest - kept.detach()).exp() + lost[chosen].exp()
        self.step(self.gradients((weight * kept).mean()))

    @torch.no_grad()
    def lost(self, pixels: Tensor, logits: Tensor) -> Tensor:
        """D, how much of the answers is lost with the shape, `[B]`.

        Args:
            pixels: `[B, 3, H, W]`.
            logits: The tower's answers to them, `[B, C]`.
        """
        own = self.options
        mixed = torch.stack([shuffled_cells(image, own.cells, own.seed) for image in pixels])
        before, answer = logits.softmax(dim=1).max(dim=1)
        after = self.logits(self.encode(mixed)).softmax(dim=1)
        return before - after.gather(1, answer[:, None])[:, 0]

    def macs(self, accounting: Accounting = "matmul") -> int:
        """Tent's, and a pass of the shuffled image, as if every answer were sure.

        Args:
            accounting: See `Method.macs`.
        """
        return super().macs(accounting) + (self.setup.image_macs() if accounting == "matmul" else 0)
