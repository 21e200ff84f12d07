"""The state file of one stream: what its method has learned, and what is kept beside it to answer as before.

Beside the state are the counts, the tracks, and what tells unknown images. A file is checked as a whole before any of
it is used.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lessmore.core.algorithm import algorithm
from lessmore.engines.answers import Answerer, read_health
from lessmore.engines.precision import name_of, precision_key
from lessmore.engines.tracks import TENSOR, Tracks, beside_tracks, track_forms
from lessmore.errors import StateError
from lessmore.methods import Setup, method_options
from lessmore.methods.saved import forms_of, problem_of
from lessmore.models.class_list import ClassList
from lessmore.storage.state import REMEDY, read_state, write_state


def write_stream(path: Path, answerer: Answerer, identity: Callable[[], Mapping[str, Any]], note: Any = None) -> None:
    """Write a stream's state, atomically.

    Args:
        path: The file.
        answerer: What answers the stream.
        identity: Says what a reader must have in common with it at that moment.
        note: What else to keep in the file, in values that JSON keeps; whoever continues the stream leaves it alone.

    Raises:
        StateError: The file cannot be written.
    """
    with answerer.turns:  # everything of the same moment
        tensors, health = answerer.state()
        sums, tracks = answerer.tracks.saved()
        facts = {"health": asdict(health), "tracks": tracks, "unknown": answerer.gate.saved()}
        facts["engine"] = answerer.engine  # for information: a state may go on with another
        facts |= {} if note is None else {"note": note}
        common = identity()
    write_state(path, tensors | sums, common, facts)


def read_stream(path: Path, answerer: Answerer, identity: Callable[[], Mapping[str, Any]]) -> None:
    """Let a stream continue from a file of `write_stream`. If the file is refused, the stream stays as it is.

    Args:
        path: The file.
        answerer: What answers the stream.
        identity: Says what the file must agree with at that moment.

    Raises:
        StateError: The file is damaged, or belongs to something else.
    """
    with answerer.turns:
        _read(path, answerer, identity())


def stream_identity(classes: ClassList, method: str, setup: Setup) -> dict[str, Any]:
    """What a state must share with a stream to be its own, in values that JSON keeps as they are.

    Args:
        classes: The class list, with its model.
        method: Name of the method.
        setup: What the method is built from.
    """
    options = method_options(method, setup.options)
    identity = {
        "model": classes.vlm.fingerprint(),
        "classes": list(classes.names),
        "prompts": classes.written,
        "method": method,
        "options": {} if options is None else asdict(options),
        **asdict(setup.preset.condensation),
        **asdict(setup.preset.adaptation),
        "precision": precision_key(setup.precision or name_of(classes.vlm.dtype), setup.calibration),
        "algorithm": algorithm(),
    }
    plain: dict[str, Any] = json.loads(json.dumps(identity))
    return plain


def _read(path: Path, answerer: Answerer, identity: Mapping[str, Any]) -> None:
    forms = forms_of(answerer.method) | track_forms(len(answerer.setup.text))
    tensors, facts = read_state(path, identity, forms, beside_tracks(problem_of(answerer.method_name)))
    counts, tracks = read_health(facts.get("health"), path), Tracks()
    gate = answerer.gate.restored(facts.get("unknown"))
    if not tracks.restored(tensors, facts.get("tracks")):
        raise StateError(f"{path} makes no sense: its tracks do not fit together; {REMEDY}")
    if gate is None:
        raise StateError(f"{path} makes no sense: its scores of unknown images are none; {REMEDY}")
    tensors.pop(TENSOR, None)
    before = answerer.state()
    try:
        answerer.restore(tensors, counts)
    except Exception as error:  # a method of somebody else's that cannot use what it once gave
        answerer.restore(*before)
        raise StateError(f"{path} cannot be restored ({error}); start with reset()") from error
    answerer.tracks, answerer.gate = tracks, gate
