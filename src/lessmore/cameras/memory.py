"""What a watch keeps of its sources: a state file for each, which also says where the source stood.

State and place are one file, so that neither can be newer than the other.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lessmore.adapter import Adapter
from lessmore.cameras.reader import START, SourcePlace, place_of
from lessmore.cameras.source import FrameSource
from lessmore.engines.stream_file import write_stream
from lessmore.errors import ConfigError, StateError
from lessmore.storage.sealed import read_facts
from lessmore.storage.state import REMEDY, SCHEMA

MOST_FILES = 400_000
"""Images of a folder whose names fit into a state file."""


@dataclass
class Kept:
    """Where a source stands."""

    place: SourcePlace = START
    answers: int = 0
    """Frames answered, those with errors included."""
    files: set[str] = field(default_factory=set)
    """Images of a folder that were answered."""
    ended: bool = False
    """Whether a file was answered to its end."""


class Memory:
    """State files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, source: FrameSource) -> Path:
        """The state file of a source."""
        return self.folder / f"{source.name}.safetensors"

    def save(self, source: FrameSource, adapter: Adapter, kept: Kept) -> None:
        """Write the state of a source and where it stands, atomically.

        Args:
            source: The source.
            adapter: Its stream.
            kept: Where it stands.

        Raises:
            StateError: It cannot be written.
        """
        if len(kept.files) > MOST_FILES:
            raise StateError(f"{source.address} has had more than {MOST_FILES} images; watch folders by the day, say")
        note = {
            "kind": source.kind,
            "size": _size(source),
            "place": kept.place.as_facts(),
            "answers": kept.answers,
            "files": sorted(kept.files),
            "ended": kept.ended,
        }
        write_stream(self.path(source), adapter.answerer, adapter.identity, note)

    def load(self, source: FrameSource, adapter: Adapter) -> Kept:
        """Let a stream go on from its state file; a source without one begins.

        Args:
            source: The source.
            adapter: Its stream.

        Raises:
            ConfigError: The file belongs to another kind of source, or the video has changed.
            StateError: The file is damaged or belongs to another model, class list or setting.
        """
        path = self.path(source)
        if not path.exists():
            return Kept()
        adapter.restore(path)
        try:
            return self._kept(source, read_facts(path, SCHEMA)["facts"]["note"])
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, ConfigError):
                raise
            raise StateError(f"{path} does not say where its source stands ({error}); {REMEDY}") from error

    def _kept(self, source: FrameSource, note: Any) -> Kept:
        if not isinstance(note, dict) or note["kind"] != source.kind:
            raise ConfigError(
                f"{self.path(source)} is of another kind of source; give this one another name: NAME={source.shown}"
            )
        if source.kind == "file" and note["size"] != _size(source):
            raise ConfigError(
                f"{source.address} has changed since its state was saved; give it another name: NAME={source.address}"
            )
        answers, files = note["answers"], note["files"]
        if type(answers) is not int or answers < 0:
            raise ValueError("its counts are missing")
        if not isinstance(files, list) or not all(isinstance(one, str) for one in files):
            raise ValueError("the names of its images are missing")
        return Kept(place_of(note["place"], source.live), answers, set(files), note["ended"] is True)


def _size(source: FrameSource) -> int | None:
    return os.path.getsize(source.address) if source.kind == "file" else None
