"""Which image files the words of a command line mean."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence

from lessmore.data.formats import ENDINGS
from lessmore.errors import ConfigError


def find_images(inputs: Sequence[str]) -> list[str]:
    """Files as they are given, and the images below folders, each once however it is spelled.

    Args:
        inputs: Files, folders, and patterns such as `photos/*.jpg`, which a shell did not expand.

    Returns:
        Paths in the order of `inputs`; folders are searched in sorted order. A folder that may not be searched stands
        in the list itself, so that whoever reads the images meets it and says so.

    Raises:
        ConfigError: An input does not exist, or holds no images.
    """
    found: dict[str, str] = {}
    for name in inputs:
        for path in _meant(name):
            found.setdefault(same_place(path), path)
    return list(found.values())


def same_place(path: str) -> str:
    """A path by which all spellings of one file agree; a link is a file of its own, a linked folder is not."""
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder), name)


def _meant(name: str) -> list[str]:
    if os.path.isdir(name):
        return _inside(name)
    if os.path.lexists(name):
        return [name]
    matches = sorted(glob.glob(name, recursive=True)) if glob.has_magic(name) else []
    if not matches:
        what = "nothing fits the pattern" if glob.has_magic(name) else "there is no file or folder"
        raise ConfigError(f"{what} {name}; check the path")
    return [path for match in matches for path in (_inside(match) if os.path.isdir(match) else [match])]


def _inside(folder: str) -> list[str]:
    found = list(_search(folder))
    if not found:
        raise ConfigError(f"there are no images in {folder}; known endings are {', '.join(ENDINGS)}")
    return found


def _search(folder: str) -> Iterator[str]:
    closed: list[OSError] = []
    for place, folders, files in os.walk(folder, onerror=closed.append):
        folders.sort()
        yield from (os.path.join(place, name) for name in sorted(files) if name.lower().endswith(ENDINGS))
    yield from (str(error.filename) for error in closed)
