"""Who enters the reservoir, decided on the host for a whole chunk of images in order.

On CUDA `kernels.admission` decides the same without leaving the device.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lessmore.config import Strategy


class Arrivals(NamedTuple):
    """What the decisions about n images depend on."""

    label: list[int]
    """Predicted class."""
    key: list[float]
    """Reliability H."""
    sound: list[bool]
    """Whether an image may be stored at all."""
    near: NDArray[np.float64] | None
    """Cosines of layer-mean tokens, [n, M + n]: with the slots of the predicted class as they were before the chunk,
    then with the chunk's images. None where the strategy does not look at them."""


@dataclass
class ClassEntries:
    """The entries of one class, in slot order."""

    keys: list[float] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    cosines: list[list[float]] = field(default_factory=list)
    """Between entries, 0 on the diagonal."""
    origin: list[int] = field(default_factory=list)
    """Where an entry is found: m < M in that slot before the chunk, M + j in image j of the chunk."""

    def put(self, slot: int, key: float, id: int, near: list[float], origin: int) -> None:
        """Let a newcomer in, at the end or in place of another entry.

        Args:
            slot: Where it goes; the number of entries appends it.
            key: Its reliability H.
            id: Its place in the stream.
            near: Its cosines with the present entries.
            origin: Where it is found, as in `ClassEntries.origin`.
        """
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
    """Of all entries of the class from then on, in slot order, as in `ClassEntries.origin`."""


class AdmissionOutcome(NamedTuple):
    """What a chunk of images does to the reservoir."""

    stored: list[Stored]
    all_ready: int
    """The first image that finds two entries in every class; larger than any index if there is none."""


def leaving_slot(strategy: Strategy, entries: ClassEntries, key: float, id: int, near: list[float]) -> int:
    """The slot of a full class that a newcomer takes, by the rule of `reservoir.eviction_scores`.

    Args:
        strategy: How the leaving entry is chosen.
        entries: The entries of the class.
        key: The newcomer's reliability H.
        id: Its place in the stream.
        near: Its cosines with the entries.

    Returns:
        The slot, or −1 if the newcomer itself has to leave.
    """
    if strategy == "fifo":
        scores: list[float] = [-id, *(-i for i in entries.ids)]
    elif strategy == "uncertainty":
        scores = [key, *entries.keys]
    else:
        sign = (1 if strategy == "diversity" else -1) / len(entries.keys)
        scores = [key + sign * sum(near)]
        for own, cosine, row in zip(entries.keys, near, entries.cosines, strict=True):
            scores.append(own + sign * (cosine + sum(row)))
    return scores.index(max(scores)) - 1


def admit_all(
    classes: Sequence[ClassEntries], M: int, strategy: Strategy, seen: int, images: Arrivals
) -> AdmissionOutcome:
    """Admit images one after another.

    Args:
        classes: The entries of every class; updated in place.
        M: Slots per class.
        strategy: How the leaving entry of a full class is chosen.
        seen: Images of the stream before these.
        images: The images.

    Returns:
        The images that were stored, and from which image on every class is ready.
    """
    stored: list[Stored] = []
    lacking = sum(len(entries.keys) < 2 for entries in classes)
    all_ready = sys.maxsize if lacking else 0
    for i, (label, key, sound) in enumerate(zip(images.label, images.key, images.sound, strict=True)):
        if not sound:
            continue
        entries = classes[label]
        near = [0.0] * len(entries.keys) if images.near is None else images.near[i, entries.origin].tolist()
        count = slot = len(entries.keys)
        if count == M:
            slot = leaving_slot(strategy, entries, key, seen + i, near)
        if slot < 0:
            continue
        entries.put(slot, key, seen + i, near, M + i)
        stored.append(Stored(i, label, slot, tuple(entries.origin)))
        # Its class has its second entry now. It never loses one again, for entries are replaced, not removed.
        if slot == count == 1:
            lacking -= 1
            all_ready = all_ready if lacking else i + 1
    return AdmissionOutcome(stored, all_ready)
