"""One run on disk: the request, a line per sample, the checkpoint it resumes from, and the summary.

    spec.json                the request, and everything the key was computed from
    samples.jsonl            a line per sample: no clock, so that the same run gives the same bytes
    timings.jsonl            a line per sample: how long it took
    checkpoint.safetensors   the method's state after `cursor` samples, and how long the two files were then
    summary.json             written once, at the end

Lines are on disk before a checkpoint that counts them. After a crash the files are cut back to the checkpoint, and
whatever came later, including half a line, is done again.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from filelock import FileLock, Timeout
from torch import Tensor

from lessmore.errors import StateError
from lessmore.storage.files import write_json
from lessmore.storage.state import Form, Problem, finite_problem, read_state, write_state

SampleRow = dict[str, Any]
_REMEDY = "start this run again with --overwrite"
_NOTHING = {"cursor": 0, "samples": 0, "timings": 0}


class Checkpoint(NamedTuple):
    """Where a run resumes."""

    cursor: int
    """Samples done."""
    state: dict[str, Tensor]
    """The method's state after them."""


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StateError(
            f"cannot write to {folder} ({error.strerror or error}); make room there or choose a folder you may write "
            "to; what is there stays, and the same command goes on from it"
        ) from error


class Log:
    """A file of JSON lines that only grows; each line goes to the operating system at once."""

    def __init__(self, path: Path, keep: int) -> None:
        """Open a log and cut it back.

        Args:
            path: The file; created if it does not exist.
            keep: Bytes to keep.

        Raises:
            StateError: The file is shorter than that.
        """
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        self.size = keep
        if os.fstat(self._handle).st_size < keep:
            self.close()
            raise StateError(f"{path} is shorter than its checkpoint says; start this run again with --overwrite")
        os.ftruncate(self._handle, keep)

    def append(self, row: SampleRow) -> None:
        """Add one line."""
        line = (json.dumps(row) + "\n").encode()
        if os.write(self._handle, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.size += len(line)

    def sync(self) -> None:
        """Flush all lines to the disk."""
        os.fsync(self._handle)

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)


class Store:
    """A run's folder, held by one process at a time; used in a `with` block."""

    def __init__(self, folder: Path, key: str) -> None:
        self.folder = folder
        self.key = key
        self._lock = FileLock(folder / ".lock")
        self._samples: Log
        self._timings: Log

    def __enter__(self) -> Store:
        with _writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                self._lock.acquire(timeout=0)
            except Timeout as error:
                raise StateError(
                    f"another process is working on {self.folder}; wait until it ends, or choose another --output"
                ) from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for log in ("_samples", "_timings"):
            if hasattr(self, log):
                getattr(self, log).close()
        self._lock.release()

    def begin(
        self, header: SampleRow, anew: bool, like: Mapping[str, Form] | None = None, problem: Problem = finite_problem
    ) -> Checkpoint:
        """Make ready to append: the files are cut back to the last checkpoint, from which the run goes on.

        Args:
            header: What spec.json is to say of a run that begins.
            anew: Forget what is there.
            like: The forms of the method's state.
            problem: Says why tensors cannot be such a state.
        """
        path = self.folder / "checkpoint.safetensors"
        with _writing(self.folder):
            if anew:
                for name in ("summary.json", path.name, "spec.json"):
                    (self.folder / name).unlink(missing_ok=True)
            for left in self.folder.glob(".*.new"):  # by a process that was killed while it wrote
                left.unlink()
            if not (self.folder / "spec.json").exists():
                write_json(self.folder / "spec.json", header)
        begun = path.exists()
        identity, like = {"key": self.key}, like or {}
        state, facts = read_state(path, identity, like, problem, _REMEDY) if begun else ({}, dict(_NOTHING))
        with _writing(self.folder):
            self._samples = Log(self.folder / "samples.jsonl", facts["samples"])
            self._timings = Log(self.folder / "timings.jsonl", facts["timings"])
        return Checkpoint(facts["cursor"], state)

    def header(self) -> SampleRow:
        """What spec.json says: as the run was begun."""
        header: SampleRow = json.loads((self.folder / "spec.json").read_text(encoding="utf-8"))
        return header

    def append(self, sample: SampleRow, timing: SampleRow) -> None:
        """Add one sample's lines.

        Args:
            sample: For samples.jsonl.
            timing: For timings.jsonl.

        Raises:
            StateError: The folder cannot be written to.
        """
        with _writing(self.folder):
            self._samples.append(sample)
            self._timings.append(timing)

    def checkpoint(self, cursor: int, state: Mapping[str, Tensor]) -> None:
        """Store the method's state.

        Args:
            cursor: Samples done so far.
            state: The method's state after them.

        Raises:
            StateError: The folder cannot be written to.
        """
        facts = {"cursor": cursor, "samples": self._samples.size, "timings": self._timings.size}
        with _writing(self.folder):
            self._samples.sync()
            self._timings.sync()
        write_state(self.folder / "checkpoint.safetensors", state, {"key": self.key}, facts)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the summary. The run is then done, and its checkpoint is removed."""
        with _writing(self.folder):
            self._samples.sync()
            self._timings.sync()
            write_json(self.folder / "summary.json", summary)
            (self.folder / "checkpoint.safetensors").unlink(missing_ok=True)

    def rows(self, name: str = "samples.jsonl") -> list[SampleRow]:
        """The lines of a file, as far as it is written."""
        return read_rows(self.folder / name)


def read_rows(path: Path) -> list[SampleRow]:
    """The complete lines of a JSONL file; one that was cut off is left out."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def read_summary(folder: Path) -> dict[str, Any] | None:
    """The summary of a finished run, or None. No lock is needed, because it is written atomically."""
    path = folder / "summary.json"
    try:
        summary: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise StateError(f"{path} cannot be read ({error}); start this run again with --overwrite") from error
    return summary
