"""Reading the bytes of an image file: regular files only, never more than a limit, and never waiting."""

from __future__ import annotations

import errno
import os
import stat
from urllib.parse import urlsplit
from urllib.request import url2pathname

from lessmore.errors import ImageError, ImageSizeError

MAX_BYTES = 64 * 2**20
"""Bytes of the largest encoded image, counted while reading: neither a header nor the file system is trusted."""

_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)


def read_image_file(name: str) -> bytes:
    """The bytes of an image file.

    Args:
        name: Its path, or a `file:` URL. Opening does not block, so that a pipe without a writer is refused at once.

    Raises:
        ImageError: There is no such file, it may not be read, it is no regular file, or it is too large.
    """
    if name.startswith(("http://", "https://")):
        raise ImageError(f"{name} is an address; download the file and give its path")
    name = local_path(name)
    try:
        handle = os.open(name, _FLAGS)
    except (OSError, ValueError) as error:  # ValueError: a name with a null byte
        raise _unreadable(name, error) from error
    try:
        _check_kind(os.fstat(handle).st_mode, name)
        with open(handle, "rb", closefd=False) as file:
            data = file.read(MAX_BYTES + 1) or b""  # None where reading would wait, as at the end of a log
    except OSError as error:
        raise _unreadable(name, error) from error
    finally:
        os.close(handle)
    check_bytes(len(data), name)
    return data


def local_path(name: str) -> str:
    """The path that a `file:` URL names; a path stays as it is.

    Args:
        name: Path or URL.

    Raises:
        ImageError: The URL names another machine.

    Examples:
        >>> local_path("file:///photos/a%20cat.jpg"), local_path("a.jpg")
        ('/photos/a cat.jpg', 'a.jpg')
    """
    if not name.lower().startswith("file:"):
        return name
    parts = urlsplit(name)
    if parts.netloc not in ("", "localhost"):
        raise ImageError(f"{name} is on the machine {parts.netloc}; copy the file here and give its path")
    return url2pathname(parts.path)


def check_bytes(count: int, name: str) -> None:
    """Refuse an encoded image of too many bytes.

    Args:
        count: Its bytes.
        name: What to call it in the error.

    Raises:
        ImageSizeError: There are more than `MAX_BYTES`.
    """
    if count > MAX_BYTES:
        raise ImageSizeError(f"{name} is larger than {MAX_BYTES // 2**20} MB; make the image smaller first")


def _check_kind(mode: int, name: str) -> None:
    if stat.S_ISDIR(mode):
        closed = not os.access(name, os.R_OK | os.X_OK)
        what = "that may not be searched; check its permissions" if closed else "; give the path of one image file"
        raise ImageError(f"{name} is a folder{' ' if closed else ''}{what}")
    if not stat.S_ISREG(mode):
        raise ImageError(f"{name} is no regular file but a pipe, socket or device; save the image as a file")


def _unreadable(name: str, error: OSError | ValueError) -> ImageError:
    if isinstance(error, FileNotFoundError):
        return ImageError(f"there is no file {name}; check the path")
    if getattr(error, "errno", None) in (errno.ENXIO, errno.ENODEV):
        return ImageError(f"{name} is no regular file but a pipe, socket or device; save the image as a file")
    shown = name if len(name) <= 300 else f"{name[:300]}..."
    reason = getattr(error, "strerror", None) or error
    return ImageError(f"{shown} cannot be opened ({reason}); check the path and its permissions")
