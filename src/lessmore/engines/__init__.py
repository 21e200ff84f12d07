"""Engines: what runs a step. `eager` is the reference; the others give the same answers faster."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from torch import Tensor

from lessmore.engines.availability import has_triton
from lessmore.errors import ConfigError, unknown
from lessmore.methods import Method, Outcome, Setup, make

_CAPTURED = ("tca", "zeroshot")


@runtime_checkable
class Batching(Protocol):
    """An engine that answers many images of one stream at a time."""

    size: int
    """As many as it likes best."""

    def predict_many(self, pixels: Tensor) -> list[Outcome]:
        """Answers to images [B, 3, H, W] in their order, as if they had come one by one."""


def _eager(method: str, setup: Setup) -> Method:
    return make(method, setup)


def _cpu(method: str, setup: Setup) -> Method:
    from lessmore.engines import cpu

    return cpu.build_cpu(method, setup)


def _graph(method: str, setup: Setup) -> Method:
    reason = graph_unusable(method, setup)
    if reason is not None:
        warnings.warn(f"engine 'graph' cannot be used: {reason}; running 'eager' instead", stacklevel=2)
        return make(method, setup)
    from lessmore.engines.graph import Graph

    return Graph(make(method, setup))  # type: ignore[arg-type]  # one of _CAPTURED


def _chunk(method: str, setup: Setup) -> Method:
    if method != "tca":
        raise ConfigError(f"engine 'chunk' streams method 'tca' in batches, not {method!r}; leave the engine to 'auto'")
    from lessmore.engines.chunk import Chunk

    return Chunk(setup)


_ENGINES: dict[str, Callable[[str, Setup], Method]] = {
    "eager": _eager,
    "cpu": _cpu,
    "graph": _graph,
    "chunk": _chunk,
}


def graph_unusable(method: str, setup: Setup) -> str | None:
    """Why no CUDA graph can be made of a method's step; None where one can."""
    if not setup.vision.positions.is_cuda:
        return "the model is not on a CUDA device"
    if method not in _CAPTURED:
        return f"the step of method {method!r} cannot be captured, only those of {' and '.join(_CAPTURED)}"
    if setup.preset.condensation.rule == "sampling":
        return "the reducer's token counts depend on the image"
    if not has_triton():
        return "triton is not installed"
    return None


def _fastest(method: str, setup: Setup) -> str:
    from lessmore.engines import cpu

    weights = setup.vision.positions
    if weights.device.type == "cpu" and cpu.can_pack(weights.dtype):
        return "cpu"
    return "eager" if graph_unusable(method, setup) else "graph"


def list_engines() -> list[str]:
    """Names accepted by `engine=`."""
    return ["auto", *_ENGINES]


def check_engine(name: str) -> None:
    """Refuse a name that is none."""
    if name not in list_engines():
        raise ConfigError(unknown("engine", name, list_engines()))


def build(name: str, method: str, setup: Setup) -> Method:
    """The named method on the named engine; `auto`: `graph` on CUDA and `cpu` on CPUs where they can be used."""
    if name == "auto":
        name = _fastest(method, setup)
    check_engine(name)
    return _ENGINES[name](method, setup)
