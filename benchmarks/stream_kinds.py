"""The kinds of stream of `streams.py`: which frame comes when, and which of them are scored.

No frame comes twice in a stream, but for the attack of that name: a photograph is seen again only in another view.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from stream_pool import COVERED, Indices, Pool

LONG, SHORT, CAMERA, DAY = 400, 300, 600, 1000
"""Frames of streams of many classes, of few, of a camera, and of one whose domain alternates."""
NIGHT = 250
"""Frames between two changes of domain."""
BEFORE, COVER, AFTER = 200, 100, 330
"""Frames before the lens is covered, while it is, and after."""
SHARES = (5, 20, 50)
"""Garbage, in percent of the stream."""
Dice = np.random.Generator


class Stream(NamedTuple):
    """Frames in their order."""

    kind: str
    condition: str
    rows: Indices
    """Rows of the pool, `[T]`."""
    scored: NDArray[np.bool_]
    """`[T]`."""
    draw: int


def spread(pool: Pool, classes: Indices, count: int, dice: Dice) -> Indices:
    """Up to `count` frames of some classes: one of every photograph, then a second of every one, and so on."""
    frames = dice.permutation(np.flatnonzero(np.isin(pool.labels, classes)))
    photos = pool.photos[frames]
    order = np.argsort(photos, kind="stable")
    starts = np.searchsorted(photos[order], photos[order])
    turn = np.empty(len(frames), dtype=np.int64)
    turn[order] = np.arange(len(frames)) - starts
    return dice.permutation(frames[np.lexsort((dice.random(len(frames)), turn))[:count]])


def _all(pool: Pool) -> Indices:
    return np.arange(len(pool.texts.text))


def _iid(pool: Pool, dice: Dice) -> Indices:
    return spread(pool, _all(pool), LONG, dice)


def _sorted(pool: Pool, dice: Dice) -> Indices:
    frames, place = _iid(pool, dice), dice.permutation(len(pool.texts.text))
    return frames[np.argsort(place[pool.labels[frames]], kind="stable")]


def _only(count: Callable[[int], int], length: int, deep: bool) -> Callable[[Pool, Dice], Indices]:
    def choose(pool: Pool, dice: Dice) -> Indices:
        some = dice.permutation(pool.deep if deep else _all(pool))[: count(len(pool.texts.text))]
        return spread(pool, some, length, dice)

    return choose


def _zipf(pool: Pool, dice: Dice) -> Indices:
    """The class of rank r comes in proportion to 1/r, as far as it has frames; many views stand at the first ranks."""
    classes = np.concatenate([dice.permutation(pool.deep), dice.permutation(np.setdiff1d(_all(pool), pool.deep))])
    weights = 1 / np.arange(1, len(classes) + 1)
    counts = dice.multinomial(LONG, weights / weights.sum())
    return dice.permutation(np.concatenate([spread(pool, classes[[i]], n, dice) for i, n in enumerate(counts)]))


def camera(pool: Pool, length: int, dice: Dice) -> Indices:
    """Runs of 5 to 60 views of one photograph, each of one of 2 to 5 classes and another than the run before."""
    classes = dice.permutation(pool.deep)[: dice.integers(2, 6)]
    deep = np.flatnonzero(np.isin(pool.labels, classes))
    left = {int(p): list(dice.permutation(deep[pool.photos[deep] == p])) for p in np.unique(pool.photos[deep])}
    label = {p: int(pool.labels[frames[0]]) for p, frames in left.items()}
    out: list[int] = []
    last = -1
    while len(out) < length and (open_ := [p for p in left if len(left[p])]):
        other = [p for p in open_ if label[p] != last] or open_
        of_class = int(dice.choice(np.unique([label[p] for p in other])))
        photo = int(dice.choice([p for p in other if label[p] == of_class]))
        run = int(dice.integers(5, 61))
        out += left[photo][:run]
        left[photo], last = left[photo][run:], of_class
    return np.array(out[:length])


def _camera(pool: Pool, dice: Dice) -> Indices:
    return camera(pool, CAMERA, dice)


ORDERS: dict[str, Callable[[Pool, Dice], Indices]] = {
    "i.i.d.": _iid,
    "sorted": _sorted,
    "one class": _only(lambda C: 1, SHORT, deep=True),
    "three classes": _only(lambda C: 3, SHORT, deep=True),
    "a tenth": _only(lambda C: max(2, C // 10), LONG, deep=False),
    "half absent": _only(lambda C: C // 2, LONG, deep=False),
    "Zipf": _zipf,
    "camera": _camera,
}
"""From a pool and dice to frames in their order."""
BESIEGED = {"i.i.d.": _iid, "one class": ORDERS["one class"], "camera": _camera}
COVER_KINDS = ("covered lens", "uncovered lens")


def _garbage(pool: Pool, sort: str, condition: str, rows: Indices, count: int, dice: Dice) -> Indices:
    """Rows that the attacker adds."""
    if sort == "black":
        return dice.choice(pool.black, count)
    if sort == "repeated":
        return np.repeat(dice.choice(rows), count)
    F, classes = len(pool.labels), len(pool.texts.text)
    k, at = int(dice.integers(classes)), pool.conditions.index(condition) * F
    wrong = np.flatnonzero((pool.labels != k) & (pool.labels >= 0))
    features = pool.codes["default"].features[torch.from_numpy(at + wrong).to(pool.texts.text.device)]
    sure = pool.texts.logits(features).softmax(dim=1)[:, k].cpu().numpy()
    return dice.permutation(at + wrong[np.argsort(-sure)[:count]])


def _besieged(pool: Pool, base: str, sort: str, share: int, condition: str, draw: int) -> Stream:
    dice = np.random.default_rng([draw, share, len(sort), len(base)])
    rows = pool.rows(condition, BESIEGED[base](pool, dice)[:SHORT])
    count = round(len(rows) * share / (100 - share))
    extra = _garbage(pool, sort, condition, rows, count, dice)
    at = np.sort(dice.integers(1, len(rows) + 1, size=count))
    scored = np.insert(np.ones(len(rows), bool), at, False)
    return Stream(f"{base}, {share} % {sort}", condition, np.insert(rows, at, extra), scored, draw)


def _lens(pool: Pool, condition: str, draw: int) -> list[Stream]:
    """An i.i.d. stream whose lens is covered in the middle, by black or by blur in turn, and the same uncovered."""
    dice = np.random.default_rng([draw, 7])
    frames = spread(pool, _all(pool), BEFORE + AFTER, dice)
    rows = pool.rows(condition, frames)
    blurred = pool.rows(condition, len(pool.labels) - COVERED + np.arange(COVERED))
    cover = np.resize(dice.permutation(pool.black if draw % 2 else blurred), COVER)
    scored = np.ones(len(rows), bool)
    both = np.insert(rows, [BEFORE] * COVER, cover), np.insert(scored, [BEFORE] * COVER, False)
    return [Stream("covered lens", condition, *both, draw), Stream("uncovered lens", condition, rows, scored, draw)]


def make_streams(pool: Pool, draws: int, besieged: Sequence[str]) -> list[Stream]:
    """All streams of a pool; garbage under the conditions of `besieged` alone."""
    made: list[Stream] = []
    for draw in range(draws):
        for kind, order in ORDERS.items():
            frames = order(pool, np.random.default_rng([draw, len(kind)]))
            made += [Stream(kind, c, pool.rows(c, frames), np.ones(len(frames), bool), draw) for c in pool.conditions]
        frames = camera(pool, DAY, np.random.default_rng([draw, 5]))
        night = (np.arange(len(frames)) // NIGHT) % 2 == 1
        for condition in pool.conditions[1:]:
            rows = np.where(night, pool.rows(condition, frames), pool.rows(pool.conditions[0], frames))
            made.append(Stream("day and night", condition, rows, np.ones(len(frames), bool), draw))
        for condition in pool.conditions:
            made += _lens(pool, condition, draw)
        for condition in besieged:
            made += [
                _besieged(pool, base, sort, share, condition, draw)
                for base in BESIEGED
                for sort in ("black", "repeated", "chosen")
                for share in SHARES
            ]
    return made
