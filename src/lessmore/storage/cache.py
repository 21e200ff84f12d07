"""Where caches lie: in folders that belong to this user, so that nobody else can plant files in them."""

from __future__ import annotations

import os
import stat
import warnings
from contextlib import suppress
from pathlib import Path

Cache = bool | str | Path
"""Whether to keep results on disk; a path says where."""


def cache_folder(cache: Cache, *names: str) -> Path | None:
    """The folder for one kind of cached file, created where it does not exist.

    Args:
        cache: False for no cache, a folder, or True for `$LESSMORE_CACHE` or else `~/.cache/lessmore`.
        *names: Folders below it, outermost first.

    Returns:
        The folder, or None where caching is off or impossible; a warning then says why.
    """
    if cache is False:
        return None
    try:
        folder = (os.environ.get("LESSMORE_CACHE") or Path.home() / ".cache" / "lessmore") if cache is True else cache
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        for name in names:
            path = _own(path / name)
    except (OSError, RuntimeError) as error:  # RuntimeError: no home directory
        warn_uncached("results", error)
        return None
    return path


def warn_uncached(what: str, error: Exception) -> None:
    """Say that something is not cached, and why.

    Args:
        what: What is not cached, in the plural: the subject of the sentence.
        error: What went wrong; its text goes into the warning.
    """
    warnings.warn(
        f"{what} are not cached ({error}); set LESSMORE_CACHE to a folder with room of your own", stacklevel=3
    )


def drop(path: Path) -> None:
    """Remove a useless file from a cache if that is possible; a failure is ignored."""
    with suppress(OSError):
        path.unlink()


def _own(path: Path) -> Path:
    """A folder that only this user can change, made private if it is new; else a PermissionError."""
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise PermissionError(f"{path} is a link; remove it")
    if hasattr(os, "getuid") and (found.st_uid not in (0, os.getuid()) or found.st_mode & stat.S_IWOTH):
        raise PermissionError(f"others can write to {path}")
    return path
