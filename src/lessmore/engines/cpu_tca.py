"""TCA for CPUs with many classes: a normalised copy of the stored tokens lets the correction read them only once.

At C = 1000 the reservoir is larger than any cache, so the correction takes as long as reading it. The norm of a stored
token changes only when its entry does. With norms divided out in advance, Σ_l P_l cos(v^l, A^l) is one product of a
matrix `[C·M, L·D]` and a vector. The copy takes as much memory as the reservoir's anchors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from lessmore.core.step import Operations, Sample
from lessmore.core.stream import Delta, StreamState
from lessmore.core.token_mean import debiased_cosine
from lessmore.methods.registry import Setup
from lessmore.methods.tca import TCA


class UnitTCA(TCA):
    """The same answers as `TCA`, to rounding."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.units = self._unit(self.stream.reservoir.anchors)

    def make_operations(self, apply: Callable[[StreamState, Delta], StreamState]) -> Operations:
        """The plain operations, except for the affinities and for keeping their copy up to date."""

        def apply_to_both(state: StreamState, delta: Delta) -> StreamState:
            # One class's entries are normalised again, whether or not the image was stored: asking would cost more.
            after, at = apply(state, delta), delta.placement.label.unsqueeze(0)
            self.units.index_copy_(0, at, self._unit(after.reservoir.anchors.index_select(0, at)))
            return after

        return super().make_operations(apply_to_both)._replace(affinities=self._affinities)

    def reset(self) -> None:
        """Forget the stream."""
        super().reset()
        self.units.zero_()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a `state()`."""
        super().restore(state)
        self.units = self._unit(self.stream.reservoir.anchors)

    def _affinities(self, state: StreamState, sample: Sample, token_mean: Tensor | None) -> Tensor:
        """`correction.affinities` with all entries, `[C, M]`."""
        unit = F.normalize(sample.tokens.to(self.weights.dtype), dim=-1)
        rows = unit[None] if token_mean is None else torch.stack([unit, token_mean])
        rows = rows * self.weights[:, None]
        # As the left factor, the entries are read once for both rows; as the right one, once for each.
        along = (self.units.flatten(0, 1).flatten(1) @ rows.flatten(1).T).T.view(-1, *self.units.shape[:2])
        if token_mean is None:
            return along[0]
        return debiased_cosine(along[0], (rows[0] * token_mean).sum(), along[1], (rows[1] * token_mean).sum())

    def _unit(self, anchors: Tensor) -> Tensor:
        wide = anchors.to(self.stream.reservoir.keys.dtype)
        return F.normalize(wide, dim=-1, eps=torch.finfo(wide.dtype).tiny)
