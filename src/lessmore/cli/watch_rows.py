"""The rows of `lessmore watch`, and how they and the states agree after a crash."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from lessmore.cameras.answer import CameraAnswer, Sink
from lessmore.cli import rows
from lessmore.errors import ConfigError
from lessmore.storage.files import replacing

if TYPE_CHECKING:
    from PIL import Image

    from lessmore.cameras.watch import WatchedSource

COLUMNS = [field.name for field in fields(CameraAnswer)]


class RowSink(Sink):
    """Writes answers as rows."""

    def __init__(self, name: str, as_json: bool = False) -> None:
        super().__init__()
        self._output = rows.Output(name, COLUMNS, as_json)

    def put(self, answer: CameraAnswer, image: Image.Image | None) -> None:
        """Append a row.

        Args:
            answer: The answer.
            image: Not looked at.
        """
        self._output.write(answer)

    def sync(self) -> None:
        """Put the rows on the disk."""
        self._output.sync()

    def close(self) -> None:
        """Close the file."""
        self._output.close()


def continue_rows(output: Path, streams: list[WatchedSource], resume: bool) -> None:
    """Make rows and states agree, where a watch that was killed goes on.

    Rows are on the disk before a state that counts them. Of a file or a folder, rows that the state does not know are
    removed, and their frames answered again. Of a camera they stay, and its numbers go on after them: these frames are
    gone.

    Args:
        output: The file of rows.
        streams: What is watched, at its saved states.
        resume: Whether rows may be there.

    Raises:
        ConfigError: Rows are there and may not be, or another command wrote them.
    """
    by_name = {stream.source.name: stream for stream in streams}
    kept: list[tuple[int, int]] = []
    start = _head(output)
    for row, end in rows.complete_rows(output, COLUMNS, "lessmore watch"):
        if not resume:
            raise ConfigError(f"{output} has rows already; add --resume with its --state, or choose another output")
        try:
            stream, number = by_name.get(row["source"]), int(row["number"])
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise rows.not_ours(output, "lessmore watch") from error
        if stream is None or stream.source.live or number <= stream.kept.answers:
            kept.append((start, end))
        if stream is not None and stream.source.live:
            stream.kept.answers = max(stream.kept.answers, number)
        start = end
    if output.exists():
        _keep(output, kept)


def _head(output: Path) -> int:
    """Bytes of a CSV file's first line."""
    if output.suffix == ".jsonl" or not output.exists():
        return 0
    with open(output, "rb") as file:
        return len(file.readline())


def _keep(output: Path, parts: list[tuple[int, int]]) -> None:
    """Write a file again with its head and some of its parts alone, if that changes it."""
    data, head = output.read_bytes(), _head(output)
    new = data[:head] + b"".join(data[start:end] for start, end in parts)
    if new != data:
        with replacing(output) as file:
            file.write_bytes(new)
