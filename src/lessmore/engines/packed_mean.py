"""The stream mean in the layout of the CUDA kernels: five buffers, with the named fields as views into them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lessmore.core.debias import StreamMean
from lessmore.core.stream import StreamState

FEATURES, CLASSES, SCALARS = 2, 3, 12
"""Fields of a `StreamMean` that have the length of a feature, of the class list, and none; then come those of its
`Novelty`."""


class PackedMean(NamedTuple):
    """The fields of a `StreamMean`, in its order."""

    features: Tensor
    """`[2, E]`"""
    classes: Tensor
    """`[3, C]`"""
    scalars: Tensor
    """`[12]`"""
    last_frames: Tensor
    """`[RING, E]`"""
    distances: Tensor
    """Their sum and number, `[2]`."""

    @classmethod
    def of(cls, mean: StreamMean) -> PackedMean:
        """Copies of the fields."""
        first, last = FEATURES + CLASSES, FEATURES + CLASSES + SCALARS
        known = mean.novelty
        sums = torch.stack([known.distance_sum, known.distances])
        features, classes, scalars = mean[:FEATURES], mean[FEATURES:first], mean[first:last]
        return cls(torch.stack(features), torch.stack(classes), torch.stack(scalars), known.last_frames.clone(), sums)

    def view(self) -> StreamMean:
        """The named fields, which share memory with the buffers."""
        return StreamMean(*[*self.features, *self.classes, *self.scalars, self.last_frames, *self.distances])

    def like(self, distances: bool) -> PackedMean:
        """New buffers of the same shapes.

        Args:
            distances: Whether the distances are new, too; else they are these themselves, as the last frames are.
        """
        new = [torch.empty_like(t) for t in (self.features, self.classes, self.scalars)]
        return PackedMean(*[*new, self.last_frames, torch.empty_like(self.distances) if distances else self.distances])


def pack(state: StreamState) -> tuple[StreamState, PackedMean]:
    """A state whose stream mean consists of views into buffers, and the buffers; to change one is to change both."""
    packed = PackedMean.of(state.stream_mean)
    return state._replace(stream_mean=packed.view()), packed
