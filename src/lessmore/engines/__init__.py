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
from lessmore.core.encoder import Encoded, encode
from lessmore.core.vit import ViT
from lessmore.engines.availability import has_openvino, has_triton
from lessmore.engines.precision import check_precision, name_of, precision_key
from lessmore.errors import ConfigError, unknown
from lessmore.methods import Method, Outcome, Setup, make_method

EngineName = Literal["auto", "eager", "cpu", "openvino", "graph", "chunk"] | str
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

    return cpu.build_cpu(method, setup, bfloat16=_in_bfloat16(setup))


def _in_bfloat16(setup: Setup) -> bool:
    return setup.precision == "bfloat16"


def _openvino(method: str, setup: Setup) -> Method:
    from lessmore.engines.openvino import build_openvino

    return build_openvino(method, setup)


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
    "openvino": _openvino,
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
    if vision.shape.flexible:
        return "the model gives every image a shape of its own (NaFlex)"
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

    Examples:
        >>> import lessmore
        >>> lessmore.list_engines()
        ['auto', 'eager', 'cpu', 'openvino', 'graph', 'chunk']
    """
    return ["auto", *_ENGINES]


def check_engine(name: str) -> None:
    """Raise a `ConfigError` if the engine is unknown."""
    if name not in list_engines():
        raise ConfigError(unknown("engine", name, list_engines()))


def resolve_engine(
    name: str,
    method: str,
    vision: ViT,
    condensation: Condensation,
    precision: str | None = None,
    keeps_out: bool = False,
) -> str:
    """The engine that a name stands for. If that is a slower one than was asked for, a warning says why.

    The choice depends on what was asked for and on what is installed, never on a measurement.

    Args:
        name: One of `list_engines()`; `auto` is `graph` on CUDA and `cpu` on CPUs if they can run the method, else
            `eager`; with a precision that the weights do not have it is `openvino`, for bfloat16 only where that is
            installed.
        method: Name of the method.
        vision: The tower, on its device and in its precision.
        condensation: How it condenses.
        precision: In what the engine multiplies; None is the type of the weights.
        keeps_out: Whether unknown images are to stay out of the memory, which a graph cannot do; for `auto`.

    Raises:
        ConfigError: The engine is unknown, or does not compute in this precision.
    """
    check_engine(name)
    chosen = _resolved(name, method, vision, condensation, precision, keeps_out)
    check_precision(chosen, precision, vision.positions.dtype)
    return chosen


def _resolved(
    name: str, method: str, vision: ViT, condensation: Condensation, precision: str | None, keeps_out: bool
) -> str:
    weights, reason = vision.positions, graph_unusable(method, vision, condensation)
    if name == "auto" and weights.device.type == "cpu":
        return _for_cpu(weights.dtype, precision)
    if name == "auto":
        return "eager" if reason or keeps_out else "graph"
    if name == "graph" and reason:
        warnings.warn(f"engine 'graph' cannot be used: {reason}; running 'eager' instead", stacklevel=4)
        return "eager"
    return name


def _for_cpu(dtype: torch.dtype, precision: str | None) -> str:
    from lessmore.engines import cpu

    if precision not in (None, name_of(dtype)) and (precision == "int8" or has_openvino()):
        return "openvino"
    if cpu.can_pack(dtype):
        return "cpu"
    if dtype == torch.float16:
        warnings.warn(
            "a float16 model is slow on a CPU; pass dtype='float32', or device='cuda' where there is a GPU",
            stacklevel=5,
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
    name = resolve_engine(name, method, setup.vision, setup.preset.condensation, setup.precision)
    return _ENGINES[name](method, setup)


def encoder_key(engine: str, precision: str | None = None, calibration: Tensor | None = None) -> str:
    """The encoder that an engine shares with others: encodings may be exchanged within one, and not between two.

    Args:
        engine: Name of the engine, not `auto`.
        precision: In what it multiplies; None is the type of the weights.
        calibration: What int8 is calibrated on, `[N, 3, H, W]`.
    """
    name = engine if engine in ("cpu", "openvino") else "eager"
    return name if precision is None else f"{name} {precision_key(precision, calibration)}"


def encoder_on(engine: str, setup: Setup, condensation: Condensation) -> Callable[[Tensor], Encoded]:
    """What encodes images `[B, 3, H, W]` as a method on this engine sees them, without anchors.

    Args:
        engine: Name of the engine, not `auto`.
        setup: What the method is built from.
        condensation: How images are condensed, which need not be the setup's own.
    """
    if engine == "openvino":
        from lessmore.engines.openvino import encoder_on_openvino

        return encoder_on_openvino(setup, condensation)
    vision = setup.vision
    if engine == "cpu":
        from lessmore.engines import cpu

        vision = cpu.packed_setup(setup, _in_bfloat16(setup)).vision
    return lambda pixels: encode(vision, pixels, condensation)
