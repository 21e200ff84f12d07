"""Everything that is mutated, by the words of the table in docs/hardening.md."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.fuzz import images, learned, listed, names, runs, served, states, typed
from tests.fuzz.outcomes import Trial

KINDS: dict[str, Callable[[Path, bool], Trial]] = {
    "state files": states.state_files,
    "states with tracks, after the class list changed": states.states_after_changes,
    "streams of a server in a folder": served.folder_streams,
    "streams of a server behind a URL": served.object_streams,
    "registry of a server in SQLite": listed.registry_files,
    "learned contexts, used or trained on": learned.learned_contexts,
    "class-embedding cache": states.class_embedding_cache,
    "encoding cache, through a run": states.encoding_cache,
    "interrupted runs, resumed": runs.interrupted_runs,
    "finished runs: build, report, run": runs.finished_runs,
    "YAML, manifests, class lists, keys, rows, options": typed.typed_files,
    "images": images.image_files,
    "special inputs": images.special_inputs,
    "hostile names in pages and tables": names.hostile_names,
}
