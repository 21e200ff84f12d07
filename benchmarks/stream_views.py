"""Views of photographs as a camera takes them, and corruptions of them, on batches of tensors; for `streams.py`.

A view is a crop of 80 to 100 % of the side, shifted, lighter or darker and a little out of focus. View 0 is the
photograph itself. Corruptions follow the formulas of the usual benchmark with its constants for severities 1 to 5;
lengths in pixels are for 224 and are scaled to the model's side. They come after the view, as a lens or sensor does.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from lessmore.assets import shifts

SIDE = 224
"""Pixels for which the constants were published."""
PLAIN_VIEW = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 0.0])


def draw_views(numbers: Tensor, dice: torch.Generator) -> Tensor:
    """Zoom, shift x and y, gain, lift and defocus of views `[n, 6]`; those with number 0 are the photograph itself."""
    u = torch.rand(len(numbers), 6, generator=dice)
    zoom = 1 - 0.2 * u[:, 0]
    shift = (1 - zoom)[:, None] * (2 * u[:, 1:3] - 1)
    light = torch.stack([0.8 + 0.4 * u[:, 3], 0.1 * u[:, 4] - 0.05, 0.7 * u[:, 5]], dim=1)
    drawn = torch.cat([zoom[:, None], shift, light], dim=1)
    return torch.where((numbers == 0)[:, None], PLAIN_VIEW, drawn)


def take_views(images: Tensor, views: Tensor) -> Tensor:
    """Views `[B, 6]` of images `[B, 3, S, S]` in [0, 1]."""
    zoom, x, y, gain, lift, blur = views[:, :, None, None, None].unbind(1)
    zero = torch.zeros_like(zoom)
    maps = torch.cat([zoom, zero, x, zero, zoom, y], dim=1).view(-1, 2, 3)
    grid = F.affine_grid(maps, list(images.shape), align_corners=False)
    seen = F.grid_sample(images, grid, mode="bicubic", padding_mode="reflection", align_corners=False)
    seen = torch.lerp(seen, gaussian(seen, images.shape[-1] / 112), blur)
    return (gain * seen + lift).clamp(0, 1)


def gaussian(x: Tensor, sigma: float) -> Tensor:
    """Gaussian blur of images `[B, 3, S, S]`, sigma in pixels, edges reflected."""
    reach = min(max(1, math.ceil(3 * sigma)), x.shape[-1] - 1)
    kernel = torch.exp(-(torch.arange(-reach, reach + 1, device=x.device) ** 2) / (2 * sigma**2))
    kernel = (kernel / kernel.sum()).to(x).expand(3, 1, 1, -1)
    x = F.pad(x, (reach, reach, reach, reach), mode="reflect")
    return F.conv2d(F.conv2d(x, kernel, groups=3), kernel.transpose(2, 3), groups=3)


Corrupter = Callable[[Tensor, int, torch.Generator], Tensor]
"""Images `[B, 3, S, S]` in [0, 1], index of the severity from 0, dice on their device → images of any range."""


def _uniform(x: Tensor, shape: tuple[int, ...], dice: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=dice, device=x.device)


def _contrast(x: Tensor, level: int, dice: torch.Generator) -> Tensor:
    mean = x.mean(dim=(2, 3), keepdim=True)
    return mean + (0.4, 0.3, 0.2, 0.1, 0.05)[level] * (x - mean)


def _gaussian_noise(x: Tensor, level: int, dice: torch.Generator) -> Tensor:
    return x + (0.08, 0.12, 0.18, 0.26, 0.38)[level] * torch.randn(x.shape, generator=dice, device=x.device)


def _impulse_noise(x: Tensor, level: int, dice: torch.Generator) -> Tensor:
    share, u = (0.03, 0.06, 0.09, 0.17, 0.27)[level], _uniform(x, tuple(x.shape), dice)
    return torch.where(u < share / 2, 0.0, torch.where(u > 1 - share / 2, 1.0, x))


def _fog(x: Tensor, level: int, dice: torch.Generator) -> Tensor:
    """Light through a random field whose details fade by the second constant per octave."""
    amount, decay = ((1.5, 2.0), (2.0, 2.0), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4))[level]
    B, S = len(x), x.shape[-1]
    field = torch.zeros(B, 1, S, S, device=x.device)
    for octave in range(1, 8):
        cells = _uniform(x, (B, 1, 2**octave + 1, 2**octave + 1), dice)
        field += decay**-octave * F.interpolate(cells, size=(S, S), mode="bilinear", align_corners=True)
    low, high = field.amin(dim=(2, 3), keepdim=True), field.amax(dim=(2, 3), keepdim=True)
    brightest = x.amax(dim=(1, 2, 3), keepdim=True)
    return (x + amount * (field - low) / (high - low)) * brightest / (brightest + amount)


def _moved(x: Tensor, flow: Tensor, mode: str = "bilinear") -> Tensor:
    """Images sampled where `flow` `[B, S, S, 2]`, in pixels, points to."""
    identity = torch.eye(2, 3, device=x.device).expand(len(x), 2, 3)
    grid = F.affine_grid(identity, list(x.shape), align_corners=False) + 2 * flow / x.shape[-1]
    return F.grid_sample(x, grid, mode=mode, padding_mode="reflection", align_corners=False)


def _motion_blur(x: Tensor, level: int, dice: torch.Generator) -> Tensor:
    radius, sigma = ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15))[level]
    angle = (math.pi / 4) * (2 * _uniform(x, (len(x), 1, 1), dice) - 1)
    along = torch.stack([angle.cos(), angle.sin()], dim=-1).expand(-1, x.shape[-1], x.shape[-1], -1)
    steps = torch.linspace(0, 2 * radius, 13).tolist()
    weights = [math.exp(-(s**2) / (2 * sigma**2)) for s in steps]
    parts = [w * _moved(x, s * x.shape[-1] / SIDE * along) for s, w in zip(steps, weights, strict=True)]
    return torch.stack(parts).sum(dim=0) / sum(weights)


def _zoom_blur(x: Tensor, level: int, dice: torch.Generator) -> Tensor:
    most, step = ((0.11, 0.01), (0.16, 0.01), (0.21, 0.02), (0.26, 0.02), (0.31, 0.03))[level]
    maps = [torch.eye(2, 3, device=x.device) / (1 + z * step) for z in range(math.ceil(most / step))]
    grids = [F.affine_grid(m.expand(len(x), 2, 3), list(x.shape), align_corners=False) for m in maps]
    zoomed = [F.grid_sample(x, g, padding_mode="reflection", align_corners=False) for g in grids]
    return (x + torch.stack(zoomed).sum(dim=0)) / (1 + len(zoomed))


def _glass_blur(x: Tensor, level: int, dice: torch.Generator) -> Tensor:
    sigma, reach, rounds = ((0.7, 1, 2), (0.9, 2, 1), (1.0, 2, 3), (1.1, 3, 2), (1.5, 4, 2))[level]
    scale, S = x.shape[-1] / SIDE, x.shape[-1]
    x = gaussian(x, sigma * scale)
    for _ in range(rounds):
        x = _moved(x, (2 * _uniform(x, (len(x), S, S, 2), dice) - 1) * reach * scale, mode="nearest")
    return gaussian(x, sigma * scale)


def _elastic_transform(x: Tensor, level: int, dice: torch.Generator) -> Tensor:
    """Displacements of a smooth random field, about 16 cells on a side."""
    amount, S = (4.0, 6.0, 8.0, 10.0, 12.0)[level] * x.shape[-1] / SIDE, x.shape[-1]
    cells = amount * (2 * _uniform(x, (len(x), 2, 16, 16), dice) - 1)
    flow = F.interpolate(cells, size=(S, S), mode="bicubic", align_corners=True)
    return _moved(x, flow.permute(0, 2, 3, 1))


CORRUPTERS: dict[str, Corrupter] = {
    "contrast": _contrast,
    "gaussian_noise": _gaussian_noise,
    "impulse_noise": _impulse_noise,
    "fog": _fog,
    "motion_blur": _motion_blur,
    "zoom_blur": _zoom_blur,
    "glass_blur": _glass_blur,
    "elastic_transform": _elastic_transform,
}
"""Corruptions of photographs by name."""


def corrupted(x: Tensor, condition: str, world: bool, dice: torch.Generator) -> Tensor:
    """Images `[B, 3, S, S]` in [0, 1] under a condition such as `fog:4`; `world`: shifts of the embedded world."""
    if condition == "none":
        return x
    name, severity = condition.split(":")
    if world:
        seeds = torch.randint(2**40, (len(x),), generator=dice, device=x.device)
        return shifts.shift(x, name, int(severity), seeds)
    return CORRUPTERS[name](x, int(severity) - 1, dice).clamp(0, 1)
