"""What a call means: turns preset, R, reducer, method and options into settings for one tower, or a typed error.

`adapt`, `lessmore run`, `bench`, `flops` and the demo all come here, so that the same words mean the same everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from lessmore.config import LATE, STREAMS, Condensation, Preset, preset
from lessmore.core.condense.registry import reducer_for, resolve_reducer
from lessmore.core.condense.schedule import schedule
from lessmore.core.vit import ViTShape
from lessmore.errors import ConfigError, unknown
from lessmore.methods.registry import method_options, split_options

LATE_DEPTH = 12
"""The depth of tower that the late blocks were chosen for."""


class Resolved(NamedTuple):
    """Settings of a call."""

    preset: Preset
    """Condensation and adaptation, the reducer and the tower's depth taken into account."""
    reducer: str
    """The reducer by name, never `auto`."""
    options: dict[str, Any]
    """The method's own options."""


def resolve(
    method: str,
    preset_name: str = "default",
    R: float | None = None,
    reducer: str = "auto",
    options: Mapping[str, Any] | None = None,
    shape: ViTShape | None = None,
    stream: str | None = None,
) -> Resolved:
    """Settings from what a caller says.

    Args:
        method: Name of the method.
        preset_name: Name of the preset.
        R: Kept fraction of the tokens; None means the preset's.
        reducer: Name of the reducer. `auto` condenses for `tca` and leaves other methods whole images.
        options: Single fields of the preset, and the method's own options.
        shape: The tower, where it is known. The blocks of `default` then follow its depth, and everything that cannot
            run on it is refused.
        stream: What the caller knows of the stream, one of `STREAMS`, instead of a preset; None if nothing.

    Raises:
        ConfigError: A name or value is unknown, or the combination is impossible; the message names the remedy.
    """
    own, shared = split_options(method, options or {})
    method_options(method, own)
    if R is not None and "R" in shared:
        raise ConfigError("R is given twice; give it once, by itself or among the options")
    chosen = preset(preset_for(method, preset_name, stream), **shared, **({} if R is None else {"R": R}))
    name, base = reducer_for(reducer, method), chosen.condensation
    if chosen.scales and name != "tca":
        # The late blocks are TCA's own; the other reducers keep those they were published with.
        chosen, base = chosen._replace(scales=False), replace(base, layers=Condensation().layers)
    chosen = chosen._replace(condensation=resolve_reducer(name, base))
    return Resolved(chosen if shape is None else fit_to_tower(chosen, shape), name, own)


def preset_for(method: str, preset_name: str, stream: str | None) -> str:
    """The preset that a caller means who says what his stream is like.

    Args:
        method: Name of the method.
        preset_name: Name of the preset; `default` if he names none.
        stream: One of `STREAMS`, or None.

    Raises:
        ConfigError: No such kind of stream is known, another preset is named too, or the method has no use for it.

    Examples:
        >>> preset_for("tca", "default", "camera"), preset_for("tca", "paper", None)
        ('camera', 'paper')
    """
    if stream is None:
        return preset_name
    if stream not in STREAMS:
        raise ConfigError(unknown("kind of stream", stream, STREAMS))
    if method != "tca":
        raise ConfigError(
            f"stream={stream!r} is for method 'tca'; method {method!r} has no setting for it, leave it out"
        )
    if preset_name not in ("default", STREAMS[stream]):
        raise ConfigError(
            f"stream={stream!r} means preset {STREAMS[stream]!r}, not {preset_name!r}; give one of the two"
        )
    return STREAMS[stream]


def fit_to_tower(chosen: Preset, shape: ViTShape) -> Preset:
    """Settings whose blocks exist in a tower.

    The blocks of `default`, `camera` and `mixed` scale with the depth of a shallower tower; others are refused there.

    Args:
        chosen: The settings.
        shape: The tower's.

    Raises:
        ConfigError: The tower has too few blocks, or a block would keep no token.
    """
    depth, condensation = shape.blocks.depth, chosen.condensation
    if chosen.scales and condensation.active and depth <= max(condensation.layers):
        chosen = chosen._replace(condensation=replace(condensation, layers=late_blocks(depth)))
    schedule(shape.patches, depth, chosen.condensation)
    return chosen


def late_blocks(depth: int) -> tuple[int, ...]:
    """Blocks that correspond to `LATE` in a tower of two or more; never the last, where condensing saves nothing.

    >>> late_blocks(12), late_blocks(6), late_blocks(2)
    ((6, 7, 8, 9, 10), (3, 4), (0,))
    """
    return tuple(sorted({min(block * depth // LATE_DEPTH, depth - 2) for block in LATE}))
