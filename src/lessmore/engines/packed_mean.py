"""The stream mean in the layout of the CUDA kernels: three buffers, with the named fields as views into them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lessmore.core.debias import StreamMean
from lessmore.core.stream import StreamState

FEATURES, CLASSES = 2, 3
"""Fields of a `StreamMean` that have the length of a feature, and of the class list; the others are scalars."""


class PackedMean(NamedTuple):
    """The fields of a `StreamMean`, in its order."""

    features: Tensor
    """`[2, E]`"""
    classes: Tensor
    """`[3, C]`"""
    scalars: Tensor
    """`[12]`"""

    @classmethod
    def of(cls, mean: StreamMean) -> PackedMean:
        """Copies of the fields."""
        last = FEATURES + CLASSES
        return cls(torch.stack(mean[:FEATURES]), torch.stack(mean[FEATURES:last]), torch.stack(mean[last:]))

    def view(self) -> StreamMean:
        """The named fields, which share memory with the buffers."""
        return StreamMean(*self.features, *self.classes, *self.scalars)

    def like(self) -> PackedMean:
        """New buffers of the same shapes."""
        return PackedMean(*(torch.empty_like(t) for t in self))


def pack(state: StreamState) -> tuple[StreamState, PackedMean]:
    """A state whose stream mean consists of views into buffers, and the buffers; to change one is to change both."""
    packed = PackedMean.of(state.stream_mean)
    return state._replace(stream_mean=packed.view()), packed
