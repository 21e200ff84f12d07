"""Images sorted into one sub-folder per class: ImageNet and its variants, and any such folder of a user."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from lessmore.data.dataset import Dataset, Files
from lessmore.data.formats import ENDINGS
from lessmore.data.layout import existing_folders
from lessmore.data.spec import COMMON, Spec
from lessmore.errors import ConfigError
from lessmore.prompts import class_names


def read_folder(folder: Path) -> Dataset:
    """Any folder with a sub-folder per class; the sub-folders' names are the classes."""
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}; check the path")
    kinds = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    if not kinds:
        raise ConfigError(f"{folder} has no sub-folders; sort the images into one for each class")
    paths, labels = _list_images(folder, kinds)
    return Dataset(folder.resolve().name, tuple(class_names(kinds)), paths, labels, Files(folder, paths), COMMON)


def read_class_folders(spec: Spec, root: Path) -> Dataset:
    """A set whose classes have folders of known names; a class without a folder has no images.

    Args:
        spec: What is known of the set; `class_folders` are the names.
        root: The folder that holds the data sets.

    Raises:
        ConfigError: There is no folder of the set, or none of its classes is in it.
    """
    folder = _sorted_folder(spec, existing_folders(spec, root))
    paths, labels = _list_images(folder, spec.class_folders)
    return Dataset(spec.name, spec.classes, paths, labels, Files(folder, paths), spec.templates)


def _sorted_folder(spec: Spec, folders: Sequence[Path]) -> Path:
    wanted = set(spec.class_folders)
    for folder in folders:
        if not wanted.isdisjoint(os.listdir(folder)):
            return folder
    raise ConfigError(
        f"{folders[0]} has none of the {len(wanted)} class folders of {spec.name}, such as {spec.class_folders[0]}; "
        "sort the images into them"
    )


def _list_images(folder: Path, kinds: Sequence[str]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Relative paths and labels. Only directories are read: touching every file takes minutes on network disks."""
    found = [(path, label) for label, kind in enumerate(kinds) for path in sorted(_below(folder, kind))]
    return tuple(path for path, _ in found), tuple(label for _, label in found)


def _below(folder: Path, kind: str) -> Iterator[str]:
    for place, _, files in os.walk(folder / kind):
        inner = Path(place).relative_to(folder).as_posix()
        yield from (f"{inner}/{name}" for name in files if name.lower().endswith(ENDINGS) and name[0] != ".")
