"""AugMix on a batch of images, as test-time prompt tuning uses it: three chains of one to three mild operations, mixed.

Images hold whole levels 0…255 as floats, so the operations agree with Pillow's on bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

CHAINS, DEPTH = 3, 3
_BLOCK_LEVELS = 16  # posterised to four bits


def augmix(images: Tensor, draw: torch.Generator) -> Tensor:
    """m·x + (1−m)·Σ wᵢ chainᵢ(x), with w ~ Dirichlet(1, 1, 1) and m uniform, drawn for each image.

    Args:
        images: x, `[B, 3, S, S]` in whole levels.
        draw: Generator on the CPU, from which everything random comes.
    """
    B = len(images)
    weights = -torch.rand(B, CHAINS, generator=draw, dtype=torch.float64).clamp_min(1e-12).log()
    weights = (weights / weights.sum(dim=1, keepdim=True)).to(images)
    own = torch.rand(B, generator=draw, dtype=torch.float64).to(images).view(B, 1, 1, 1)
    mixed = torch.zeros_like(images)
    for i in range(CHAINS):
        mixed += weights[:, i].view(B, 1, 1, 1) * _chain(images, draw)
    return own * images + (1 - own) * mixed


def _chain(images: Tensor, draw: torch.Generator) -> Tensor:
    """Every image `[B, 3, S, S]` through one to three operations of its own."""
    B = len(images)
    depth = torch.randint(1, DEPTH + 1, (B,), generator=draw)
    for step in range(DEPTH):
        # Drawn for every image even where its chain is shorter, so that no image shifts the numbers of another.
        chosen = torch.randint(len(OPERATIONS), (B,), generator=draw)
        amount = 0.1 + 0.9 * torch.rand(B, generator=draw, dtype=torch.float64)
        sign = 1 - 2 * torch.randint(2, (B,), generator=draw)
        for k, operation in enumerate(OPERATIONS.values()):
            rows = ((chosen == k) & (step < depth)).nonzero()[:, 0]
            if len(rows):
                on_device = rows.to(images.device)
                changed = operation(images[on_device], amount[rows], sign[rows])
                images = images.index_copy(0, on_device, changed)
    return images


def autocontrast(x: Tensor, amount: Tensor, sign: Tensor) -> Tensor:
    """Every channel stretched to 0…255.

    Args:
        x: Levels, `[B, 3, S, S]`.
        amount: Ignored.
        sign: Ignored.
    """
    low, high = x.amin(dim=(2, 3), keepdim=True), x.amax(dim=(2, 3), keepdim=True)
    # In double precision and by a true division, as Pillow does, because the fraction is cut off.
    span = (high - low).double().clamp_min(1)
    scale = torch.full_like(span, 255) / span
    stretched = (x * scale - low * scale).trunc().clamp(0, 255).to(x.dtype)
    return torch.where(high > low, stretched, x)


def equalize(x: Tensor, amount: Tensor, sign: Tensor) -> Tensor:
    """Every channel's histogram equalised.

    Args:
        x: Levels, `[B, 3, S, S]`.
        amount: Ignored.
        sign: Ignored.
    """
    flat = x.flatten(2).long()
    counts = torch.zeros(*flat.shape[:2], 256, dtype=torch.long, device=x.device)
    counts.scatter_add_(2, flat, torch.ones_like(flat))
    # Integer steps, as Pillow computes them: the brightest level that occurs is not counted.
    last = counts.gather(2, flat.amax(dim=2, keepdim=True))
    step = (flat.shape[2] - last) // 255
    below = counts.cumsum(dim=2) - counts
    table = ((step // 2 + below) // step.clamp_min(1)).clamp_max(255)
    changed = table.gather(2, flat).view_as(x).to(x.dtype)
    return torch.where(step[..., None] > 0, changed, x)


def posterize(x: Tensor, amount: Tensor, sign: Tensor) -> Tensor:
    """Four bits per channel.

    Args:
        x: Levels, `[B, 3, S, S]`.
        amount: Ignored.
        sign: Ignored.
    """
    return (x / _BLOCK_LEVELS).floor() * _BLOCK_LEVELS


def solarize(x: Tensor, amount: Tensor, sign: Tensor) -> Tensor:
    """The brightest levels inverted.

    Args:
        x: Levels, `[B, 3, S, S]`.
        amount: Lowers the threshold from 256 by up to 25 levels, `[B]` in 0.1…1.
        sign: Ignored.
    """
    threshold = (256 - (25.6 * amount).floor()).to(x).view(-1, 1, 1, 1)
    return torch.where(x < threshold, x, 255 - x)


def rotate(x: Tensor, amount: Tensor, sign: Tensor) -> Tensor:
    """Rotated about the centre by up to two whole degrees.

    Args:
        x: Levels, `[B, 3, S, S]`.
        amount: A third of the angle in degrees, before it is rounded down, `[B]` in 0.1…1.
        sign: Direction, `[B]`, 1 or −1.
    """
    angle = -sign * (3 * amount).floor() * math.pi / 180
    half = x.shape[-1] / 2
    cos, sin = angle.cos(), angle.sin()
    shift_x, shift_y = half - half * (cos + sin), half - half * (cos - sin)
    return _affine(x, [cos, sin, shift_x, -sin, cos, shift_y])


def shear_x(x: Tensor, amount: Tensor, sign: Tensor) -> Tensor:
    """Rows shifted in proportion to their height, by up to 3 %.

    Args:
        x: Levels, `[B, 3, S, S]`.
        amount: Fraction of the 3 %, `[B]` in 0.1…1.
        sign: Direction, `[B]`, 1 or −1.
    """
    return _affine(x, [1, 0.03 * sign * amount, 0, 0, 1, 0])


def shear_y(x: Tensor, amount: Tensor, sign: Tensor) -> Tensor:
    """Columns shifted in proportion to their position, by up to 3 %.

    Args:
        x: Levels, `[B, 3, S, S]`.
        amount: Fraction of the 3 %, `[B]` in 0.1…1.
        sign: Direction, `[B]`, 1 or −1.
    """
    return _affine(x, [1, 0, 0, 0.03 * sign * amount, 1, 0])


def translate_x(x: Tensor, amount: Tensor, sign: Tensor) -> Tensor:
    """Shifted sideways by whole pixels, up to a thirtieth of the width.

    Args:
        x: Levels, `[B, 3, S, S]`.
        amount: Fraction of the thirtieth, `[B]` in 0.1…1.
        sign: Direction, `[B]`, 1 or −1.
    """
    return _affine(x, [1, 0, sign * (amount * x.shape[-1] / 30).floor(), 0, 1, 0])


def translate_y(x: Tensor, amount: Tensor, sign: Tensor) -> Tensor:
    """Shifted up or down by whole pixels, up to a thirtieth of the height.

    Args:
        x: Levels, `[B, 3, S, S]`.
        amount: Fraction of the thirtieth, `[B]` in 0.1…1.
        sign: Direction, `[B]`, 1 or −1.
    """
    return _affine(x, [1, 0, 0, 0, 1, sign * (amount * x.shape[-1] / 30).floor()])


def _affine(x: Tensor, entries: list[Tensor | float]) -> Tensor:
    """Resample [B, 3, S, S] bilinearly at (a·x + b·y + c, d·x + e·y + f) of every pixel; black outside it."""
    B, S = len(x), x.shape[-1]
    matrix = torch.stack([torch.as_tensor(e, dtype=torch.float64).expand(B) for e in entries], dim=1)
    matrix = matrix.view(B, 2, 3).to(x)
    centre = torch.arange(S, device=x.device, dtype=x.dtype) + 0.5
    here = torch.stack([centre.expand(S, S), centre[:, None].expand(S, S), torch.ones_like(centre).expand(S, S)], dim=2)
    source = torch.einsum("yxk,bjk->byxj", here, matrix)
    # Padding with the border and blackening afterwards: padding with zeros would darken the edge by interpolation.
    inside = ((source >= 0) & (source < S)).all(dim=3).unsqueeze(1)
    taken = F.grid_sample(x, 2 * source / S - 1, mode="bilinear", padding_mode="border", align_corners=False)
    return torch.where(inside, taken.round(), 0.0)


Operation = Callable[[Tensor, Tensor, Tensor], Tensor]
OPERATIONS: dict[str, Operation] = {
    "autocontrast": autocontrast,
    "equalize": equalize,
    "posterize": posterize,
    "rotate": rotate,
    "solarize": solarize,
    "shear_x": shear_x,
    "shear_y": shear_y,
    "translate_x": translate_x,
    "translate_y": translate_y,
}
"""Images [B, 3, S, S], amounts [B] in 0.1…1 and signs [B] → images; all at the published severity, 1."""
