"""How new a frame is, so that a camera's repeated frames, covered lens and long looks count as little as they tell.

A frame that resembles one of the last 16 brings little news. Its weight u is its squared distance to the nearest of
them, over a quarter of the mean squared distance of frames from their mean, and at most 1. The first frame has u = 1.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

RING, FADE = 16, 0.99
"""Frames that a new one is compared with; what is left of the mean distance after each frame that is wholly new."""
APART = 4.0
"""Squared distance of two features that have nothing in common; what lies in an empty place is this far away."""


class Novelty(NamedTuple):
    """What tells new frames from known ones; zeros before the first frame."""

    last_frames: Tensor
    """Features of the last frames that were no exact repeats, the oldest first, `[RING, E]`."""
    distance_sum: Tensor
    """Sum of squared distances from the mean feature, `[]`."""
    distances: Tensor
    """Number of them, `[]`; frames count by how new they are, and both sums fade together."""


def empty_novelty(E: int, device: torch.device | str, dtype: torch.dtype = torch.float32) -> Novelty:
    """What is known before the first frame.

    Args:
        E: Length of a feature.
        device: Where to put it.
        dtype: float32 or wider.
    """
    return Novelty(*(torch.zeros(shape, dtype=dtype, device=device) for shape in ((RING, E), (), ())))


def news(own: Novelty, feature: Tensor, mean: Tensor, again: Tensor, share: float) -> tuple[Tensor, Novelty]:
    """How new a frame is, from 0 to 1, and what is known with it.

    Args:
        own: What is known before it.
        feature: Its L2-normalised feature, `[E]`.
        mean: Mean feature of the stream before it, `[E]`.
        again: Whether there were frames before, `[]` bool.
        share: Share of the mean squared distance at which a frame is wholly new.

    Returns:
        u `[]`, and what is known.
    """
    # An empty place is all zeros, at distance 1 from any feature: nearer than many a frame. So it is moved far away.
    filled = own.last_frames.any(dim=1)
    apart = torch.where(filled, (own.last_frames - feature).square().sum(dim=1), APART).amin(dim=0)
    away = torch.where(again, (feature - mean).square().sum(), 0)
    # This frame is part of the spread that it is measured by: the second frame of a stream has no other.
    spread = (own.distance_sum + away) / (own.distances + 1)
    u = torch.where(again, (apart / (share * spread).clamp_min(1e-6)).clamp_max(1), 1)
    counted = torch.where(again, u, 0)
    # Exact repeats take no place. Otherwise 16 of them would push out all that the next frame should be compared with.
    frames = torch.where(u > 0, torch.cat([own.last_frames[1:], feature[None]]), own.last_frames)
    return u, Novelty(frames, FADE * (own.distance_sum + counted * away), FADE * (own.distances + counted))


def followed_frames(before: Tensor, newest: Tensor) -> Tensor:
    """The last frames after a frame, from those before it and the newest one now; an exact repeat changes nothing.

    Args:
        before: `[RING, E]`.
        newest: `[E]`.
    """
    return before if torch.equal(before[-1], newest) else torch.cat([before[1:], newest.to(before)[None]])
