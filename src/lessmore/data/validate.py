"""Is a data set complete and readable? Checked before hours are spent on it."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeVar

from tqdm import tqdm

from lessmore.data.dataset import Dataset, Files
from lessmore.data.registry import is_direct, open_dataset, spec_of
from lessmore.data.spec import Spec
from lessmore.errors import ImageError, LessmoreError

T = TypeVar("T")
_FEW = 5


@dataclass(frozen=True)
class Report:
    """What was found; ready where there is no problem."""

    dataset: str
    images: int
    classes: int
    decoded: int
    problems: tuple[str, ...]
    obtain: str
    """How to get what is missing."""

    @property
    def ready(self) -> bool:
        """Whether a run may start."""
        return not self.problems


def validate(name: str, root: Path | None, sample: int = 100, seed: int = 0, quiet: bool = False) -> Report:
    """Look for every file, compare counts and class names with the known facts, and decode a sample of the images.

    Args:
        name: As for `open_dataset`.
        root: As for `open_dataset`.
        sample: How many images to decode.
        seed: Chooses the sample.
        quiet: No progress bars.

    Returns:
        A report, with the problems if there are any; a data set that cannot be opened is one.
    """
    spec = None if is_direct(name) else spec_of(name)
    obtain = f"{spec.source}; licence: {spec.licence}" if spec else "see docs/datasets.md"
    try:
        dataset = open_dataset(name, root)
    except LessmoreError as error:
        return Report(name, 0, 0, 0, (str(error),), obtain)
    missing = _missing(dataset, quiet)
    present = sorted(set(range(len(dataset))).difference(missing))
    chosen = sorted(random.Random(seed).sample(present, min(sample, len(present))))
    problems = (
        *_on_files(dataset, missing),
        *(_on_facts(dataset, spec) if spec else ()),
        *_on_classes(dataset),
        *_on_images(dataset, chosen, quiet),
    )
    return Report(dataset.name, len(dataset), len(dataset.classes), len(chosen), problems, obtain)


def _missing(dataset: Dataset, quiet: bool) -> list[int]:
    """Images without a file, found by listing each directory once instead of looking for each file."""
    if not isinstance(dataset.source, Files):
        return []
    folder, paths = dataset.source.folder, [PurePosixPath(path) for path in dataset.source.paths]
    parents = _bar(dict.fromkeys(path.parent for path in paths), f"{dataset.name}: files", "folder", quiet)
    there = {parent: set(_names(folder / parent)) for parent in parents}
    return [index for index, path in enumerate(paths) if path.name not in there[path.parent]]


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _on_files(dataset: Dataset, missing: list[int]) -> Iterator[str]:
    if missing and isinstance(dataset.source, Files):
        names = _few([dataset.ids[index] for index in missing])
        yield f"{len(missing):,} of {len(dataset):,} images are missing in {dataset.source.folder}: {names}"


def _on_facts(dataset: Dataset, spec: Spec) -> Iterator[str]:
    if len(dataset) != spec.images:
        yield f"there are {len(dataset):,} images, but the test split has {spec.images:,}"
    # Labels come from the same file as the names, so only the names themselves can be wrong, not their order.
    strange = [name for name in dataset.classes if name not in spec.classes]
    absent = [name for name in spec.classes if name not in dataset.classes]
    if strange or absent:
        yield f"class names differ: {len(absent)} not found ({_few(absent)}), {len(strange)} unknown ({_few(strange)})"


def _on_classes(dataset: Dataset) -> Iterator[str]:
    used = set(dataset.labels)
    empty = [name for label, name in enumerate(dataset.classes) if label not in used]
    if empty:
        yield f"{len(empty)} of {len(dataset.classes)} classes have no images: {_few(empty)}"


def _on_images(dataset: Dataset, chosen: Sequence[int], quiet: bool) -> Iterator[str]:
    failed = []
    for index in _bar(chosen, f"{dataset.name}: images", "image", quiet):
        try:
            dataset.image(index)
        except ImageError as error:
            failed.append((dataset.ids[index], str(error)))
    if failed:
        names = _few([name for name, _ in failed])
        yield f"{len(failed)} of {len(chosen)} sampled images cannot be read: {names}; the first: {failed[0][1]}"


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _FEW:,} more" if len(names) > _FEW else ""
    return ", ".join(names[:_FEW]) + more if names else "none"


def _bar(items: Iterable[T], what: str, unit: str, quiet: bool) -> Iterable[T]:
    bar: Iterable[T] = tqdm(items, what, unit=unit, leave=False, delay=1, disable=True if quiet else None)
    return bar
