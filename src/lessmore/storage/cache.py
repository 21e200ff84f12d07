"""Where caches lie: in folders of this user's own, so that nobody else can put anything into them."""

from __future__ import annotations

import os
import stat
import warnings
from contextlib import suppress
from pathlib import Path

Cache = bool | str | Path
"""Whether to keep things on disk; a path says where."""


def cache_folder(cache: Cache, *names: str) -> Path | None:
    """The folder of one kind of things, ready for use.

    Args:
        cache: A folder; True means `$LESSMORE_CACHE`, or `~/.cache/lessmore`.
        *names: Folders below it, from the outside in.

    Returns:
        The folder, or None where nothing is to be cached or nothing can be; a warning then says why.
    """
    if cache is False:
        return None
    try:
        folder = (os.environ.get("LESSMORE_CACHE") or Path.home() / ".cache" / "lessmore") if cache is True else cache
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        for name in names:
            path = _own(path / name)
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home
        warn_uncached("results", error)
        return None
    return path


def warn_uncached(what: str, error: Exception) -> None:
    """Say that something is not cached, and why."""
    warnings.warn(
        f"{what} are not cached ({error}); set LESSMORE_CACHE to a folder with room of your own", stacklevel=3
    )


def drop(path: Path) -> None:
    """Remove a file of a cache that is of no use, as far as possible."""
    with suppress(OSError):
        path.unlink()


def _own(path: Path) -> Path:
    """A folder that only this user can look into if it is new, and can change in any case; else a PermissionError."""
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise PermissionError(f"{path} is a link; remove it")
    if hasattr(os, "getuid") and (found.st_uid not in (0, os.getuid()) or found.st_mode & stat.S_IWOTH):
        raise PermissionError(f"others can write to {path}")
    return path
