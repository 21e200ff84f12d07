"""Hugging Face `datasets`: a folder written by `save_to_disk`, one of Parquet files, or a name on the hub."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from PIL import Image

from lessmore.data.dataset import Dataset
from lessmore.data.images import load_image
from lessmore.data.spec import COMMON
from lessmore.errors import ConfigError, ImageError, unknown
from lessmore.prompts import class_names

_PREFERRED = ("test", "validation", "val")
_SAVED = ("dataset_dict.json", "state.json")
"""Files that `save_to_disk` writes."""


@dataclass(frozen=True)
class ColumnTable:
    """Images of one column, left encoded by `datasets` and decoded by `load_image`."""

    table: Any
    column: str

    def load(self, index: int) -> Image.Image:
        """Decode one row."""
        try:
            cell = self.table[index][self.column]
        except Exception as error:  # of Arrow and of the file system
            raise ImageError(f"row {index} cannot be read ({error}); download the data set again") from error
        return load_image(cell_image(cell, index))


def cell_image(cell: Any, row: int) -> Any:
    """What `load_image` takes, from a cell of encoded images.

    Args:
        cell: With `bytes` and `path`.
        row: Its number, for the error.

    Raises:
        ImageError: The cell is empty.
    """
    if not cell:
        raise ImageError(f"row {row} has no image; remove it or fill it in")
    return cell["bytes"] if cell["bytes"] is not None else cell["path"]


@dataclass(frozen=True)
class HubPlace:
    """Which rows and columns of which Hugging Face data set."""

    name: str
    """A folder of `save_to_disk` or of Parquet files, or a name on the hub."""
    split: str | None = None
    """None means `test`, `validation`, `val`, or the only one."""
    config: str | None = None
    """Which configuration of a set on the hub; None means its default."""
    image: str | None = None
    """Column of the images; None means the only one of the type `Image`."""
    label: str | None = None
    """Column of the labels, class labels or texts; None means the only one of the type `ClassLabel`."""

    @property
    def title(self) -> str:
        """The last part of the name."""
        return Path(self.name).name


def parse_place(text: str) -> HubPlace:
    """What follows `hf:`.

    Args:
        text: NAME, NAME@SPLIT, and after a `?` any of image, label and config, such as
            `NAME@SPLIT?image=picture&label=kind`.

    Raises:
        ConfigError: An option is unknown or has no value.
    """
    place, _, query = text.partition("?")
    name, _, split = place.partition("@")
    try:
        options = dict(parse_qsl(query, strict_parsing=bool(query)))
    except ValueError as error:
        raise ConfigError(f"hf:{text} has options that are not NAME=VALUE, joined by &; correct them") from error
    known = ("image", "label", "config")
    wrong = next((option for option in options if option not in known), None)
    if wrong is not None:
        raise ConfigError(f"hf:{text}: {unknown('option', wrong, known)}")
    return HubPlace(name, split or None, **options)


def read_hf(place: HubPlace, network: bool = True) -> Dataset:
    """A Hugging Face data set, with all labels; images stay encoded until they are asked for.

    Args:
        place: Which one.
        network: Whether a name may be looked up on the hub.

    Raises:
        ConfigError: The set cannot be opened, the split is unknown, or a column is missing or not unique.
    """
    table, split = open_table(place, network)
    image = image_column(table, place)
    label = label_column(table, place)
    if label is None:
        raise _no_single(place, "ClassLabel", _columns(table, "ClassLabel"))
    names = class_names_of(table, label)
    values = table[label]
    classes = tuple(class_names(sorted(set(values)) if names is None else names))
    if names is None:
        number = {name: i for i, name in enumerate(sorted(set(values)))}
        values = [number[value] for value in values]
    ids = tuple(f"{split}/{i:06}" for i in range(len(table)))
    source = ColumnTable(encoded(table.select_columns([image]), image), image)
    return Dataset(f"{place.title}@{split}", classes, ids, tuple(values), source, COMMON)


def open_table(place: HubPlace, network: bool, streaming: bool = False) -> tuple[Any, str]:
    """The rows of a split, and the split's name; a single saved split is called `all`.

    Args:
        place: Which one.
        network: Whether a name may be looked up on the hub.
        streaming: Whether rows are read one after another instead of downloading the whole.

    Raises:
        ConfigError: The set cannot be opened, or the split is unknown.
    """
    if not network and not Path(place.name).is_dir():
        raise ConfigError(
            f"{place.name} would be looked up on the network; allow that with --network, or give a folder"
        )
    library = _library()
    # The hub, the network, the file system and arrow raise errors of their own; users get one.
    try:
        loaded = _load(library, place, streaming)
    except Exception as error:
        raise ConfigError(f"{place.name} cannot be opened ({error}); give a hub name or a saved folder") from error
    splits = dict(loaded) if isinstance(loaded, dict) else {str(loaded.split or "all"): loaded}
    return _choose(splits, place.name, place.split)


def image_column(table: Any, place: HubPlace) -> str:
    """The column of the images.

    Args:
        table: The rows of a split.
        place: Which column was asked for.

    Raises:
        ConfigError: It is missing, of a wrong type, or not unique.
    """
    if place.image is None:
        found = _columns(table, "Image")
        if len(found) != 1:
            raise _no_single(place, "Image", found)
        return found[0]
    kind = _feature(table, place.name, place.image)
    # A text could name any file of this machine, so paths are not taken from a column of texts.
    if type(kind).__name__ != "Image" and getattr(kind, "dtype", "") not in ("binary", "large_binary"):
        raise ConfigError(f"the column {place.image} of {place.name} holds no images but {kind}; name another")
    return place.image


def label_column(table: Any, place: HubPlace) -> str | None:
    """The column of the labels; None where none was asked for and not exactly one is of the type `ClassLabel`.

    Args:
        table: The rows of a split.
        place: Which column was asked for.

    Raises:
        ConfigError: It is missing or of a wrong type.
    """
    if place.label is None:
        found = _columns(table, "ClassLabel")
        return found[0] if len(found) == 1 else None
    kind = _feature(table, place.name, place.label)
    if type(kind).__name__ != "ClassLabel" and getattr(kind, "dtype", "") not in ("string", "large_string"):
        raise ConfigError(f"the column {place.label} of {place.name} holds neither class labels nor texts but {kind}")
    return place.label


def class_names_of(table: Any, label: str) -> list[str] | None:
    """Names of a column's classes; None where it holds them as texts.

    Args:
        table: The rows of a split.
        label: The column.
    """
    return getattr(table.features[label], "names", None)


def encoded(table: Any, column: str) -> Any:
    """The table with images left as they are stored, for `load_image`.

    Args:
        table: The rows of a split.
        column: The column of the images.
    """
    return table.cast_column(column, _library().Image(decode=False))


def _library() -> Any:
    try:
        return importlib.import_module("datasets")
    except ImportError as error:
        raise ConfigError("this needs the package datasets; run pip install 'lessmore[hf-data]'") from error


def _load(library: Any, place: HubPlace, streaming: bool) -> Any:
    folder = Path(place.name)
    if not any((folder / name).is_file() for name in _SAVED):
        return library.load_dataset(place.name, place.config, streaming=streaming)
    loaded = library.load_from_disk(place.name)
    if not streaming:
        return loaded
    if isinstance(loaded, dict):
        return {name: table.to_iterable_dataset() for name, table in loaded.items()}
    return {str(loaded.split or "all"): loaded.to_iterable_dataset()}


def _choose(splits: dict[str, Any], name: str, split: str | None) -> tuple[Any, str]:
    if split is None:
        split = next((s for s in _PREFERRED if s in splits), next(iter(splits)) if len(splits) == 1 else None)
    if split is None:
        raise ConfigError(f"{name} has the splits {', '.join(splits)}; choose one with {name}@SPLIT")
    if split not in splits:
        raise ConfigError(f"{name}: {unknown('split', split, splits)}")
    return splits[split], split


def _columns(table: Any, kind: str) -> list[str]:
    return [column for column, feature in (table.features or {}).items() if type(feature).__name__ == kind]


def _no_single(place: HubPlace, kind: str, found: list[str]) -> ConfigError:
    listed = f" ({', '.join(found)})" if found else ""
    option = "image" if kind == "Image" else "label"
    return ConfigError(f"{place.name} has {len(found)} columns of the type {kind}{listed}; name one, ?{option}=COLUMN")


def _feature(table: Any, name: str, column: str) -> Any:
    if column not in (table.features or {}):
        raise ConfigError(f"{name}: {unknown('column', column, table.features or {})}")
    return table.features[column]
