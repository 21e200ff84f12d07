"""Who enters the reservoir, decided on the host for a whole chunk of images, one after the other.

A ledger mirrors what decisions need of the reservoir: reliabilities, sample numbers and the cosines between entries. It
follows every decision exactly, so nothing but the newcomers' own figures has to come from the device.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lessmore.config import Strategy


class Newcomers(NamedTuple):
    """What decisions need to know of n images."""

    label: list[int]
    """Predicted class."""
    key: list[float]
    """Reliability H."""
    finite: list[bool]
    """Whether all values are; an image with others is never stored."""
    near: NDArray[np.float64] | None
    """Cosines of layer-mean tokens, [n, M + n]: with the slots of the predicted class as they were before the chunk,
    then with the chunk's images. None where the strategy does not look at them."""


@dataclass
class Shelf:
    """The entries of one class, in slot order."""

    keys: list[float] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    cosines: list[list[float]] = field(default_factory=list)
    """Between entries, 0 on the diagonal."""
    origin: list[int] = field(default_factory=list)
    """Where an entry is found: m < M in that slot before the chunk, M + j in image j of the chunk."""

    def copy(self) -> Shelf:
        """An independent one."""
        return Shelf(self.keys[:], self.ids[:], [row[:] for row in self.cosines], self.origin[:])

    def put(self, slot: int, key: float, id: int, near: list[float], origin: int) -> None:
        """Let a newcomer in, at the end or in place of another; near: its cosines with the entries."""
        if slot == len(self.keys):
            self.keys.append(key)
            self.ids.append(id)
            self.origin.append(origin)
            self.cosines.append([])
            for row, cosine in zip(self.cosines, near, strict=False):
                row.append(cosine)
            self.cosines[slot] = [*near, 0.0]
            return
        self.keys[slot], self.ids[slot], self.origin[slot] = key, id, origin
        for row, cosine in zip(self.cosines, near, strict=True):
            row[slot] = cosine
        self.cosines[slot] = [*near[:slot], 0.0, *near[slot + 1 :]]


class Stored(NamedTuple):
    """An image that entered the reservoir."""

    image: int
    label: int
    slot: int
    origins: tuple[int, ...]
    """Of all entries of the class from then on, in slot order, as in `Shelf.origin`."""


class Walk(NamedTuple):
    """What a chunk of images does to the reservoir."""

    stored: list[Stored]
    shelves: dict[int, Shelf]
    """The classes that changed, as they are at the end."""
    all_ready: int
    """The first image that finds two entries in every class; beyond all numbers where there is none."""


def evict(strategy: Strategy, shelf: Shelf, key: float, id: int, near: list[float]) -> int:
    """The slot of a full class that the newcomer takes, −1 where it goes itself: the rule of `eviction_scores`."""
    if strategy == "fifo":
        scores: list[float] = [-id, *(-i for i in shelf.ids)]
    elif strategy == "uncertainty":
        scores = [key, *shelf.keys]
    else:
        sign = (1 if strategy == "diversity" else -1) / len(shelf.keys)
        scores = [key + sign * sum(near)]
        for own, cosine, row in zip(shelf.keys, near, shelf.cosines, strict=True):
            scores.append(own + sign * (cosine + sum(row)))
    return scores.index(max(scores)) - 1


class Ledger:
    """All classes, and how many images have been seen."""

    def __init__(self, shelves: Iterable[Shelf], M: int, strategy: Strategy, seen: int = 0) -> None:
        self.shelves = list(shelves)
        self.M, self.strategy, self.seen = M, strategy, seen

    @property
    def lacking(self) -> int:
        """Classes with fewer than two entries."""
        return sum(len(shelf.keys) < 2 for shelf in self.shelves)

    def standstill(self) -> Walk:
        """The walk in which nothing happens."""
        return Walk([], {}, sys.maxsize if self.lacking else 0)

    def walk(self, images: Newcomers) -> Walk:
        """What the images would do, in their order; the ledger itself stays as it is."""
        stored, changed, all_ready = self.standstill()
        lacking = self.lacking
        for i, (label, key, finite) in enumerate(zip(images.label, images.key, images.finite, strict=True)):
            if not finite:
                continue
            shelf = changed.get(label) or self.shelves[label]
            near = [0.0] * len(shelf.keys) if images.near is None else images.near[i, shelf.origin].tolist()
            count = slot = len(shelf.keys)
            if count == self.M:
                slot = evict(self.strategy, shelf, key, self.seen + i, near)
            if slot < 0:
                continue
            if label not in changed:
                shelf = changed[label] = shelf.copy()
            shelf.put(slot, key, self.seen + i, near, self.M + i)
            stored.append(Stored(i, label, slot, tuple(shelf.origin)))
            if slot == count == 1:
                lacking -= 1
                all_ready = all_ready if lacking else i + 1
        return Walk(stored, changed, all_ready)

    def commit(self, walk: Walk, images: int) -> None:
        """Let a walk over so many images have happened."""
        for label, shelf in walk.shelves.items():
            shelf.origin = list(range(len(shelf.keys)))
            self.shelves[label] = shelf
        self.seen += images
