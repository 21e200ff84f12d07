"""Hugging Face `datasets`: a folder written by `save_to_disk`, or a name on the hub."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from lessmore.data.dataset import Dataset
from lessmore.data.images import load_image
from lessmore.data.spec import COMMON
from lessmore.errors import ConfigError, ImageError, unknown
from lessmore.prompts import class_names

_PREFERRED = ("test", "validation", "val")


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
        if not cell:
            raise ImageError(f"row {index} has no image; remove it or fill it in")
        return load_image(cell["bytes"] if cell["bytes"] is not None else cell["path"])


def read_hf(name: str, split: str | None = None, network: bool = True) -> Dataset:
    """A Hugging Face data set with one image column and one class column.

    Args:
        name: A folder of `save_to_disk`, or a name on the hub.
        split: None means `test`, `validation`, `val`, or the only one.
        network: Whether a name may be looked up on the hub.

    Raises:
        ConfigError: The set cannot be opened, the split is unknown, or a column is missing or not unique.
    """
    if not network and not Path(name).is_dir():
        raise ConfigError(f"{name} would be looked up on the network; allow that with --network, or give a folder")
    table, split = _choose(_load(name), name, split)
    image = _column(table, name, "Image")
    label = _column(table, name, "ClassLabel")
    classes = tuple(class_names(table.features[label].names))
    ids = tuple(f"{split}/{i:06}" for i in range(len(table)))
    source = ColumnTable(_encoded(table, image), image)
    return Dataset(f"{Path(name).name}@{split}", classes, ids, tuple(table[label]), source, COMMON)


def _library() -> Any:
    try:
        return importlib.import_module("datasets")
    except ImportError as error:
        raise ConfigError("this needs the package datasets; run pip install 'lessmore[hf-data]'") from error


def _load(name: str) -> dict[str, Any]:
    """The splits of a data set by name; a single saved split is called `all`."""
    library = _library()
    # The hub, the network, the file system and arrow raise errors of their own; users get one.
    try:
        loaded = library.load_from_disk(name) if Path(name).is_dir() else library.load_dataset(name)
    except Exception as error:
        raise ConfigError(f"{name} cannot be opened ({error}); give a hub name or a saved folder") from error
    return dict(loaded) if isinstance(loaded, dict) else {str(loaded.split or "all"): loaded}


def _choose(splits: dict[str, Any], name: str, split: str | None) -> tuple[Any, str]:
    if split is None:
        split = next((s for s in _PREFERRED if s in splits), next(iter(splits)) if len(splits) == 1 else None)
    if split is None:
        raise ConfigError(f"{name} has the splits {', '.join(splits)}; choose one with {name}@SPLIT")
    if split not in splits:
        raise ConfigError(f"{name}: {unknown('split', split, splits)}")
    return splits[split], split


def _column(table: Any, name: str, kind: str) -> str:
    found = [column for column, feature in table.features.items() if type(feature).__name__ == kind]
    if len(found) != 1:
        raise ConfigError(f"{name} has {len(found)} columns of the type {kind}; it needs one, so cast or remove others")
    return found[0]


def _encoded(table: Any, column: str) -> Any:
    return table.select_columns([column]).cast_column(column, _library().Image(decode=False))
