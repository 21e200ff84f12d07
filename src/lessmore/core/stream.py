"""Everything one stream has learned, as one value: the reservoir and the statistics of the label-free rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lessmore.core import debias, reservoir
from lessmore.core.debias import StreamMean
from lessmore.core.reservoir import Placement, Reservoir

# Saved class anchors could contradict the entries that they are means of.
DERIVED = ("means",)
"""Tensors that follow from the others and are not saved."""
EMPTY = {"ids": -1}
"""Fill values of an empty state's tensors, other than zero."""


class StreamState(NamedTuple):
    """What one stream has learned. Engines for many streams put S in front of every tensor."""

    reservoir: Reservoir
    stream_mean: StreamMean
    """What debiasing remembers; zeros where it is off."""
    token_mean: Tensor
    """Mean token of the stream, `[L, D]`, see `lessmore.core.token_mean`; zeros where debiasing is off."""

    def tensors(self) -> list[Tensor]:
        """All tensors, in a fixed order."""
        return [*self.reservoir, *self.stream_mean, self.token_mean]

    def named(self) -> dict[str, Tensor]:
        """All tensors by the names of their fields."""
        return dict(zip(NAMES, self.tensors(), strict=True))

    def map(self, function: Callable[[Tensor], Tensor]) -> StreamState:
        """The state with a function applied to every tensor."""
        return from_tensors([function(tensor) for tensor in self.tensors()])


NAMES = (*Reservoir._fields, *StreamMean._fields, "token_mean")
"""Names of a state's tensors, in the order of `StreamState.tensors`."""


class Delta(NamedTuple):
    """What one sample does to a stream's state; also the record from which a run can be replayed."""

    placement: Placement
    stream_mean: StreamMean
    """After the sample."""
    token_mean: Tensor
    """After the sample, `[L, D]`."""

    def named(self) -> dict[str, Tensor]:
        """All tensors by the names of their fields."""
        return {**self.placement._asdict(), **self.stream_mean._asdict(), "token_mean": self.token_mean}


def delta_from_named(tensors: Mapping[str, Tensor]) -> Delta:
    """The delta with the tensors of `Delta.named`."""
    placement = Placement(*(tensors[name] for name in Placement._fields))
    return Delta(placement, StreamMean(*(tensors[name] for name in StreamMean._fields)), tensors["token_mean"])


def from_tensors(tensors: Sequence[Tensor]) -> StreamState:
    """The state with these tensors, in the order of `NAMES`."""
    first, second = len(Reservoir._fields), len(Reservoir._fields) + len(StreamMean._fields)
    return StreamState(Reservoir(*tensors[:first]), StreamMean(*tensors[first:second]), tensors[second])


def from_named(tensors: Mapping[str, Tensor]) -> StreamState:
    """The state with tensors of these names; class anchors are computed where they are missing."""
    known = dict(tensors)
    if "means" not in known:
        known["means"] = reservoir.class_mean(known["anchors"], known["counts"])
    return from_tensors([known[name] for name in NAMES])


def saved(state: StreamState) -> dict[str, Tensor]:
    """Copies of the tensors that a state file holds: all except the derived ones."""
    return {name: tensor.clone() for name, tensor in state.named().items() if name not in DERIVED}


def empty(C: int, M: int, L: int, D: int, E: int, dtype: torch.dtype, device: torch.device | str) -> StreamState:
    """A state that has seen nothing.

    Args:
        C: Number of classes.
        M: Slots per class.
        L: Number of blocks.
        D: Width of a token.
        E: Length of a feature.
        dtype: Type of the tokens; everything else is float32 or wider.
        device: Where to put it.
    """
    wide = torch.promote_types(dtype, torch.float32)
    return StreamState(
        reservoir=reservoir.empty_reservoir(C, M, L, D, dtype, device),
        stream_mean=debias.empty_stream_mean(E, C, device, wide),
        token_mean=torch.zeros(L, D, dtype=wide, device=device),
    )


def clear_(state: StreamState) -> None:
    """Forget the stream, in place."""
    for name, tensor in state.named().items():
        tensor.fill_(EMPTY.get(name, 0))


def copy_(state: StreamState, other: StreamState) -> None:
    """Overwrite a state with another; its tensors keep their places in memory.

    Args:
        state: The state to overwrite.
        other: The state to copy, of the same shapes.
    """
    for ours, theirs in zip(state.tensors(), other.tensors(), strict=True):
        ours.copy_(theirs)


def clone(state: StreamState) -> StreamState:
    """An independent copy."""
    return state.map(Tensor.clone)


def apply_(state: StreamState, delta: Delta) -> StreamState:
    """Carry out a step, in place.

    Args:
        state: The state before the sample.
        delta: What the sample does to it.

    Returns:
        `state`.
    """
    reservoir.store_(state.reservoir, delta.placement)
    return remember_(state, delta)


def apply_each_(state: StreamState, delta: Delta) -> StreamState:
    """`apply_` for S streams and one sample for each; all tensors have S in front.

    Args:
        state: The states before the samples.
        delta: What the samples do to them.

    Returns:
        `state`.
    """
    reservoir.store_each_(state.reservoir, delta.placement)
    # One launch for all: on a GPU, a launch for each of these small tensors shows in the time of a step.
    torch._foreach_copy_([*state.stream_mean, state.token_mean], [*delta.stream_mean, delta.token_mean])
    return state


def remember_(state: StreamState, delta: Delta) -> StreamState:
    """Take over the statistics after a sample, in place.

    Args:
        state: The state, whose reservoir is up to date.
        delta: What the sample does to it.

    Returns:
        `state`.
    """
    for ours, theirs in zip(state.stream_mean, delta.stream_mean, strict=True):
        ours.copy_(theirs)
    state.token_mean.copy_(delta.token_mean)
    return state


def apply(state: StreamState, delta: Delta) -> StreamState:
    """The state after a sample; the one before it stays as it is.

    Args:
        state: The state before the sample.
        delta: What the sample does to it.
    """
    return apply_(clone(state), delta)
