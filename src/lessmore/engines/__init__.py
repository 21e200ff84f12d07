"""Engines: what runs a step. `eager` is the reference; the others give the same answers faster.

An engine may batch, fuse, capture or export the operations of `core.step`, but owns no rule and keeps the order
stated there. Property tests hold each engine to the plain functions. Nothing here knows commands, runs or tables.
Read `answers.py` first: adapter, runner and bench get their answers there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from lessmore.config import Condensation
from lessmore.core.vit import ViT
from lessmore.engines.availability import has_triton
from lessmore.errors import ConfigError, unknown
from lessmore.methods import Method, Outcome, Setup, make_method

EngineName = Literal["auto", "eager", "cpu", "graph", "chunk"] | str
"""A name of `list_engines()`."""

_CAPTURED = ("tca", "zeroshot")


@runtime_checkable
class Batching(Method, Protocol):
    """An engine that answers several images of one stream together."""

    size: int
    """How many images at a time are fastest."""

    def predict_many(self, pixels: Tensor) -> Sequence[Outcome]:
        """Answers to images `[B, 3, H, W]` in their order, as if they had come one by one."""


def _cpu(method: str, setup: Setup) -> Method:
    from lessmore.engines import cpu

    return cpu.build_cpu(method, setup)


def _graph(method: str, setup: Setup) -> Method:
    from lessmore.engines.graph import Graph

    return Graph(make_method(method, setup))  # type: ignore[arg-type]  # one of _CAPTURED


def _chunk(method: str, setup: Setup) -> Method:
    from lessmore.engines.chunk import Chunk

    if method != "tca":
        raise ConfigError(f"engine 'chunk' streams method 'tca' in batches, not {method!r}; leave the engine to 'auto'")
    return Chunk(setup)


_ENGINES: dict[str, Callable[[str, Setup], Method]] = {
    "eager": make_method,
    "cpu": _cpu,
    "graph": _graph,
    "chunk": _chunk,
}


def graph_unusable(method: str, vision: ViT, condensation: Condensation) -> str | None:
    """Why a method's step cannot become a CUDA graph; None if it can.

    Args:
        method: Name of the method.
        vision: The tower, on its device and in its precision.
        condensation: How it condenses.
    """
    if not vision.positions.is_cuda:
        return "the model is not on a CUDA device"
    if method not in _CAPTURED:
        return f"the step of method {method!r} cannot be captured, only those of {' and '.join(_CAPTURED)}"
    if condensation.rule == "sampling":
        return "the reducer's token counts depend on the image"
    if not has_triton():
        return "triton is not installed"
    return None


def list_engines() -> list[str]:
    """Names accepted by `engine=`.

    Example:
        >>> import lessmore
        >>> lessmore.list_engines()
        ['auto', 'eager', 'cpu', 'graph', 'chunk']
    """
    return ["auto", *_ENGINES]


def check_engine(name: str) -> None:
    """Raise a `ConfigError` if the engine is unknown."""
    if name not in list_engines():
        raise ConfigError(unknown("engine", name, list_engines()))


def resolve_engine(name: str, method: str, vision: ViT, condensation: Condensation, keeps_out: bool = False) -> str:
    """The engine that a name stands for. If that is a slower one than was asked for, a warning says why.

    Args:
        name: One of `list_engines()`; `auto` is `graph` on CUDA and `cpu` on CPUs if they can run the method, else
            `eager`.
        method: Name of the method.
        vision: The tower, on its device and in its precision.
        condensation: How it condenses.
        keeps_out: Whether unknown images are to stay out of the memory, which a graph cannot do; for `auto`.

    Raises:
        ConfigError: The engine is unknown.
    """
    check_engine(name)
    weights, reason = vision.positions, graph_unusable(method, vision, condensation)
    if name == "auto" and weights.device.type == "cpu":
        return _for_cpu(weights.dtype)
    if name == "auto":
        return "eager" if reason or keeps_out else "graph"
    if name == "graph" and reason:
        warnings.warn(f"engine 'graph' cannot be used: {reason}; running 'eager' instead", stacklevel=3)
        return "eager"
    return name


def _for_cpu(dtype: torch.dtype) -> str:
    from lessmore.engines import cpu

    if cpu.can_pack(dtype):
        return "cpu"
    if dtype == torch.float16:
        warnings.warn(
            "a float16 model is slow on a CPU; pass dtype='float32', or device='cuda' where there is a GPU",
            stacklevel=4,
        )
    return "eager"


def build(name: str, method: str, setup: Setup) -> Method:
    """A method on an engine.

    Args:
        name: One of `list_engines()`; see `resolve_engine`.
        method: Name of the method.
        setup: What the method is built from.

    Raises:
        ConfigError: The engine is unknown or cannot run the method.
    """
    return _ENGINES[resolve_engine(name, method, setup.vision, setup.preset.condensation)](method, setup)


def encoder_of(engine: str) -> str:
    """The encoder that an engine shares with others: encodings may be exchanged within one, and not between two."""
    return "cpu" if engine == "cpu" else "eager"


def encoding_tower(engine: str, setup: Setup) -> ViT:
    """The tower that encodes images for a method on this engine.

    Args:
        engine: Name of the engine, not `auto`.
        setup: What the method is built from.
    """
    if encoder_of(engine) == "eager":
        return setup.vision
    from lessmore.engines import cpu

    return cpu.packed_setup(setup).vision
