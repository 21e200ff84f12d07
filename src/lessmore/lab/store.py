"""One run on disk: the request, a line per sample, the checkpoint it resumes from, and the summary.

    spec.json                the request, and everything the key was computed from
    samples.jsonl            a line per sample: no clock, so that the same run gives the same bytes
    timings.jsonl            a line per sample: how long it took
    checkpoint.safetensors   the method's state after `cursor` samples, and how long the two files were then
    summary.json             written once, at the end

Lines are on the disk before a checkpoint that counts them. After a crash the files are cut back to the checkpoint, so
that whatever came later, half a line included, is done again. Every file is sealed, and checkpoint and summary vouch
for the lines, so that nothing that was changed is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from filelock import FileLock, Timeout
from torch import Tensor

from lessmore.errors import StateError
from lessmore.lab.journal import REMEDY, Journal, JournalMark, SampleRow, read_mark, read_rows
from lessmore.lab.run_check import check_samples, check_timings, header_problem, summary_problem
from lessmore.storage.sealed import read_json, write_sealed_json
from lessmore.storage.state import Form, Problem, finite_problem, read_state, write_state

SCHEMA = "lessmore.run/2"
_JOURNALS = ("samples", "timings")


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


class Store:
    """A run's folder, held by one process at a time; used in a `with` block."""

    def __init__(self, folder: Path, key: str) -> None:
        self.folder = folder
        self.key = key
        self._lock = FileLock(folder / ".lock")
        self._journals: dict[str, Journal] = {}

    def __enter__(self) -> Store:
        with _writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            if self.folder.is_symlink():
                raise StateError(f"{self.folder} is a link; remove it, or choose another --output")
            try:
                self._lock.acquire(timeout=0)
            except Timeout as error:
                raise StateError(
                    f"another process is working on {self.folder}; wait until it ends, or choose another --output"
                ) from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for journal in self._journals.values():
            journal.close()
        self._lock.release()

    def begin(
        self,
        header: SampleRow,
        restart: bool,
        like: Mapping[str, Form] | None = None,
        problem: Problem = finite_problem,
    ) -> Checkpoint:
        """Make ready to append: the files are cut back to the last checkpoint, from which the run goes on.

        Args:
            header: What spec.json is to say of a run that begins.
            restart: Forget what is there.
            like: The forms of the method's state.
            problem: Says why tensors cannot be such a state.
        """
        path = self.folder / "checkpoint.safetensors"
        with _writing(self.folder):
            if restart:
                for name in ("summary.json", path.name, "spec.json"):
                    (self.folder / name).unlink(missing_ok=True)
            for left in self.folder.glob(".*.new"):  # by a process that was killed while it wrote
                left.unlink()
            if not (self.folder / "spec.json").exists():
                write_sealed_json(self.folder / "spec.json", header)
        self.header()  # is it whole?
        if path.exists():
            state, facts = read_state(path, {"key": self.key}, like or {}, problem, REMEDY)
            cursor, marks = facts.get("cursor"), {name: read_mark(facts.get(name), path) for name in _JOURNALS}
        else:
            state, cursor, marks = {}, 0, dict.fromkeys(_JOURNALS, JournalMark())
        with _writing(self.folder):
            for name, mark in marks.items():
                self._journals[name] = Journal(self.folder / f"{name}.jsonl", mark)
        return Checkpoint(self._checked(path, cursor, header), state)

    def _checked(self, path: Path, cursor: Any, header: SampleRow) -> int:
        """The cursor of a checkpoint, if it and the journals can have been left by a run like this one."""
        samples, timings = self.rows(), self.timings()
        if type(cursor) is not int or not cursor == len(samples) == len(timings):
            raise StateError(f"{path} makes no sense: it does not count its samples; {REMEDY}")
        check_samples(samples, self.folder / "samples.jsonl", len(header["classes"]))
        check_timings(timings, self.folder / "timings.jsonl")
        return cursor

    def header(self) -> SampleRow:
        """What spec.json says: as the run was begun."""
        return read_header(self.folder, self.key)

    def append(self, sample: SampleRow, timing: SampleRow) -> None:
        """Add one sample's lines.

        Args:
            sample: For samples.jsonl.
            timing: For timings.jsonl.

        Raises:
            StateError: The folder cannot be written to.
        """
        with _writing(self.folder):
            self._journals["samples"].append(sample)
            self._journals["timings"].append(timing)

    def checkpoint(self, cursor: int, state: Mapping[str, Tensor]) -> None:
        """Store the method's state.

        Args:
            cursor: Samples done so far.
            state: The method's state after them.

        Raises:
            StateError: The folder cannot be written to.
        """
        write_state(
            self.folder / "checkpoint.safetensors", state, {"key": self.key}, {"cursor": cursor, **self._synced()}
        )

    def finish(self, summary: Mapping[str, Any]) -> dict[str, Any]:
        """Write the summary and return what it says. The run is then done, and its checkpoint is removed."""
        vouched = {**summary, "journals": self._synced()}
        with _writing(self.folder):
            write_sealed_json(self.folder / "summary.json", vouched)
            (self.folder / "checkpoint.safetensors").unlink(missing_ok=True)
        return vouched

    def _synced(self) -> dict[str, list[Any]]:
        """The marks of the journals, once all of their lines are on the disk."""
        with _writing(self.folder):
            for journal in self._journals.values():
                journal.sync()
        return {name: list(journal.mark) for name, journal in self._journals.items()}

    def rows(self) -> list[SampleRow]:
        """The samples' lines so far."""
        return self._journals["samples"].rows()

    def timings(self) -> list[SampleRow]:
        """The timings' lines so far."""
        return self._journals["timings"].rows()


def read_samples(folder: Path, summary: Mapping[str, Any]) -> list[SampleRow]:
    """The samples of a finished run.

    Args:
        folder: The run's folder.
        summary: Its summary, as `read_summary` gives it.

    Raises:
        StateError: They are not those that the summary was made of, or make no sense.
    """
    path, journals = folder / "samples.jsonl", summary.get("journals")
    mark = read_mark(journals.get("samples") if isinstance(journals, dict) else None, folder / "summary.json")
    rows = read_rows(path, mark)
    check_samples(rows, path, summary["dataset"]["classes"])
    return rows


def read_header(folder: Path, key: str) -> SampleRow:
    """What a run was begun with.

    Args:
        folder: The run's folder.
        key: The run's key.

    Raises:
        StateError: spec.json is missing, damaged, of another run, or makes no sense.
    """
    path = folder / "spec.json"
    try:
        header = read_json(path, SCHEMA, REMEDY)
    except FileNotFoundError as error:
        raise StateError(f"there is no {path}; {REMEDY}") from error
    problem = header_problem(header) or (None if header["key"] == key else "it is of another run")
    if problem:
        raise StateError(f"{path} makes no sense: {problem}; {REMEDY}")
    return header


def read_summary(folder: Path, name: str = "summary.json") -> dict[str, Any] | None:
    """The summary of a finished run, or None; needs no lock, for it is there as a whole or not at all.

    Args:
        folder: The run's folder.
        name: The summary's file in it.

    Raises:
        StateError: It is damaged, of another version, or makes no sense.
    """
    path = folder / name
    try:
        summary = read_json(path, SCHEMA, REMEDY)
    except FileNotFoundError:
        return None
    problem = summary_problem(summary)
    if problem:
        raise StateError(f"{path} makes no sense: {problem}; {REMEDY}")
    return summary
