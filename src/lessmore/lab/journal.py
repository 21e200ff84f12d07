"""Journals: files of JSON lines that only grow, and marks that vouch for what they held.

A mark is a length and a SHA-256 of everything up to it. Checkpoints and summaries carry the marks of their journals, so
a line that was changed, swapped or left out is noticed before it is used.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from lessmore.errors import StateError
from lessmore.storage.files import open_plain

SampleRow = dict[str, Any]
REMEDY = "start this run again with --overwrite"
_CHUNK = 1 << 20


class JournalMark(NamedTuple):
    """How far a journal was written, and what it held."""

    size: int = 0
    """Bytes."""
    sha256: str = hashlib.sha256().hexdigest()
    """Of these bytes."""


def read_mark(value: Any, path: Path) -> JournalMark:
    """A mark in values that JSON keeps.

    Args:
        value: A list of size and digest.
        path: The file that holds it, for the error.

    Raises:
        StateError: It is no mark.
    """
    if isinstance(value, list) and [type(one) for one in value] == [int, str] and value[0] >= 0:
        return JournalMark(*value)
    raise StateError(f"{path} does not say how far its journals were written; {REMEDY}")


class Journal:
    """A journal that is open for writing; each line is handed to the system at once."""

    def __init__(self, path: Path, keep: JournalMark) -> None:
        """Open, check what is kept, and cut off the rest.

        Args:
            path: The file, made where there is none. A link is refused: what it points to is not ours to cut.
            keep: What must be there.

        Raises:
            StateError: The file is not one of ours, or does not hold what it should.
            OSError: It cannot be opened.
        """
        self._path = path
        self._handle = open_plain(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            self._digest, self._size = _checked(self._handle, path, keep), keep.size
            os.ftruncate(self._handle, keep.size)
        except BaseException:
            self.close()
            raise

    @property
    def mark(self) -> JournalMark:
        """What it holds."""
        return JournalMark(self._size, self._digest.hexdigest())

    def append(self, row: SampleRow) -> None:
        """Add one line."""
        line = (json.dumps(row) + "\n").encode()
        if os.write(self._handle, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._digest.update(line)
        self._size += len(line)

    def rows(self) -> list[SampleRow]:
        """All lines, as they are on the disk."""
        return read_rows(self._path, self.mark)

    def sync(self) -> None:
        """Have all lines on the disk."""
        os.fsync(self._handle)

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)


def read_rows(path: Path, mark: JournalMark) -> list[SampleRow]:
    """The lines of a journal up to a mark.

    Args:
        path: The file.
        mark: What it must hold.

    Raises:
        StateError: The file is missing, or does not hold that.
    """
    try:
        handle = open_plain(path, os.O_RDONLY)
    except OSError as error:
        raise StateError(f"{path} cannot be read ({error.strerror}); {REMEDY}") from error
    with os.fdopen(handle, "rb") as file:
        _checked(handle, path, mark)
        file.seek(0)
        lines = file.read(mark.size).splitlines()
    try:
        rows = [json.loads(line) for line in lines]
    except (ValueError, RecursionError) as error:
        raise StateError(f"{path} makes no sense: a line is not JSON; {REMEDY}") from error
    if not all(isinstance(row, dict) for row in rows):
        raise StateError(f"{path} makes no sense: a line is no object; {REMEDY}")
    return rows


def _checked(handle: int, path: Path, mark: JournalMark) -> Any:
    """The digest of what is there up to a mark, if it is what the mark says."""
    digest, left = hashlib.sha256(), mark.size
    os.lseek(handle, 0, os.SEEK_SET)
    while left and (part := os.read(handle, min(left, _CHUNK))):
        digest.update(part)
        left -= len(part)
    if left:
        raise StateError(f"{path} is shorter than it was; {REMEDY}")
    if digest.hexdigest() != mark.sha256:
        raise StateError(f"{path} is damaged: its checksum does not match; {REMEDY}")
    return digest
