"""A data set as the rest of the package sees it: ids, labels, class names, prompts, and images decoded on demand."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

from PIL import Image

from lessmore.data.images import load_image
from lessmore.errors import ConfigError


class Source(Protocol):
    """Where pixels come from. It is copied to loader processes, so it must be small."""

    def load(self, index: int) -> Image.Image:
        """Image `index` as RGB; raises `ImageError` where it cannot be read."""


@dataclass(frozen=True)
class Files:
    """Images in one folder, by their paths relative to it."""

    folder: Path
    paths: tuple[str, ...]

    def load(self, index: int) -> Image.Image:
        """Decode one file."""
        return load_image(self.folder / self.paths[index])


@dataclass(frozen=True)
class Dataset:
    """Labelled images in the data set's own order. Opening one touches no image."""

    name: str
    classes: tuple[str, ...]
    """Names of the classes; `prompts.spoken` says how prompts use them."""
    ids: tuple[str, ...]
    """Unique and stable: posix paths relative to the images' folder, or for instance `fog/3/00017`."""
    labels: tuple[int, ...]
    """Indices into `classes`."""
    source: Source
    templates: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Template sets by name; the first is this data set's default."""

    def __post_init__(self) -> None:
        """Validate once; every later use may trust ids and labels."""
        if not self.ids:
            raise ConfigError(f"{self.name} holds no images; check its folder or its list")
        if len(self.ids) != len(self.labels):
            raise ConfigError(f"{self.name} has {len(self.labels)} labels for {len(self.ids)} images; give each one")
        if len(set(self.ids)) != len(self.ids):
            raise ConfigError(f"{self.name} lists {_first_double(self.ids)} twice; list every image once")
        if not all(type(label) is int for label in self.labels):
            raise ConfigError(f"{self.name} has an image without a label; give each one a whole number")
        low, high = min(self.labels), max(self.labels)
        if low < 0 or high >= len(self.classes):
            wrong = low if low < 0 else high
            last = len(self.classes) - 1
            raise ConfigError(f"{self.name} has the label {wrong}, but its classes are 0 to {last}; correct the list")

    def __len__(self) -> int:
        return len(self.ids)

    def image(self, index: int) -> Image.Image:
        """Image `index` as RGB; raises `ImageError` where it cannot be read."""
        return self.source.load(index)

    def fingerprint(self) -> str:
        """Sha256 over name, classes, ids and labels; pixels are not read."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        content = json.dumps([self.name, self.classes, self.ids, self.labels], ensure_ascii=False)
        return hashlib.sha256(content.encode()).hexdigest()


def _first_double(ids: tuple[str, ...]) -> str:
    seen: set[str] = set()
    return next(i for i in ids if i in seen or seen.add(i))  # type: ignore[func-returns-value]
