"""Finding a data set below a root: papers keep the same files in folders of different names and letter case."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath

from lessmore.data.spec import Spec
from lessmore.errors import ConfigError

_SPLIT_FOLDERS = ("", "splits", "data_splits", "data/data_splits")
_PROBES = 8


def descend(root: Path, relative: str) -> Path | None:
    """What lies at a relative path, in any letter case; None where there is nothing.

    Args:
        root: Where to start.
        relative: A posix path; an exact match wins over one in another case.
    """
    place = root
    for part in PurePosixPath(relative).parts:
        names = [part] if (place / part).exists() else [n for n in _names(place) if n.casefold() == part.casefold()]
        if not names:
            return None
        place = place / min(names)  # the same choice on every file system
    return place


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def split_file(spec: Spec, root: Path) -> Path:
    """The file that lists the images: in the data set's own folders, in the root, or in a folder of split files.

    Args:
        spec: What is known of the set; `split` is the file's name.
        root: The folder that holds the data sets.

    Raises:
        ConfigError: The file is in none of them.
    """
    wanted = str(spec.split)
    for place in dict.fromkeys([*_own_folders(spec), *_SPLIT_FOLDERS]):
        found = descend(root, f"{place}/{wanted}" if place else wanted)
        if found is not None and found.is_file():
            return found
    raise ConfigError(
        f"{spec.name} needs {wanted}, which is neither in a folder of its own ({_listed(spec)}) nor in "
        f"{root}, splits or data_splits there; get {spec.source}"
    )


def own_file(spec: Spec, root: Path, name: str) -> Path:
    """A file in the data set's own folder.

    Args:
        spec: What is known of the set; `folders` are the names its folder may have.
        root: The folder that holds the data sets.
        name: The file.

    Raises:
        ConfigError: There is no such folder or file.
    """
    folders = existing_folders(spec, root)
    found = next((file for file in (descend(folder, name) for folder in folders) if file is not None), None)
    if found is None:
        raise ConfigError(f"{spec.name} needs {name} in {folders[0]}; get {spec.source}")
    return found


def _own_folders(spec: Spec) -> Iterator[str]:
    for folder in spec.folders:
        parts = PurePosixPath(folder).parts
        yield from ("/".join(parts[:n]) for n in range(len(parts), 0, -1))


def existing_folders(spec: Spec, root: Path) -> list[Path]:
    """The data set's folders that exist, most preferred first.

    Args:
        spec: What is known of the set; `folders` are the names its folder may have.
        root: The folder that holds the data sets.

    Raises:
        ConfigError: None exists.
    """
    found = [place for place in (descend(root, folder) for folder in spec.folders) if place is not None]
    folders = [place for place in found if place.is_dir()]
    if not folders:
        raise ConfigError(f"{spec.name} is not under {root}: there is no {_listed(spec)}; get {spec.source}")
    return folders


def image_folder(spec: Spec, root: Path, paths: Sequence[str]) -> Path:
    """The folder that holds the listed images, judged by a few of them; the most preferred one where none is found.

    Args:
        spec: What is known of the set.
        root: The folder that holds the data sets.
        paths: Paths of the images relative to the folder.

    Raises:
        ConfigError: The set has no folder below `root`.
    """
    folders = existing_folders(spec, root)
    probes = paths[:: max(1, len(paths) // _PROBES)]
    return next((folder for folder in folders if any((folder / path).exists() for path in probes)), folders[0])


def inside(paths: Iterable[str], file: Path) -> tuple[str, ...]:
    """The paths of a list, checked to stay inside the folder they are relative to, on any operating system.

    Args:
        paths: Relative paths.
        file: Where they were read, for errors.

    Raises:
        ConfigError: A path is absolute or contains `..`.
    """
    checked = tuple(paths)
    for path in checked:
        pure = PureWindowsPath(path)
        if pure.anchor or ".." in pure.parts:
            raise ConfigError(f"{file} names {path}, outside of its folder; list paths relative to it, without '..'")
    return checked


def _listed(spec: Spec) -> str:
    return " or ".join(folder or "." for folder in spec.folders)
