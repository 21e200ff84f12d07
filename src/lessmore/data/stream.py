"""Streams: which images are seen, in which order, under which corruption. The order is part of the experiment.

A stream has its own generator, seeded by order, seed and data set. Which images of a class `limit` keeps first depends
on the data set alone, and how a corrupted image looks depends on its id alone. What was encoded for one order or seed
can therefore be used for the others.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

import numpy as np
from PIL import Image

from lessmore.data.corrupt import corrupt
from lessmore.data.dataset import Dataset
from lessmore.data.orders import Indices, Visit, plan_stream
from lessmore.errors import ConfigError, ImageError


@dataclass(frozen=True)
class Stream:
    """Images in a fixed, seeded order, each with the corruption it is seen under. Picklable."""

    dataset: Dataset
    visits: tuple[Visit, ...]
    order: str
    seed: int
    note: str = ""
    """How the images were chosen, such as `stratified 1,000 of 8,100 images`; empty for all of them."""

    def __len__(self) -> int:
        return len(self.visits)

    def id(self, i: int) -> str:
        """The data set's id, plus `@contrast:4` where corrupted; unique in the stream."""
        visit = self.visits[i]
        name = self.dataset.ids[visit.index]
        return name if visit.corruption is None else f"{name}@{visit.corruption}"

    def label(self, i: int) -> int:
        """The true class."""
        return self.dataset.labels[self.visits[i].index]

    def image(self, i: int) -> Image.Image:
        """The image, decoded and then corrupted; raises `ImageError` where either cannot be done."""
        visit = self.visits[i]
        image = self.dataset.image(visit.index)
        if visit.corruption is None:
            return image
        try:
            return corrupt(image, visit.corruption, self.dataset.ids[visit.index])
        except ImageError as error:
            raise ImageError(f"{self.id(i)}: {error}") from error

    def fingerprint(self) -> str:
        """Sha256 over the data set's fingerprint and every visit: what is seen, however it was asked for."""
        seen = hashlib.sha256(self.dataset.fingerprint().encode())
        seen.update(json.dumps([[visit.index, visit.domain] for visit in self.visits]).encode())
        return seen.hexdigest()


def make_stream(
    dataset: Dataset, order: str = "iid", seed: int = 0, limit: int | float | None = None, corruption: str | None = None
) -> Stream:
    """The stream that an order text asks for.

    Args:
        dataset: Where the images come from.
        order: A text of `lessmore.data.orders`.
        seed: Seeds the order.
        limit: That many images, or a fraction below 1, with classes in their proportions; None means all. Where the
            order chooses classes, of the images of these.
        corruption: Such as `contrast:4`, for all images; only for orders that set none themselves.

    Raises:
        ConfigError: The order, the limit or the corruption is wrong.
    """
    plan, generator = plan_stream(order, corruption), _generator(order, seed, dataset.name)
    labels = np.asarray(dataset.labels, dtype=np.int64)
    seen = np.unique(labels) if plan.classes is None else plan.classes(labels, generator)
    chosen, note = _limited(labels, seen, limit, dataset.name)
    visits = plan.visits(chosen, labels, generator)
    return Stream(dataset, tuple(visits), order, seed, note)


def _generator(*parts: object) -> np.random.Generator:
    return np.random.default_rng(list(hashlib.sha256(json.dumps(parts).encode()).digest()))


def _limited(labels: Indices, seen: Indices, limit: int | float | None, name: str) -> tuple[Indices, str]:
    """Numbers of the images to use, of the classes seen, ascending, and the note that says how they were chosen."""
    every = np.bincount(labels)
    counts = np.where(np.isin(np.arange(len(every)), seen), every, 0)
    total, present = int(counts.sum()), np.count_nonzero(every)
    wanted = total if limit is None else _count(limit, total)
    shares = counts if wanted == total else _shares(counts, wanted)
    kept = np.count_nonzero(shares)
    classes = "" if kept == present else f"{kept:,} of {present:,} classes"
    if wanted == total:
        return np.flatnonzero(np.isin(labels, seen)), f"{total:,} images, {classes}" if classes else ""
    generator = _generator("limit", name)  # neither seed nor order, so that all runs keep the same images
    parts = [generator.permutation(np.flatnonzero(labels == c))[:share] for c, share in enumerate(shares)]
    note = f"stratified {wanted:,} of {total:,} images"
    return np.sort(np.concatenate(parts)), ", ".join(part for part in (note, classes) if part)


def _count(limit: int | float, total: int) -> int:
    if isinstance(limit, float) and 0 < limit < 1:
        return max(1, round(limit * total))
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise ConfigError(f"limit must be a number of images from 1 or a fraction between 0 and 1, not {limit}")
    return min(limit, total)


def _shares(counts: Indices, wanted: int) -> Indices:
    """Images per class [C]: `counts` scaled to `wanted` by largest remainder; no class is lost if all have room."""
    total = counts.sum()
    least = ((counts > 0) & (wanted >= np.count_nonzero(counts))).astype(np.int64)
    shares = np.maximum(counts * wanted // total, least)
    while (missing := wanted - shares.sum()) != 0:
        owed = counts * wanted - shares * total
        if missing > 0:
            shares[np.argmax(owed)] += 1
        else:
            shares[np.argmin(np.where(shares > least, owed, np.iinfo(np.int64).max))] -= 1
    return shares
