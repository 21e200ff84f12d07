"""Reducers by name. Each is a `Condensation`: the loop in `encoder.py` and the counting rules are shared by all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from lessmore.config import Condensation
from lessmore.errors import ConfigError
from lessmore.registry import Registry

ReducerMaker = Callable[[Condensation], Condensation]
REDUCERS: Registry[ReducerMaker] = Registry("reducer", "lessmore.reducers", adopt=lambda found: found)
"""Every reducer by name."""

register_reducer = REDUCERS.register
"""Decorator: make a reducer known. It gets a preset's condensation and returns its own, at that R and layers."""


ReducerName = Literal["auto", "ats", "evit", "none", "pitome", "tca", "tofu", "tome", "tome-table"] | str
"""A name of `list_reducers()`, or `auto`; those of installed packages are not spelled out."""


def list_reducers() -> list[str]:
    """Names accepted by `reducer=`, besides `auto`.

    Examples:
        >>> import lessmore
        >>> "tome" in lessmore.list_reducers()
        True
    """
    return REDUCERS.names()


def reducer_for(name: str, method: str) -> str:
    """The reducer that `auto` stands for: `tca` for TCA, `none` for other methods, which are published without one.

    Args:
        name: One of `list_reducers()`, or `auto`.
        method: Name of the method.
    """
    return name if name != "auto" else "tca" if method == "tca" else "none"


def resolve_reducer(name: str, base: Condensation) -> Condensation:
    """The named reducer at the R and in the blocks of a preset.

    Args:
        name: One of `list_reducers()`.
        base: The preset's condensation.

    Raises:
        ConfigError: The name is unknown, or the reducer has no use for a setting of `base`.
    """
    made = REDUCERS.find(name)(base)
    if made.active and base.r != made.r:
        raise ConfigError(f"reducer {name!r} has no use for r={base.r}; r goes with reducer 'tome' or 'tofu'")
    return made


@register_reducer("none")
def none(base: Condensation) -> Condensation:
    """No condensation: every block sees every token."""
    return Condensation(R=1.0, layers=base.layers, summary=base.summary)


@register_reducer("tca")
def tca(base: Condensation) -> Condensation:
    """Token condensation as the preset sets it."""
    return base


@register_reducer("evit")
def evit(base: Condensation) -> Condensation:
    """EViT: keep ceil(R·n) tokens by head-mean class attention, fuse the rest into one; no anchors, nothing merged."""
    own = Condensation(counts="keep", merge_prune=(0, 1), K=0, pruned="fuse", score="mean")
    return _budget(own, base)


@register_reducer("tome")
def tome(base: Condensation) -> Condensation:
    """ToMe: in every block, merge the r most similar pairs of tokens by their keys; r from R at the same cost."""
    return _budget(Condensation(rule="matching", counts="even", r=base.r, proportional=True), base)


@register_reducer("tome-table")
def tome_table(base: Condensation) -> Condensation:
    """ToMe as in the paper's table: three blocks, pairs by rows of the attention, sizes unseen by the attention."""
    own = Condensation(rule="matching", counts="merge", metric="attention")
    return _budget(own, base)


@register_reducer("tofu")
def tofu(base: Condensation) -> Condensation:
    """ToFu: ToMe's pairs; of each, early blocks drop one, later blocks merge both without losing length."""
    own = Condensation(rule="fusion", counts="even", r=base.r, drop_first=base.drop_first, proportional=True)
    return _budget(own, base)


@register_reducer("pitome")
def pitome(base: Condensation) -> Condensation:
    """PiToMe: in every block, merge tokens that resemble many others, the same share each time; protect the rest."""
    return _budget(Condensation(rule="energy", counts="share", proportional=True), base)


@register_reducer("ats")
def ats(base: Condensation) -> Condensation:
    """ATS: keep the tokens that inverse transform sampling hits, at most ceil(R·n); how many depends on the image."""
    return _budget(Condensation(rule="sampling", counts="keep"), base)


def _budget(own: Condensation, base: Condensation) -> Condensation:
    """A reducer at the R and layers of a preset."""
    return replace(own, R=base.R, layers=base.layers, summary=base.summary, place=base.place)
