"""The rows `lessmore classify` and `watch` write, as CSV or JSON lines, and how an interrupted run finds them again."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import accumulate
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from lessmore.cli.common import printable
from lessmore.errors import ConfigError
from lessmore.lab.report.escape import csv_line, original
from lessmore.storage.files import open_plain

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


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

    def __init__(self, name: str, columns: Sequence[str] = COLUMNS, as_json: bool = False) -> None:
        """Open the file, and write the head of a CSV that has none.

        Args:
            name: The file, or `-`.
            columns: Fields of the rows.
            as_json: Whether standard output gets JSON lines; a file's ending says what it gets.
        """
        self.json = as_json if name == "-" else name.endswith(".jsonl")
        # Names of files need not be UTF-8; surrogateescape hands their bytes through as they are.
        if name == "-":
            self.file: IO[str] = sys.stdout
            if isinstance(self.file, io.TextIOWrapper):
                self.file.reconfigure(errors="surrogateescape")
        else:
            handle = open_plain(Path(name), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            self.file = open(handle, "a", encoding="utf-8", errors="surrogateescape", newline="")  # noqa: SIM115
        if not self.json and (name == "-" or not Path(name).stat().st_size):
            self._put(csv_line(columns))

    def write(self, row: DataclassInstance) -> None:
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
    """The complete rows of an output file of `lessmore classify`; a last one that was cut off is left out."""
    return list(_answers(path))


def _answers(path: Path) -> Iterator[Written]:
    for row, end in complete_rows(path, COLUMNS, "lessmore classify"):
        try:
            yield Written(row["path"], int(row["seen"]), bool(row["error"]), row["refused"] in (True, "true"), end)
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise not_ours(path, "lessmore classify") from error


def complete_rows(path: Path, columns: Sequence[str], command: str) -> Iterator[tuple[Mapping[str, Any], int]]:
    """The complete rows of an output file, each with the offset after it; a last one that was cut off is left out.

    Args:
        path: The file, CSV or JSON lines by its ending. One that is missing has no rows.
        columns: Fields of the rows. Values of CSV are texts.
        command: What wrote the file, for the error.

    Raises:
        ConfigError: It was not written by this command.
    """
    data = b""
    if os.path.lexists(path):
        with open(open_plain(path, os.O_RDONLY), "rb") as file:
            data = file.read()
    # Not splitlines: a lone carriage return is part of some file's name. What follows the last \n was cut off.
    lines = [line + b"\n" for line in data.split(b"\n")[:-1]]
    try:
        yield from _json_rows(lines) if path.suffix == ".jsonl" else _csv_rows(lines, columns)
    except (ValueError, KeyError, TypeError, RecursionError, csv.Error) as error:
        raise not_ours(path, command) from error


def _json_rows(lines: list[bytes]) -> Iterator[tuple[Mapping[str, Any], int]]:
    for line, end in zip(lines, accumulate(map(len, lines)), strict=True):
        row = json.loads(line)
        if not isinstance(row, dict):
            raise TypeError("a line is no object")
        yield row, end


def _csv_rows(lines: list[bytes], columns: Sequence[str]) -> Iterator[tuple[Mapping[str, Any], int]]:
    reader = csv.reader(line.decode("utf-8", "surrogateescape") for line in lines)
    ends = list(accumulate(map(len, lines)))
    if next(reader, [*columns]) != [*columns]:
        raise ValueError("it has other columns")
    for row in reader:
        if len(row) != len(columns) and reader.line_num == len(lines):
            return  # cut off inside a quoted field
        yield dict(zip(columns, map(original, row), strict=True)), ends[reader.line_num - 1]


def not_ours(path: Path, command: str) -> ConfigError:
    """The error for an output that holds something else.

    Args:
        path: The file.
        command: What should have written it.
    """
    return ConfigError(f"{path} exists and was not written by {command}; choose another output file")
