"""Writing files so that a crash leaves the old one or the new one, never half of one."""

from __future__ import annotations

import errno
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A new file beside `path`, to be written; at the end it takes that place, and all of it is on the disk.

    Folders are made. Raises OSError where that cannot be done; then `path` is as it was.
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


def write_safetensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write tensors, atomically; raises OSError where that cannot be done."""
    plain = {k: v.detach().cpu().contiguous() for k, v in tensors.items()}
    with replacing(path) as new:
        try:
            save_file(plain, new, metadata)
        except SafetensorError as error:  # its way to say that the disk is full
            raise OSError(errno.EIO, str(error), str(path)) from error


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, atomically; raises OSError where that cannot be done."""
    with replacing(path) as new:
        new.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
