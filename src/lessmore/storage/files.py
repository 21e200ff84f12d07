"""Reading and writing files so that a crash leaves either the old file or the new one, and no odd file can do harm."""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from lessmore.errors import StateError

_CAREFULLY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_ODD = (errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.EISDIR)
"""What the system says of links, pipes and folders opened in this way."""


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, atomically and without a seal.

    Args:
        path: The file; its folders are created.
        value: Anything JSON can hold.

    Raises:
        OSError: The file cannot be written.
    """
    with replacing(path) as new:
        new.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path`. When the block ends it is flushed to disk and takes the place of `path`.

    Folders are created. A link at `path` is replaced; the file it points to stays as it is.

    Args:
        path: The file to write.

    Raises:
        OSError: The file cannot be written. `path` is then unchanged, and nothing is left beside it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.new")
    try:
        yield new
        _sync(new)
        os.replace(new, path)
        _sync(path.parent)
    except BaseException:
        with suppress(OSError):
            os.unlink(new)
        raise


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Keep other processes of lessmore from writing the same file at the same time.

    Args:
        path: The file, in a folder that exists.

    Raises:
        StateError: Another process is writing it.
        OSError: Nothing can be written beside it.
    """
    lock = FileLock(path.with_name(f".{path.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise StateError(f"another process is writing {path}; wait until it ends, or choose another output") from error
    try:
        yield
    finally:
        with suppress(OSError):  # while it is held: whoever opened it before that sees that it has gone
            os.unlink(lock.lock_file)
        lock.release()


def open_plain(path: Path, flags: int) -> int:
    """Open an ordinary file, never what a link points to, and without waiting.

    Args:
        path: The file.
        flags: As for `os.open`. A file that may be changed must have no second name.

    Returns:
        The descriptor.

    Raises:
        StateError: It is a link or no ordinary file.
        OSError: It cannot be opened.
    """
    try:
        handle = os.open(path, flags | _CAREFULLY, 0o666)
    except OSError as error:
        if error.errno in _ODD:
            raise _foreign(path) from error
        raise
    found, changed = os.fstat(handle), flags & (os.O_RDWR | os.O_WRONLY)
    if not stat.S_ISREG(found.st_mode) or (changed and found.st_nlink > 1):
        os.close(handle)
        raise _foreign(path)
    return handle


def _foreign(path: Path) -> StateError:
    return StateError(f"{path} is a link or no ordinary file; remove it, or choose another output")


def _sync(path: Path) -> None:
    if sys.platform == "win32" and path.is_dir():
        return  # there a folder cannot be opened, and its entry is written with the file
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_file(path: Path, limit: int) -> bytes:
    """The bytes of an ordinary file.

    Args:
        path: The file. A pipe, device or folder is refused at once.
        limit: Bytes it may hold; more are not read.

    Raises:
        StateError: It is no ordinary file, or too large.
        OSError: It cannot be read.
    """
    # Without O_NONBLOCK, opening a pipe would wait for someone to write into it.
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise StateError(f"{path} is not an ordinary file; give the path of a file that lessmore wrote")
        if found.st_size > limit:
            raise StateError(f"{path} has {found.st_size} bytes, more than such a file can have; check the path")
        return file.read(limit + 1)
