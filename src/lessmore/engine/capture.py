"""CUDA graphs of functions that work on fixed tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as tree

WARM_UP = 3
"""Runs before the capture, in which kernels are compiled and libraries make their plans."""

P = ParamSpec("P")
R = TypeVar("R")


class Recording(Protocol):
    """What can be run again on the same tensors."""

    def replay(self) -> object:
        """Run it."""


Record = Callable[[Callable[[], object], Sequence[Tensor]], Recording]
"""Makes a recording of a body that may change some tensors in place; they are left as they were."""


@torch.no_grad()
def capture(body: Callable[[], object], state: Iterable[Tensor], pool: Any = None) -> torch.cuda.CUDAGraph:
    """Record `body`, which may change the tensors of `state` in place; they are left as they were.

    pool: memory shared with graphs that are never under way at the same time.
    """
    tensors = list(state)
    before = [tensor.clone() for tensor in tensors]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            body()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        body()
    for tensor, old in zip(tensors, before, strict=True):
        tensor.copy_(old)
    return graph


class Rerun(NamedTuple):
    """What stands for a graph where there is none: the body itself."""

    replay: Callable[[], object]


def rerun(body: Callable[[], object], state: Sequence[Tensor]) -> Rerun:
    """A recording that is no graph; it runs on any device, with fixed places for arguments and results like one."""
    return Rerun(body)


class Replayed(Generic[P, R]):
    """A function of tensors, in whatever tuples and lists, recorded once for each set of shapes it is called with."""

    def __init__(self, function: Callable[P, R], state: Sequence[Tensor], record: Record) -> None:
        """state: what the function changes in place."""
        self.function, self.state, self.record = function, state, record
        self._known: dict[tuple[object, ...], Fixed] = {}

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> R:
        """The function's results, copied out of the recording's memory."""
        leaves, form = tree.tree_flatten((arguments, named))
        key = tuple((leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        if key not in self._known:
            self._known[key] = Fixed(self._on(form), leaves, self.state, self.record)
        result: R = self._known[key](leaves)
        return result

    def _on(self, form: tree.TreeSpec) -> Callable[[list[Any]], R]:
        """The function of the leaves of its arguments."""

        def call(leaves: list[Any]) -> R:
            arguments, named = tree.tree_unflatten(leaves, form)
            return self.function(*arguments, **named)

        return call


class Fixed:
    """A recording with places for the tensors among what it is called with."""

    def __init__(
        self, call: Callable[[list[Any]], Any], arguments: list[Any], state: Sequence[Tensor], record: Record
    ) -> None:
        self.places = [_place(argument) if isinstance(argument, Tensor) else argument for argument in arguments]
        self.last: Any

        def body() -> None:
            self.last = call(self.places)

        self.recording = record(body, state)

    def __call__(self, arguments: list[Any]) -> Any:
        """Copies of the results for other values of the same shapes."""
        for place, argument in zip(self.places, arguments, strict=True):
            if isinstance(place, Tensor):
                place.copy_(argument)
        self.recording.replay()
        return tree.tree_map_only(Tensor, Tensor.clone, self.last)


def _place(like: Tensor) -> Tensor:
    return like.clone(memory_format=torch.contiguous_format)
