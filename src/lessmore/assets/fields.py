"""Scalar fields on the pixel grid: counter-based noise, and the textures that backgrounds are made of.

Noise is an integer hash of (seed, position). A field therefore depends on the seed of its image alone, and not on the
batch, the device or the state of a generator.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

_MASK = 0xFFFFFFFF


def send(x: Tensor, device: torch.device | str) -> Tensor:
    """A CPU tensor on `device`, without waiting for a GPU, so that drawing can be queued behind other work.

    Args:
        x: A tensor on the CPU.
        device: Where to; memory is pinned for CUDA.
    """
    if torch.device(device).type != "cuda":
        return x.to(device)
    return x.pin_memory().to(device, non_blocking=True)


def _mix(x: Tensor) -> Tensor:
    """Avalanche the low 32 bits of int64 values; the multipliers keep every product below 2⁶³."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _MASK
    x = ((x ^ (x >> 15)) * 0x2C1B3C6D) & _MASK
    return x ^ (x >> 16)


def hash_uniform(seed: Tensor, counter: Tensor, stream: int) -> Tensor:
    """Uniform numbers in [0, 1), float32, of the broadcast shape of seeds and counters.

    Args:
        seed: int64, one per image as a rule.
        counter: int64, the position within the image.
        stream: Separates independent uses of one seed.
    """
    key = _mix((seed + 0x9E3779B9 * (stream + 1)) & _MASK)
    return (_mix((counter * 0x2545F491 + key) & _MASK) >> 8).to(torch.float32) * 2.0**-24


def white(seed: Tensor, size: int, stream: int) -> Tensor:
    """Independent uniform numbers in [0, 1), [B, size, size].

    Args:
        seed: [B] int64.
        size: Pixels on a side.
        stream: Separates independent uses of one seed.
    """
    counter = torch.arange(size * size, device=seed.device).view(1, size, size)
    return hash_uniform(seed.view(-1, 1, 1), counter, stream)


def normal(seed: Tensor, size: int, stream: int) -> Tensor:
    """Independent standard normal numbers [B, size, size], by the Box–Muller transform.

    Args:
        seed: [B] int64.
        size: Pixels on a side.
        stream: Separates uses of one seed; `stream + 1` is used up as well.
    """
    radius = torch.sqrt(-2 * torch.log(1 - white(seed, size, stream)))
    return radius * torch.cos(2 * math.pi * white(seed, size, stream + 1))


def smooth(seed: Tensor, size: int, cells: int, stream: int) -> Tensor:
    """Smooth noise in [0, 1], [B, size, size].

    Args:
        seed: [B] int64.
        size: Pixels on a side.
        cells: About how many bumps fit across the image.
        stream: Separates independent uses of one seed.
    """
    lattice = white(seed, cells + 1, stream)[:, None]
    return F.interpolate(lattice, size=(size, size), mode="bicubic", align_corners=True)[:, 0].clamp(0, 1)


def smooth_step(x: Tensor, sharpness: Tensor | float) -> Tensor:
    """0 below zero and 1 above, joined by a ramp: an edge that does not alias.

    Args:
        x: Signed distances, any shape.
        sharpness: 1 / width of the ramp, in the unit of `x`.
    """
    return (x * sharpness + 0.5).clamp(0, 1)


def wave(x: Tensor) -> Tensor:
    """Triangle wave of period 1 between -1 and 1, 0 → 1 → -1 → 0 like a sine."""
    return 4 * (x - 0.25 - torch.floor(x - 0.25) - 0.5).abs() - 1


Texture = Callable[..., Tensor]
"""A function of rotated pixel coordinates u, v [B, S, S], in periods, and seeds [B]; its values are in [0, 1]."""


def _slope(u: Tensor, v: Tensor, seed: Tensor) -> Tensor:
    return 0.5 + u / 8


def _clouds(u: Tensor, v: Tensor, seed: Tensor) -> Tensor:
    return 0.65 * smooth(seed, u.shape[-1], 4, 10) + 0.35 * smooth(seed, u.shape[-1], 11, 11)


def _blotches(u: Tensor, v: Tensor, seed: Tensor) -> Tensor:
    return smooth_step(smooth(seed, u.shape[-1], 6, 12) - 0.5, 8)


def _ripples(u: Tensor, v: Tensor, seed: Tensor) -> Tensor:
    return 0.5 + 0.5 * torch.sin(2 * math.pi * (u + 0.25 * torch.sin(2 * math.pi * v * 0.5)))


def _planks(u: Tensor, v: Tensor, seed: Tensor) -> Tensor:
    return hash_uniform(seed.view(-1, 1, 1), torch.floor(u).long() + 512, 13)


def _tiles(u: Tensor, v: Tensor, seed: Tensor) -> Tensor:
    tile = (torch.floor(u).long() + 512) * 1024 + torch.floor(v).long() + 512
    return hash_uniform(seed.view(-1, 1, 1), tile, 14)


def _grain(u: Tensor, v: Tensor, seed: Tensor) -> Tensor:
    return 0.6 * smooth(seed, u.shape[-1], 32, 15) + 0.4 * smooth(seed, u.shape[-1], 5, 16)


def _spotlight(u: Tensor, v: Tensor, seed: Tensor) -> Tensor:
    return 1 - ((u**2 + v**2).sqrt() / 4).clamp(0, 1)


def _bricks(u: Tensor, v: Tensor, seed: Tensor) -> Tensor:
    row = torch.floor(v)
    mortar = torch.minimum(wave(u / 2 + row / 2).abs(), 1 - wave(v - 0.25).clamp(min=0) ** 4)
    return smooth_step(mortar - 0.25, 6)


def _dots(u: Tensor, v: Tensor, seed: Tensor) -> Tensor:
    return smooth_step(wave(u) + wave(v) - 0.7, 2)


def _hoops(u: Tensor, v: Tensor, seed: Tensor) -> Tensor:
    return 0.5 + 0.5 * torch.sin(2 * math.pi * ((u - 2) ** 2 + (v - 2) ** 2).sqrt())


def _argyle(u: Tensor, v: Tensor, seed: Tensor) -> Tensor:
    return smooth_step(wave(u) * wave(v), 4) * 0.8 + 0.2 * smooth_step(wave(2 * u), 3)


def _hatching(u: Tensor, v: Tensor, seed: Tensor) -> Tensor:
    return torch.maximum(smooth_step(wave(u + v) - 0.6, 3), smooth_step(wave(u - v) - 0.6, 3))


def _confetti(u: Tensor, v: Tensor, seed: Tensor) -> Tensor:
    cell = (torch.floor(2.5 * u).long() + 512) * 1024 + torch.floor(2.5 * v).long() + 512
    return (hash_uniform(seed.view(-1, 1, 1), cell, 17) < 0.45).to(u.dtype)


TRAINED: tuple[Texture, ...] = (_slope, _clouds, _blotches, _ripples, _planks, _tiles, _grain, _spotlight)
"""Background textures of the images that the models are trained on."""
UNSEEN: tuple[Texture, ...] = (_bricks, _dots, _hoops, _argyle, _hatching, _confetti)
"""Textures that only the `background` shift shows."""


def by_kind(kinds: tuple[Texture, ...], kind: Tensor, *fields: Tensor) -> Tensor:
    """Each row drawn with its own texture, [B, S, S]; a texture is computed for the rows that use it and no others.

    Args:
        kinds: The textures to choose from.
        kind: [B] int64 on the CPU, the number of each row's texture.
        *fields: Arguments of the textures, tensors with B rows.
    """
    out = torch.empty_like(fields[0])
    for number, texture in enumerate(kinds):
        rows = (kind == number).nonzero()[:, 0]
        if len(rows):
            rows = send(rows, out.device)
            out[rows] = texture(*(field[rows] for field in fields))
    return out
