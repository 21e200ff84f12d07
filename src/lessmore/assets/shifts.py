"""Shifts of the embedded world: seven kinds at severities 1 to 5, each seeded by its image and by nothing else."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from lessmore.assets import fields
from lessmore.assets.world import Scene, draw_scene
from lessmore.errors import ConfigError, unknown

STRENGTHS: dict[str, tuple[float, float, float, float, float]] = {
    "background": (0.5, 0.65, 0.8, 0.9, 1.0),
    "contrast": (0.6, 0.5, 0.44, 0.38, 0.32),
    "snow": (0.06, 0.1, 0.14, 0.18, 0.24),
    "brightness": (0.2, 0.3, 0.38, 0.45, 0.52),
    "noise": (0.06, 0.08, 0.1, 0.12, 0.145),
    "blur": (0.6, 0.9, 1.2, 1.6, 2.1),
    "sketch": (0.25, 0.33, 0.42, 0.5, 0.6),
}
"""One strength per severity, in the unit of the second argument of that kind's function below."""
KINDS: tuple[str, ...] = tuple(STRENGTHS)
"""Names of the shifts."""


def _grey(images: Tensor) -> Tensor:
    """Luminance [B, 1, S, S]."""
    return (images * torch.tensor([0.299, 0.587, 0.114], device=images.device).view(1, 3, 1, 1)).sum(1, keepdim=True)


def _contrast(images: Tensor, left: float, seeds: Tensor) -> Tensor:
    """Pull every pixel towards the image's mean; `left` of the difference remains."""
    return torch.lerp(images.mean((1, 2, 3), keepdim=True), images, left)


def _brightness(images: Tensor, lift: float, seeds: Tensor) -> Tensor:
    """Add light until bright parts saturate."""
    return images + lift


def _noise(images: Tensor, sigma: float, seeds: Tensor) -> Tensor:
    """Independent Gaussian noise on every pixel and channel."""
    size = images.shape[-1]
    return images + sigma * torch.stack([fields.normal(seeds, size, 100 + 2 * c) for c in range(3)], 1)


def _blur(images: Tensor, sigma: float, seeds: Tensor) -> Tensor:
    """Gaussian blur, sigma in pixels, edges repeated."""
    reach = int(3 * sigma + 0.5)
    kernel = torch.exp(-(torch.arange(-reach, reach + 1, device=images.device) ** 2) / (2 * sigma**2))
    kernel = (kernel / kernel.sum()).to(images.dtype).expand(3, 1, 1, -1)
    images = F.pad(images, (reach, reach, reach, reach), mode="replicate")
    return F.conv2d(F.conv2d(images, kernel, groups=3), kernel.transpose(2, 3), groups=3)


def _snow(images: Tensor, amount: float, seeds: Tensor) -> Tensor:
    """Flakes of two sizes over an image that pales; `amount` is about the share covered."""
    size = images.shape[-1]
    large = fields.smooth_step(fields.smooth(seeds, size, 20, 110) - (1.02 - 0.6 * amount), 5)
    small = fields.smooth_step(fields.smooth(seeds, size, 40, 111) - (1.04 - 0.6 * amount), 5)
    flakes = torch.maximum(large, small)[:, None]
    pale = torch.lerp(images, 0.35 + 0.65 * _grey(images), 0.6 * amount)
    return torch.lerp(pale, torch.full_like(pale, 0.96), flakes)


def _sketch(images: Tensor, weight: float, seeds: Tensor) -> Tensor:
    """Towards a pencil drawing: dark outlines on paper, the colours fading with `weight`."""
    grey = F.pad(_grey(images), (1, 1, 1, 1), mode="replicate")
    dx, dy = grey[..., 1:-1, 2:] - grey[..., 1:-1, :-2], grey[..., 2:, 1:-1] - grey[..., :-2, 1:-1]
    paper = 0.94 + 0.05 * fields.white(seeds, images.shape[-1], 120)[:, None]
    return torch.lerp(images, paper - (1.6 * torch.sqrt(dx * dx + dy * dy)).clamp(max=0.9), weight)


_FILTERS: dict[str, Callable[[Tensor, float, Tensor], Tensor]] = {
    "contrast": _contrast,
    "snow": _snow,
    "brightness": _brightness,
    "noise": _noise,
    "blur": _blur,
    "sketch": _sketch,
}


def _strength(kind: str, severity: int) -> float:
    if kind not in STRENGTHS:
        raise ConfigError(unknown("shift", kind, KINDS))
    if not 1 <= severity <= 5:
        raise ConfigError(f"severity goes from 1 to 5, not {severity}")
    return STRENGTHS[kind][severity - 1]


def shift(images: Tensor, kind: str, severity: int, seeds: Tensor) -> Tensor:
    """Finished images under a shift, in the same shape and range.

    `background` needs the scene, because it changes what is drawn; use `draw_shifted` for it.

    Args:
        images: [B, 3, S, S] in [0, 1].
        kind: A name of `KINDS` other than `background`.
        severity: 1 to 5.
        seeds: [B] int64, all that random parts depend on.

    Raises:
        ConfigError: The kind is unknown or `background`, or the severity is out of range.
    """
    strength = _strength(kind, severity)
    if kind == "background":
        raise ConfigError(f"background needs the scene; call draw_shifted(scene, 'background', {severity})")
    return _FILTERS[kind](images, strength, seeds.to(images.device)).clamp(0, 1)


def draw_shifted(
    scene: Scene, kind: str = "clean", severity: int = 0, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """A scene drawn under a shift.

    Args:
        scene: What to draw.
        kind: A name of `KINDS`, or `clean` for no shift.
        severity: 1 to 5; not read for `clean`.
        device: Where to draw.

    Returns:
        Images [B, 3, SIZE, SIZE] in [0, 1], and object masks [B, SIZE, SIZE] bool.
    """
    return draw_scene(scene, device) if kind == "clean" else draw_at(scene, kind, _strength(kind, severity), device)


def draw_at(scene: Scene, kind: str, strength: float, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Like `draw_shifted`, at any strength; this is how the values of `STRENGTHS` were chosen.

    Args:
        scene: What to draw.
        kind: A name of `KINDS`.
        strength: In the unit of that kind in `STRENGTHS`.
        device: Where to draw.
    """
    if kind == "background":
        return draw_scene(scene, device, unseen=strength)
    images, masks = draw_scene(scene, device)
    return _FILTERS[kind](images, strength, scene.seed.to(device)).clamp(0, 1), masks
