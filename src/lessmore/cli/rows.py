"""The rows `lessmore classify` writes, as CSV or JSON lines, and how an interrupted run finds them again."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from itertools import accumulate
from pathlib import Path
from typing import IO, Any, NamedTuple

from lessmore.cli.common import printable
from lessmore.errors import ConfigError
from lessmore.lab.report.escape import csv_line, original
from lessmore.storage.files import open_plain


@dataclass(frozen=True)
class AnswerRow:
    """One input; of one that failed only path, seen and error are set."""

    path: str
    label: str | None = None
    index: int | None = None
    score: float | None = None
    zero_shot_label: str | None = None
    changed: bool | None = None
    entropy: float | None = None
    refused: bool | None = None
    """The adapted answer was not finite; this is the plain model's."""
    seen: int = 0
    """Images the adapter had answered after this one: the row's place in the stream."""
    track: str | None = None
    """The object that this is a frame of, with --track."""
    frames: int | None = None
    """Frames of it that the answer is made of."""
    unknown: bool | None = None
    """The image is unlike all classes, with --unknown; empty for refused answers."""
    unknown_score: float | None = None
    """How unlike."""
    error: str | None = None


COLUMNS = tuple(f.name for f in fields(AnswerRow))


class Written(NamedTuple):
    """A row found in a file."""

    path: str
    seen: int
    failed: bool
    refused: bool
    end: int
    """Offset of the first byte after it."""


class Output:
    """Writes rows to a file or, for `-`, to standard output, and flushes after each."""

    def __init__(self, name: str) -> None:
        self.json = name.endswith(".jsonl")
        # Names of files need not be UTF-8; surrogateescape hands their bytes through as they are.
        if name == "-":
            self.file: IO[str] = sys.stdout
            if isinstance(self.file, io.TextIOWrapper):
                self.file.reconfigure(errors="surrogateescape")
        else:
            handle = open_plain(Path(name), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            self.file = open(handle, "a", encoding="utf-8", errors="surrogateescape", newline="")  # noqa: SIM115
        if not self.json and (name == "-" or not Path(name).stat().st_size):
            self._put(csv_line(COLUMNS))

    def write(self, row: AnswerRow) -> None:
        """Append one row."""
        values = asdict(row)
        self._put(json.dumps(values) + "\n" if self.json else csv_line(map(_plain, values.values())))

    def sync(self) -> None:
        """Put the rows on the disk; called before a state file that counts them is written."""
        if self.file is not sys.stdout:
            os.fsync(self.file.fileno())

    def close(self) -> None:
        """Close the file."""
        if self.file is not sys.stdout:
            self.file.close()

    def _put(self, text: str) -> None:
        self.file.write(printable(text) if self.file.isatty() else text)
        self.file.flush()


def _plain(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def read_answers(path: Path) -> list[Written]:
    """The complete rows of an output file; a last one that was cut off is left out."""
    data = b""
    if os.path.lexists(path):
        with open(open_plain(path, os.O_RDONLY), "rb") as file:
            data = file.read()
    # Not splitlines: a lone carriage return is part of some file's name. What follows the last \n was cut off.
    lines = [line + b"\n" for line in data.split(b"\n")[:-1]]
    return list(_json_rows(lines, path) if path.suffix == ".jsonl" else _csv_rows(lines, path))


def _json_rows(lines: list[bytes], path: Path) -> Iterator[Written]:
    end = 0
    for line in lines:
        end += len(line)
        try:
            row = json.loads(line)
            yield Written(row["path"], int(row["seen"]), row["error"] is not None, row["refused"] is True, end)
        except (ValueError, KeyError, TypeError) as error:
            raise _not_ours(path) from error


def _csv_rows(lines: list[bytes], path: Path) -> Iterator[Written]:
    reader = csv.reader(line.decode("utf-8", "surrogateescape") for line in lines)
    ends = list(accumulate(map(len, lines)))
    if tuple(next(reader, COLUMNS)) != COLUMNS:
        raise _not_ours(path)
    for row in _unless_broken(reader, path):
        if len(row) != len(COLUMNS) and reader.line_num == len(lines):
            return  # cut off inside a quoted field
        named = dict(zip(COLUMNS, row, strict=False))
        if len(row) != len(COLUMNS) or not named["seen"].isdigit():
            raise _not_ours(path)
        failed, refused = bool(named["error"]), named["refused"] == "true"
        yield Written(original(named["path"]), int(named["seen"]), failed, refused, ends[reader.line_num - 1])


def _unless_broken(reader: Iterator[list[str]], path: Path) -> Iterator[list[str]]:
    try:
        yield from reader
    except csv.Error as error:
        raise _not_ours(path) from error


def _not_ours(path: Path) -> ConfigError:
    return ConfigError(f"{path} exists and was not written by lessmore classify; choose another output file")
