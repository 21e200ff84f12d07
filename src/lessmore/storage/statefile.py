"""Saved states: one safetensors file whose header says what it belongs to. No code is ever loaded from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from lessmore.errors import StateError
from lessmore.storage.files import write_safetensors

SCHEMA = "lessmore.state/5"


def write_state(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write tensors and facts, atomically."""
    metadata = {"schema": SCHEMA, "facts": json.dumps(facts, sort_keys=True)}
    try:
        write_safetensors(path, tensors, metadata)
    except OSError as error:
        raise StateError(
            f"cannot write {path}: {error.strerror}; make room there or choose a folder you may write to"
        ) from error


def read_state(path: Path, identity: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and facts of a file, refused with the reason unless it shares `identity`."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
    except FileNotFoundError as error:
        raise StateError(f"{path} does not exist; save a state there first") from error
    except (SafetensorError, OSError) as error:
        raise StateError(f"{path} is not a readable state file ({error}); restore from another copy") from error
    if metadata.get("schema") != SCHEMA:
        raise StateError(
            f"{path} has schema {metadata.get('schema')!r}, this version reads {SCHEMA!r}; start with reset()"
        )
    facts: dict[str, Any] = json.loads(metadata["facts"])
    for name, ours in identity.items():
        if facts.get(name) != ours:
            raise StateError(f"{path} was saved {_difference(name, facts.get(name), ours)}")
    return tensors, facts


def _difference(name: str, theirs: Any, ours: Any) -> str:
    """The end of the sentence that says why a state is refused."""
    if name == "model":
        return "with another model (its weights differ); load that model, or start with reset()"
    if name == "classes":
        new, old = sorted(set(ours) - set(theirs)), sorted(set(theirs) - set(ours))
        detail = f"missing here: {old[:3]}, new here: {new[:3]}" if new or old else "same names in another order"
        return f"for another class list ({len(theirs)} classes against {len(ours)}; {detail})"
    if name == "prompts":
        return "with other prompt templates; pass the same templates, or start with reset()"
    return f"with {name}={theirs!r}, this adapter has {name}={ours!r}"
