"""The results of the runs of a cell, with intervals.

An image counts once, however many orders and corruptions it was seen in: values are averaged per image before images
are resampled for the 95 % interval. More orders therefore do not narrow an interval the way more images would, and
corruptions of one data set do not count as different photographs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lessmore.errors import StateError
from lessmore.lab.metrics import Array, interval, resampled
from lessmore.lab.store import read_samples
from lessmore.lab.summary import RunSummary
from lessmore.paper.plan import TablePlan, run_identity

KINDS = ("accuracy", "zero_shot", "gain")


class PerImage(NamedTuple):
    """Values of images, each image once."""

    images: NDArray[np.str_]
    """Ids, [n]."""
    means: Array
    """Accuracy of the method and of matched zero-shot, averaged over an image's visits, in percent, [n, 2]."""


@dataclass(frozen=True)
class PaperCell:
    """The runs of one row on one column."""

    summaries: tuple[RunSummary, ...]
    values: PerImage

    @property
    def data(self) -> str:
        """Which images these are: streams of other images of the same data set are other data."""
        seen = hashlib.sha256("\n".join(self.values.images.tolist()).encode()).hexdigest()
        return f"{self.summaries[0]['dataset']['fingerprint']} {seen}"


def measured_cells(
    plan: TablePlan, found: Mapping[Hashable, RunSummary], folder: Path
) -> dict[tuple[int, int], PaperCell]:
    """The cells whose runs are all done.

    Args:
        plan: Which runs belong to which cell.
        found: Summaries of finished runs, by identity.
        folder: The folder with the runs, for their samples.

    Raises:
        StateError: A run's folder has disappeared.
    """
    cells = {}
    for place, specs in plan.cells.items():
        summaries = [found.get(run_identity(spec)) for spec in specs]
        known = tuple(summary for summary in summaries if summary is not None and summary["metrics"]["n"])
        if len(known) == len(specs):
            cells[place] = PaperCell(known, _per_image(known, folder))
    return cells


def _per_image(summaries: Iterable[RunSummary], folder: Path) -> PerImage:
    visits = [row for summary in summaries for row in _rows(summary, folder) if "error" not in row]
    images = [row["id"].removesuffix(f"@{row['domain']}") for row in visits]
    right = [[row[answer] == row["label"] for answer in ("prediction", "zero_shot")] for row in visits]
    return per_image_means(np.array(images), 100 * np.array(right, dtype=float))


def _rows(summary: RunSummary, folder: Path) -> list[dict[str, Any]]:
    place = next(folder.glob(f"*_{summary['key'][:16]}"), None)
    if place is None:
        raise StateError(f"the run {summary['key'][:16]} is no longer in {folder}; run the same command again")
    return read_samples(place, summary)


def per_image_means(images: NDArray[np.str_], values: Array) -> PerImage:
    """Values averaged over the visits of each image.

    Args:
        images: The image of each visit, `[v]`.
        values: `[v, 2]`.
    """
    names, which = np.unique(images, return_inverse=True)
    sums = np.zeros((len(names), values.shape[1]))
    np.add.at(sums, which, values)
    return PerImage(names, sums / np.bincount(which)[:, None])


def estimates(cells: Sequence[PaperCell]) -> dict[str, list[float]]:
    """Accuracy, matched zero-shot's and the gain, averaged over cells, each as [value, low, high]."""
    generator = np.random.default_rng(0)  # the same runs always give the same interval
    value = np.mean([cell.values.means.mean(axis=0) for cell in cells], axis=0)
    draws = np.sum([share * image_means(means, generator) for means, share in _by_data(cells)], axis=0)
    low, high = interval(_with_gain(draws))
    columns = zip(_with_gain(value[None])[0], low, high, strict=True)
    return {kind: [round(float(v), 4) for v in column] for kind, column in zip(KINDS, columns, strict=True)}


def paired_with(cell: PaperCell | None, base: PaperCell | None) -> PaperCell | None:
    """A cell whose gain is over another cell, instead of over matched zero-shot.

    Args:
        cell: Whose answers count.
        base: The cell to compare with.

    Returns:
        None unless both exist and saw the same images.
    """
    if cell is None or base is None or not np.array_equal(cell.values.images, base.values.images):
        return None
    answers = np.column_stack([cell.values.means[:, 0], base.values.means[:, 0]])
    return PaperCell(cell.summaries, cell.values._replace(means=answers))


def _by_data(cells: Sequence[PaperCell]) -> Iterable[tuple[Array, float]]:
    """Values per image `[n, 2]` of each data set, averaged over its cells, and its share of the cells."""
    for data in dict.fromkeys(cell.data for cell in cells):
        own = [cell.values for cell in cells if cell.data == data]
        joined = per_image_means(np.concatenate([v.images for v in own]), np.concatenate([v.means for v in own]))
        yield joined.means, len(own) / len(cells)


def image_means(values: Array, generator: np.random.Generator) -> Array:
    """Bootstrap means, `[DRAWS, 2]`.

    Args:
        values: Per image, `[n, 2]`; few of them differ, which makes this fast.
        generator: Where the draws come from.
    """
    return resampled(*np.unique(values.round(6), axis=0, return_counts=True), generator)


def _with_gain(values: Array) -> Array:
    """[k, 2] → [k, 3] with the difference."""
    return np.column_stack([values, values[:, 0] - values[:, 1]])
