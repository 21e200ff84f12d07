"""Reading and writing files so that a crash leaves either the old file or the new one, and no odd file can do harm."""

from __future__ import annotations

import json
import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lessmore.errors import StateError


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


def _sync(path: Path) -> None:
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
