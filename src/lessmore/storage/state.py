"""Saved states: tensors in one sealed file that says what it belongs to. No code is ever loaded from it.

A state is used only if all of it is as this version would have written it: the seal, what it belongs to, the names,
types and shapes of its tensors, and what its numbers can be.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from lessmore.errors import StateError
from lessmore.storage.sealed import read_tensors, write_tensors

SCHEMA = "lessmore.state/7"
REMEDY = "restore another copy, or start with reset()"
"""What to do about a state that cannot be restored."""
_HEADER = 1 << 26
"""Bytes that names and facts may take together."""
_LARGEST = 10**12
"""Images of a stream: thirty years at a thousand a second."""

Problem = Callable[[Mapping[str, Tensor]], str | None]
"""Why tensors of the right form cannot be a state; None if they can."""

Counts = TypeVar("Counts")
LATER = MappingProxyType({"later": True})
"""Metadata of a field of counts that files written before it do not have."""


class Form(NamedTuple):
    """What a tensor of a state looks like."""

    dtype: torch.dtype
    shape: tuple[int | range, ...]
    """Lengths of the dimensions; a range if several are possible."""
    required: bool = True

    def fits(self, tensor: Tensor) -> bool:
        """Whether a tensor looks like this."""
        if tensor.dtype != self.dtype or tensor.ndim != len(self.shape):
            return False
        pairs = zip(tensor.shape, self.shape, strict=True)
        return all(length in allowed if isinstance(allowed, range) else length == allowed for length, allowed in pairs)

    def most(self) -> int:
        """Bytes that it can take."""
        lengths = (allowed[-1] if isinstance(allowed, range) else allowed for allowed in self.shape)
        return math.prod(lengths) * self.dtype.itemsize


def state_forms(state: Mapping[str, Tensor]) -> dict[str, Form]:
    """The forms of tensors whose shapes never change, by name."""
    return {name: Form(tensor.dtype, tuple(tensor.shape)) for name, tensor in state.items()}


def finite_problem(state: Mapping[str, Tensor]) -> str | None:
    """The `Problem` of most states: every number must be finite."""
    for name, tensor in state.items():
        if not bool(tensor.isfinite().all()):
            return f"{name} has a number that is not finite"
    return None


def finite_but(*names: str) -> Problem:
    """A `Problem` that lets the named tensors be infinite, as the entropies of empty slots are, but never NaN."""

    def problem(state: Mapping[str, Tensor]) -> str | None:
        odd = [name for name in names if name in state and bool(state[name].isnan().any())]
        rest = {name: tensor for name, tensor in state.items() if name not in names}
        return f"{odd[0]} has a number that is NaN" if odd else finite_problem(rest)

    return problem


def write_state(
    path: Path, tensors: Mapping[str, Tensor], identity: Mapping[str, Any], facts: Mapping[str, Any]
) -> None:
    """Write a state, atomically.

    Args:
        path: The file.
        tensors: The state, by name.
        identity: What the reader must have in common: model, classes, prompts, settings.
        facts: What else is stored, such as counts; not compared.

    Raises:
        StateError: The file cannot be written.
    """
    try:
        write_tensors(path, tensors, SCHEMA, {"identity": identity, "facts": facts})
    except OSError as error:
        raise StateError(
            f"cannot write {path}: {error.strerror or error}; make room there or choose a folder you may write to"
        ) from error


def read_state(
    path: Path,
    identity: Mapping[str, Any],
    like: Mapping[str, Form],
    problem: Problem = finite_problem,
    remedy: str = REMEDY,
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and facts of a file of `write_state`, all of them checked.

    Args:
        path: The file.
        identity: What the file must agree with, item by item.
        like: The form that each tensor must have, by name.
        problem: Rejects numbers that no state can hold.
        remedy: What to do if the file cannot be used; ends the sentence of the error.

    Raises:
        StateError: The file is missing, damaged, of another version, belongs to something else, or makes no sense.
    """
    limit = _HEADER + sum(form.most() for form in like.values())
    try:
        tensors, about = read_tensors(path, SCHEMA, limit, remedy)
    except FileNotFoundError as error:
        raise StateError(f"{path} does not exist; save a state there first") from error
    theirs, facts = about.get("identity"), about.get("facts")
    if not isinstance(theirs, dict) or not isinstance(facts, dict):
        raise StateError(f"{path} does not say what it belongs to; {remedy}")
    for name, ours in identity.items():
        if theirs.get(name) != ours:
            raise StateError(f"{path} was saved {_difference(name, theirs.get(name), ours)}")
    reason = form_problem(tensors, like) or problem(tensors)
    if reason:
        raise StateError(f"{path} makes no sense: {reason}; {remedy}")
    return tensors, facts


def read_counts(kind: type[Counts], value: Any, path: str | Path) -> Counts:
    """Counts from a file as the dataclass that they were written from.

    Args:
        kind: A dataclass of numbers, each 0 or more and with a default.
        value: What `dataclasses.asdict` made of one.
        path: The file, for the error.

    Raises:
        StateError: They are not such counts.
    """
    usual = {field.name: type(field.default) for field in fields(kind)}  # type: ignore[arg-type]
    if isinstance(value, dict):
        later = {field.name: field.default for field in fields(kind) if field.metadata == LATER}  # type: ignore[arg-type]
        value = later | value
    if not isinstance(value, dict) or {name: type(one) for name, one in value.items()} != usual:
        raise StateError(f"{path} makes no sense: its counts are not those of this version; {REMEDY}")
    most = {int: _LARGEST, float: sys.float_info.max}
    if not all(0 <= one <= most[type(one)] for one in value.values()):
        raise StateError(f"{path} makes no sense: a count is out of range; {REMEDY}")
    return kind(**value)


def form_problem(tensors: Mapping[str, Tensor], like: Mapping[str, Form]) -> str | None:
    """What is wrong with names, types and shapes; None if nothing is.

    Args:
        tensors: Tensors by name.
        like: The form that each must have.
    """
    for name, tensor in tensors.items():
        if name not in like:
            return f"it has a tensor {name!r} too many"
        if not like[name].fits(tensor):
            return f"{name} is {_look(tensor.dtype, tensor.shape)}, not {_look(like[name].dtype, like[name].shape)}"
    missing = [name for name, form in like.items() if form.required and name not in tensors]
    return f"it has no tensor {missing[0]!r}" if missing else None


def _look(dtype: torch.dtype, shape: tuple[int | range, ...]) -> str:
    lengths = (f"{one[0]}–{one[-1]}" if isinstance(one, range) else str(one) for one in shape)
    return f"{str(dtype).removeprefix('torch.')} [{', '.join(lengths)}]"


def _difference(name: str, theirs: Any, ours: Any) -> str:
    """The end of the sentence that says why a state is refused."""
    if name == "model":
        return "with another model (its weights differ); load that model, or start with reset()"
    if name == "classes" and isinstance(theirs, list):
        known = [str(one) for one in theirs]
        new, old = sorted(set(ours) - set(known)), sorted(set(known) - set(ours))
        detail = f"missing here: {old[:3]}, new here: {new[:3]}" if new or old else "same names in another order"
        return f"for another class list ({len(theirs)} classes against {len(ours)}; {detail})"
    if name == "prompts":
        return "with other prompt templates; pass the same templates, or start with reset()"
    if name == "algorithm":
        return "by a version of lessmore that gives other answers; start with reset()"
    if name == "key":
        return "for another run; start this one again with --overwrite"
    return f"with {name}={theirs!r}, this adapter has {name}={ours!r}"
