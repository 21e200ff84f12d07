"""CIFAR-100-C from its official arrays: one file of five severities per corruption, memory-mapped, never read whole."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lessmore.data.corrupt import EXTRA, MAIN, SEVERITIES
from lessmore.data.dataset import Dataset
from lessmore.data.images import load_image
from lessmore.data.layout import own_file
from lessmore.data.spec import Spec
from lessmore.errors import ConfigError, ImageError

VARIANTS = tuple(f"{name}/{severity}" for name in MAIN + EXTRA for severity in range(1, SEVERITIES + 1))
"""What follows `cifar100c/`: the corruption and its severity."""


@dataclass(frozen=True)
class ArrayRows:
    """Images that are rows [start, start + n) of an array [N, H, W, 3]."""

    file: Path
    start: int

    def load(self, index: int) -> Image.Image:
        """Read one row."""
        try:
            return load_image(np.array(self._pixels[self.start + index]))
        except (ConfigError, OSError, IndexError) as error:
            raise ImageError(f"an image of {self.file} cannot be read ({error}); download it again") from error

    @cached_property
    def _pixels(self) -> NDArray[Any]:
        return _array(self.file)

    def __reduce__(self) -> tuple[type[ArrayRows], tuple[Path, int]]:
        """Pickle without the memory map, which would become a copy of the whole file."""
        return ArrayRows, (self.file, self.start)


def read_variant(spec: Spec, root: Path, variant: str) -> Dataset:
    """One corruption at one severity.

    Args:
        spec: CIFAR-100-C's.
        root: The folder that holds the data sets.
        variant: Such as `fog/3`.

    Raises:
        ConfigError: A file is missing or damaged.
    """
    corruption, _, severity = variant.partition("/")
    file = own_file(spec, root, f"{corruption}.npy")
    labels, images = _array(own_file(spec, root, str(spec.split))), _array(file)
    _check(file, images, labels)
    count = len(labels) // SEVERITIES
    start = (int(severity) - 1) * count
    ids = tuple(f"{variant}/{i:05}" for i in range(count))
    chosen = tuple(int(label) for label in labels[start : start + count])
    return Dataset(f"{spec.name}/{variant}", spec.classes, ids, chosen, ArrayRows(file, start), spec.templates)


def _array(file: Path) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(file, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ConfigError(f"{file} is not an array of numbers ({error}); download it again") from error
    return array


def _check(file: Path, images: NDArray[Any], labels: NDArray[Any]) -> None:
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or len(labels) % SEVERITIES:
        raise ConfigError(f"labels.npy beside {file} does not list labels for all severities; download it again")
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] != 3 or len(images) != len(labels):
        raise ConfigError(
            f"{file} holds {images.dtype} {list(images.shape)}, not {len(labels)} RGB images in bytes; get it again"
        )
