"""Twenty-four shapes as signed distances: negative inside, in units where a shape fills about [-1, 1]².

Distances are computed once on a fine grid (the atlas) and sampled from there. A batch costs one lookup, however many
shapes it mixes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

ATLAS_SIZE = 128
ATLAS_REACH = 1.5
"""The atlas covers [-reach, reach]²; beyond it distances are clamped, far outside every shape."""

Vertex = tuple[float, float]


def _length(v: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(v, dim=-1)
    return length


def _disc(p: Tensor, centre: Vertex, radius: float) -> Tensor:
    return _length(p - p.new_tensor(centre)) - radius


def _box(p: Tensor, centre: Vertex, half: Vertex, angle: float = 0.0) -> Tensor:
    """Rectangle with half extents `half`, turned by `angle` degrees."""
    q = p - p.new_tensor(centre)
    c, s = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    q = torch.stack([c * q[..., 0] + s * q[..., 1], c * q[..., 1] - s * q[..., 0]], -1).abs() - p.new_tensor(half)
    return _length(q.clamp(min=0)) + q.amax(-1).clamp(max=0)


def _polygon(p: Tensor, corners: Sequence[Vertex]) -> Tensor:
    """Exact distance to a simple polygon; the sign comes from counting edge crossings."""
    distance = torch.full(p.shape[:-1], torch.inf)
    inside = torch.zeros(p.shape[:-1], dtype=torch.bool)
    for a, b in zip(corners, [*corners[1:], corners[0]], strict=True):
        edge, to = p.new_tensor(b) - p.new_tensor(a), p - p.new_tensor(a)
        along = ((to @ edge) / (edge @ edge)).clamp(0, 1)
        distance = torch.minimum(distance, _length(to - along[..., None] * edge))
        straddles = (p[..., 1] >= a[1]) != (p[..., 1] >= b[1])
        left = edge[0] * to[..., 1] - edge[1] * to[..., 0] > 0
        inside ^= straddles & (left == (b[1] > a[1]))
    return torch.where(inside, -distance, distance)


def _union(*parts: Tensor) -> Tensor:
    return torch.stack(parts).amin(0)


def _common(*parts: Tensor) -> Tensor:
    return torch.stack(parts).amax(0)


def _regular(n: int, radius: float = 1.0, inner: float | None = None) -> list[Vertex]:
    """Corners of a regular n-gon, first corner up; with `inner`, a star of n points."""
    radii = [radius] if inner is None else [radius, inner]
    m = n * len(radii)
    turns = [math.pi / 2 + 2 * math.pi * i / m for i in range(m)]
    return [(radii[i % len(radii)] * math.cos(t), radii[i % len(radii)] * math.sin(t)) for i, t in enumerate(turns)]


def _around(n: int, radius: float) -> list[tuple[float, Vertex]]:
    """n angles in degrees and the points there on a circle."""
    degrees = [360.0 * i / n for i in range(n)]
    return [(d, (radius * math.cos(math.radians(d)), radius * math.sin(math.radians(d)))) for d in degrees]


def _heart(p: Tensor) -> Tensor:
    point = [(-0.87, 0.1), (0.0, -0.95), (0.87, 0.1), (0.5, 0.4), (0.0, 0.3), (-0.5, 0.4)]
    return _union(_disc(p, (-0.46, 0.38), 0.5), _disc(p, (0.46, 0.38), 0.5), _polygon(p, point))


def _gear(p: Tensor) -> Tensor:
    teeth = [_box(p, at, (0.2, 0.17), degrees) for degrees, at in _around(8, 0.8)]
    return _common(_union(_disc(p, (0, 0), 0.7), *teeth), -_disc(p, (0, 0), 0.3))


def _flower(p: Tensor) -> Tensor:
    return _union(_disc(p, (0, 0), 0.45), *(_disc(p, at, 0.36) for _, at in _around(5, 0.62)))


def _cloud(p: Tensor) -> Tensor:
    puffs = [((-0.62, -0.2), 0.36), ((-0.2, 0.2), 0.45), ((0.35, 0.1), 0.42), ((0.68, -0.22), 0.34)]
    return _union(_box(p, (0, -0.32), (0.65, 0.24)), *(_disc(p, at, r) for at, r in puffs))


def _fish(p: Tensor) -> Tensor:
    body = _common(_disc(p, (-0.2, -0.45), 0.92), _disc(p, (-0.2, 0.45), 0.92))
    return _union(body, _polygon(p, [(0.35, 0.0), (1.0, 0.55), (0.82, 0.0), (1.0, -0.55)]))


def _mushroom(p: Tensor) -> Tensor:
    cap = _common(_disc(p, (0, 0.0), 0.95), -(p[..., 1] + 0.02))
    return _union(cap, _box(p, (0, -0.5), (0.3, 0.5)))


def _key(p: Tensor) -> Tensor:
    bow = _common(_disc(p, (0, 0.52), 0.48), -_disc(p, (0, 0.52), 0.19))
    bits = [_box(p, (0.28, y), (0.28, 0.13)) for y in (-0.42, -0.87)]
    return _union(bow, _box(p, (0, -0.45), (0.15, 0.55)), *bits)


def _cup(p: Tensor) -> Tensor:
    handle = _common(_disc(p, (0.5, 0.02), 0.5), -_disc(p, (0.5, 0.02), 0.24))
    return _union(_polygon(p, [(-0.85, 0.75), (0.5, 0.75), (0.32, -0.8), (-0.67, -0.8)]), handle)


def _leaf(p: Tensor) -> Tensor:
    blade = _common(_disc(p, (-0.62, 0.18), 1.02), _disc(p, (0.62, 0.18), 1.02))
    return _union(blade, _box(p, (0, -0.75), (0.09, 0.27)))


def _drop(p: Tensor) -> Tensor:
    return _union(_disc(p, (0, -0.35), 0.6), _polygon(p, [(-0.53, -0.07), (0.0, 1.0), (0.53, -0.07)]))


_CROSS = [(0.33, 0.33), (0.33, 0.95), (-0.33, 0.95), (-0.33, 0.33), (-0.95, 0.33), (-0.95, -0.33)]
_ARROW = [(1.0, 0.0), (0.15, 0.8), (0.15, 0.3), (-0.95, 0.3), (-0.95, -0.3), (0.15, -0.3), (0.15, -0.8)]
_HOUSE = [(0.0, 0.98), (0.95, 0.2), (0.68, 0.2), (0.68, -0.85), (-0.68, -0.85), (-0.68, 0.2), (-0.95, 0.2)]
_TREE_RIGHT = [
    (0.0, 1.0),
    (0.5, 0.35),
    (0.26, 0.35),
    (0.72, -0.15),
    (0.4, -0.15),
    (0.9, -0.6),
    (0.2, -0.6),
    (0.2, -1.0),
]
_BOLT = [(0.25, 1.0), (-0.7, -0.15), (-0.08, -0.15), (-0.35, -1.0), (0.7, 0.25), (0.1, 0.25), (0.72, 1.0)]
_CROWN = [(-0.95, 0.6), (-0.45, 0.05), (0.0, 0.85), (0.45, 0.05), (0.95, 0.6), (0.75, -0.75), (-0.75, -0.75)]

_DISTANCES: dict[str, Callable[[Tensor], Tensor]] = {
    "circle": lambda p: _disc(p, (0, 0), 0.9),
    "square": lambda p: _box(p, (0, 0), (0.8, 0.8)),
    "triangle": lambda p: _polygon(p, [(-1.0, -0.75), (1.0, -0.75), (0.0, 0.95)]),
    "diamond": lambda p: _polygon(p, [(0.0, 1.0), (0.62, 0.0), (0.0, -1.0), (-0.62, 0.0)]),
    "hexagon": lambda p: _polygon(p, _regular(6, 0.98)),
    "star": lambda p: _polygon(p, _regular(5, 1.0, 0.45)),
    "cross": lambda p: _polygon(p, [*_CROSS, *((-x, -y) for x, y in _CROSS)]),
    "heart": _heart,
    "crescent": lambda p: _common(_disc(p, (0.05, 0), 0.95), -_disc(p, (0.5, 0), 0.74)),
    "ring": lambda p: _disc(p, (0, 0), 0.68).abs() - 0.25,
    "arrow": lambda p: _polygon(p, _ARROW),
    "drop": _drop,
    "flower": _flower,
    "gear": _gear,
    "cloud": _cloud,
    "house": lambda p: _polygon(p, _HOUSE),
    "tree": lambda p: _polygon(p, [*_TREE_RIGHT, *((-x, y) for x, y in _TREE_RIGHT[:0:-1])]),
    "fish": _fish,
    "mushroom": _mushroom,
    "key": _key,
    "bolt": lambda p: _polygon(p, _BOLT),
    "cup": _cup,
    "leaf": _leaf,
    "crown": lambda p: _polygon(p, _CROWN),
}

SHAPES: tuple[str, ...] = tuple(_DISTANCES)
"""Names of the shapes; a shape's number is its index here."""


def _crossings(values: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Points [n, 2] where a sampled function changes sign along a grid line, by linear interpolation."""
    points = []
    for dim in (0, 1):
        n = values.shape[dim] - 1
        a, b = values.narrow(dim, 0, n), values.narrow(dim, 1, n)
        crosses = (a < 0) != (b < 0)
        t = (a / (a - b))[crosses]
        ends = [torch.stack([c.narrow(dim, i, n)[crosses] for c in (x, y)], -1) for i in (0, 1)]
        points.append(torch.lerp(ends[0], ends[1], t[:, None]))
    return torch.cat(points)


def _exact_inside(values: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The same outline with true distances inside; those of a union are too short where its parts overlap."""
    inside = values < 0
    depth = torch.cdist(torch.stack([x[inside], y[inside]], -1), _crossings(values, x, y)).amin(1)
    return values.masked_scatter(inside, -depth)


@cache
def _atlas(device: torch.device) -> Tensor:
    """All distances [24, 1, ATLAS_SIZE, ATLAS_SIZE], rows from y = -reach upwards; made on the CPU, then moved."""
    steps = torch.linspace(-ATLAS_REACH, ATLAS_REACH, ATLAS_SIZE)
    y, x = torch.meshgrid(steps, steps, indexing="ij")
    p = torch.stack([x, y], -1)
    return torch.stack([_exact_inside(f(p), x, y) for f in _DISTANCES.values()])[:, None].to(device)


def distance(shape: Tensor, points: Tensor) -> Tensor:
    """Signed distances [B, H, W] in object units, negative inside.

    Args:
        shape: [B] int64, numbers of shapes.
        points: [B, H, W, 2] in object units, x to the right and y up.
    """
    atlas = _atlas(points.device)[shape]
    sampled = F.grid_sample(atlas, points / ATLAS_REACH, padding_mode="border", align_corners=True)
    return sampled[:, 0]
