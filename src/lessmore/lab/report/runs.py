"""Folders of runs on disk: which exist, which are finished, and what they hold."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from lessmore.errors import ConfigError, StateError
from lessmore.lab.report.tables import SummaryView
from lessmore.lab.store import SampleRow, read_rows

SCHEMA = "lessmore.run/1"
_MARKS = ("spec", "summary")
_PARTS = ("key", "spec", "dataset", "metrics", "provenance")


@dataclass(frozen=True)
class Finished:
    """A finished run; everything but its summary is read on demand."""

    folder: Path
    summary: SummaryView

    @cached_property
    def rows(self) -> list[SampleRow]:
        """A row per sample, in the order of the stream."""
        rows = self._read(read_rows, "samples.jsonl")
        if not rows:
            raise StateError(f"{self.folder} has no samples.jsonl; give the whole folder that lessmore run wrote")
        return list(rows)

    @cached_property
    def header(self) -> SummaryView:
        """The request, from spec.json."""
        header: SummaryView = self._read(lambda path: json.loads(path.read_text(encoding="utf-8")), "spec.json")
        return header

    def check(self) -> None:
        """Read everything now; raises `StateError` if that is impossible."""
        _ = self.rows, self.header

    def _read(self, read: Callable[[Path], Any], name: str) -> Any:
        try:
            return read(self.folder / name)
        except (OSError, ValueError) as error:
            raise StateError(f"{self.folder / name} cannot be read ({error}); do this run again") from error


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
        summary = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}, "not finished"
    except (OSError, ValueError):
        return {}, "not readable"
    if not isinstance(summary, dict) or summary.get("schema") != SCHEMA or not all(part in summary for part in _PARTS):
        return {}, f"not a summary of the form {SCHEMA}"
    return summary, "" if summary["metrics"]["n"] else "no image could be read"
