"""Folders of runs on disk: which exist, which are finished, and what they hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from lessmore.errors import ConfigError, StateError
from lessmore.lab.journal import REMEDY, SampleRow
from lessmore.lab.report.tables import SummaryView
from lessmore.lab.store import read_header, read_samples, read_summary

_MARKS = ("spec", "summary")


@dataclass(frozen=True)
class Finished:
    """A finished run; everything but its summary is read on demand."""

    folder: Path
    summary: SummaryView

    @cached_property
    def rows(self) -> list[SampleRow]:
        """A row per sample, in the order of the stream.

        Raises:
            StateError: The samples are damaged, or not those of the summary.
        """
        rows = read_samples(self.folder, self.summary)
        found, right = self.summary["metrics"], [row for row in rows if "error" not in row]
        hits = sum(row["prediction"] == row["label"] for row in right)
        if found["n"] != len(right) or abs(found["accuracy"] * len(right) - hits) > 1e-6 * len(rows):
            raise StateError(f"{self.folder} makes no sense: its summary is not that of its samples; {REMEDY}")
        return rows

    @cached_property
    def header(self) -> SummaryView:
        """What was asked, as spec.json has it; raises `StateError` where that is damaged."""
        header = read_header(self.folder, self.summary["key"])
        if len(header["classes"]) != self.summary["dataset"]["classes"]:
            raise StateError(f"{self.folder} makes no sense: it names other classes than it counts; {REMEDY}")
        return header

    def check(self) -> None:
        """Read everything now; raises `StateError` if that is impossible."""
        _ = self.rows, self.header


def find_runs(paths: Sequence[Path]) -> tuple[list[Finished], list[str]]:
    """Finished runs in these folders at any depth, each once; and the names of the others with the reason."""
    files = {file.resolve(): file for path in paths for file in _summary_files(path)}
    found: dict[str, Finished] = {}
    left_out = []
    for file in files.values():
        summary, problem = _read(file)
        if problem:
            left_out.append(f"{file.parent.name} ({problem})")
        else:
            found[summary["key"]] = Finished(file.parent, summary)
    if not found:
        raise ConfigError(
            f"there is no finished run in {', '.join(map(str, paths))}; give the --output of lessmore run"
        )
    return list(found.values()), left_out


def _summary_files(path: Path) -> Iterator[Path]:
    """Paths of summaries, including those that unfinished runs would have."""
    if path.is_file():
        yield path
    elif path.is_dir():
        yield from sorted({file.parent / "summary.json" for file in path.rglob("s*.json") if file.stem in _MARKS})
    else:
        raise ConfigError(f"there is no file or folder {path}; check the path")


def _read(file: Path) -> tuple[dict[str, Any], str]:
    try:
        summary = read_summary(file.parent, file.name)
    except StateError as error:
        return {}, str(error).removeprefix(f"{file} ").rpartition(";")[0]
    if summary is None:
        return {}, "not finished"
    return summary, "" if summary["metrics"]["n"] else "no image could be read"
