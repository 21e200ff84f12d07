"""Reducers by name. Each is a `Condensation`: the loop in `encoder.py` and the counting rules are shared by all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from lessmore.config import Condensation
from lessmore.errors import ConfigError, unknown

Maker = Callable[[Condensation], Condensation]
_REDUCERS: dict[str, Maker] = {}


def register(name: str) -> Callable[[Maker], Maker]:
    """Decorator: make a reducer known. It gets a preset's condensation and returns its own, at that R and layers."""

    def add(maker: Maker) -> Maker:
        _REDUCERS[name] = maker
        return maker

    return add


def known() -> dict[str, Maker]:
    """All reducers by name."""
    return dict(_REDUCERS)


def list_reducers() -> list[str]:
    """Names accepted by `reducer=`."""
    return sorted(_REDUCERS)


def reducer(name: str, base: Condensation) -> Condensation:
    """The named reducer at the budget of `base`."""
    if name not in _REDUCERS:
        raise ConfigError(unknown("reducer", name, _REDUCERS))
    return _REDUCERS[name](base)


@register("none")
def none(base: Condensation) -> Condensation:
    """No condensation: every block sees every token."""
    return replace(base, R=1.0, counts="table", rate=None)


@register("tca")
def tca(base: Condensation) -> Condensation:
    """Token condensation as the preset sets it."""
    return base


@register("evit")
def evit(base: Condensation) -> Condensation:
    """EViT: keep ceil(R·n) tokens by head-mean class attention, fuse the rest into one; no anchors, nothing merged."""
    return Condensation(
        R=base.R, layers=base.layers, counts="keep", merge_prune=(0, 1), K=0, pruned="fuse", score="mean"
    )
