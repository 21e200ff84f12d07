"""CUDA graphs of functions that work on fixed tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar, cast

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
    """Record a function as a CUDA graph.

    Args:
        body: What to record; it works on tensors that keep their places.
        state: Tensors that the body changes in place; recording leaves them as they were.
        pool: Memory pool shared with graphs that never run at the same time; None takes a new one.
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
    """Stands in for a graph on devices without one: calls the body itself."""

    replay: Callable[[], object]


def rerun(body: Callable[[], object], state: Sequence[Tensor]) -> Rerun:
    """A `Record` that is not a graph; for any device. Arguments and results keep their places as with a graph.

    Args:
        body: What to run at every replay.
        state: Not needed; a graph's recording needs it.
    """
    return Rerun(body)


class Tape:
    """Records functions that work on each other's results; arguments may be tensors in any tuples and lists.

    A result stays where its recording left it until that recording, or one made before it, runs again: recordings may
    share memory. An argument that is such a result is used where it is; any other is copied into a place of its own.
    """

    def __init__(self, state: Sequence[Tensor], record: Record) -> None:
        """Record nothing yet.

        Args:
            state: Tensors that the functions change in place, besides their arguments.
            record: Makes the recordings.
        """
        self.state, self.record = state, record
        self.kept: dict[int, Tensor] = {}

    def recorded(self, function: Callable[P, R]) -> Callable[P, R]:
        """The same function, recorded once for each set of shapes it is called with."""
        known: dict[tuple[object, ...], Fixed] = {}

        def call(*arguments: P.args, **named: P.kwargs) -> R:
            leaves, form = tree.tree_flatten((arguments, named))
            key = tuple((leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else leaf for leaf in leaves)
            if key in known:
                return cast(R, known[key](leaves))
            places = [self._place(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            given, known_as = tree.tree_unflatten(places, form)
            known[key] = Fixed(lambda: function(*given, **known_as), places, self.state, self.record)
            result = known[key](leaves)
            self.kept |= {id(leaf): leaf for leaf in tree.tree_leaves(result) if isinstance(leaf, Tensor)}
            return cast(R, result)

        return call

    def _place(self, argument: Tensor) -> Tensor:
        return argument if id(argument) in self.kept else argument.clone(memory_format=torch.contiguous_format)


class Fixed:
    """A recording with places for what it is called with."""

    def __init__(
        self, call: Callable[[], object], places: list[object], state: Sequence[Tensor], record: Record
    ) -> None:
        self.places = places
        self.last: object

        def body() -> None:
            self.last = call()

        self.recording = record(body, state)

    def __call__(self, arguments: list[object]) -> object:
        """The results for other values of the same shapes."""
        for place, argument in zip(self.places, arguments, strict=True):
            if isinstance(place, Tensor) and place is not argument:
                place.copy_(cast(Tensor, argument))
        self.recording.replay()
        return self.last
