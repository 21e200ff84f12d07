"""How a watch shows itself: a line for each source that is painted over in a terminal, or a line for each change."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from lessmore.cameras.answer import CameraAnswer, Sink
from lessmore.cli.common import printable

if TYPE_CHECKING:
    from PIL import Image

    from lessmore.cameras.selection import Reason
    from lessmore.cameras.watch import WatchedSource

REPAINT = 0.1
"""Seconds between two paintings."""


class WatchLines(Sink):
    """A sink that shows answers to people."""

    def __init__(self, streams: Sequence[WatchedSource], file: TextIO) -> None:
        """Nothing is shown before the first answer.

        Args:
            streams: What is watched.
            file: Standard output, or standard error where rows go to standard output.
        """
        super().__init__()
        self._streams, self._file = streams, file
        self._paints = file.isatty()
        self._painted, self._next = 0, 0.0
        self._labels: dict[str, str] = {}
        self._changes: dict[str, int] = {}
        self._how: dict[str, str] = {}

    def put(self, answer: CameraAnswer, image: Image.Image | None) -> None:
        """Show an answer: now and then in a terminal, else if it differs from the one before.

        Args:
            answer: The answer.
            image: Not looked at.
        """
        if self._paints:
            self._paint()
            return
        changes = answer.domain_changes or 0
        if changes > self._changes.setdefault(answer.source, changes):
            self._print(f"{answer.time} {answer.source}: the domain has changed")
        self._changes[answer.source] = max(changes, self._changes[answer.source])
        said = answer.error or ("unknown" if answer.unknown else answer.label) or ""
        if self._labels.get(answer.source) != said:
            self._labels[answer.source] = said
            self._print(f"{answer.time} {answer.source}: {answer_text(answer)}")

    def told(self, source: str, condition: str, why: str) -> None:
        """Show how a source is.

        Args:
            source: Its name.
            condition: Its condition.
            why: A reason.
        """
        said = f"{condition}: {why}" if why else condition
        self._how[source] = condition if condition == "live" else said
        if self._paints:
            self._next = 0.0
            self._paint()
        else:
            self._print(f"{source} is {said}")

    def close(self) -> None:
        """Show everything a last time."""
        if self._paints:
            self._next = 0.0
            self._paint()

    def _print(self, line: str) -> None:
        print(printable(line.replace("\n", " ")), file=self._file, flush=True)

    def _paint(self) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + REPAINT
        width = shutil.get_terminal_size().columns - 1
        lines = [printable(self._line(stream).replace("\n", " "))[:width] for stream in self._streams]
        up = f"\x1b[{self._painted}A" if self._painted else ""
        self._file.write(up + "".join(f"\r{line}\x1b[K\n" for line in lines))
        self._file.flush()
        self._painted = len(lines)

    def _line(self, stream: WatchedSource) -> str:
        name, how = stream.source.name, self._how.get(stream.source.name, "opening")
        if stream.last is None or how != "live":
            return f"{name}: {how}{'' if stream.last is None else f'; {stream.kept.answers} answers'}"
        parts = [f"{stream.kept.answers} answers", *([f"{stream.last.ms:.0f} ms"] if stream.last.ms else [])]
        return f"{name}: {answer_text(stream.last)}; {', '.join(parts + dropped_text(stream))}"


def answer_text(answer: CameraAnswer) -> str:
    """An answer for people."""
    if answer.error is not None:
        return f"error: {answer.error}"
    plain = f" (zero-shot {answer.zero_shot_label})" if answer.changed else ""
    where = "" if answer.file is None else f" in {answer.file}"
    label = f"unknown, nearest {answer.label}" if answer.unknown else answer.label
    return f"{label} {answer.score:.2f}{plain}{where}"


def dropped_text(stream: WatchedSource) -> list[str]:
    """How many frames of a source were left out, and why."""
    words: dict[Reason, str] = {
        "newer": "late",
        "every": "between",
        "still": "without motion",
        "blank": "blank",
        "corrupt": "damaged",
    }
    counts = dict(stream.reader.selection.dropped)
    return [f"{counts[reason]} {word}" for reason, word in words.items() if counts.get(reason)]


def output_for(rows: str | None) -> TextIO:
    """Where the lines go: rows on standard output must stay rows."""
    return sys.stderr if rows == "-" else sys.stdout
