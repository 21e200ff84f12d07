"""Orders of a stream: a short text becomes a plan, and a plan turns images into visits.

iid                             random
sorted                          class after class, random within each
blocks or blocks:50             runs of 10, or 50, images of one class, the runs in random order
mixture:contrast:4,fog:3,none   random, every image under one of these, each as often as the others
gradual:fog                     random, with severity rising from 0 to 5 and falling back to 0
cycle or cycle:contrast,fog@3   the whole set once per corruption, one corruption after another; by default the 15
                                main ones at severity 5
few or few:3                    random, images of a tenth of the classes, two at least, or of 3 classes
camera or camera:4              as a camera sees a place: 2 to 5 classes, or 4, in runs of 5 to 60 images of one class
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lessmore.data.corrupt import MAIN, SEVERITIES, Corruption, parse_corruption
from lessmore.errors import ConfigError, unknown

CLEAN = "none"
"""Name of the domain without corruption."""
RUN_LENGTH = 10
CYCLE_SEVERITY = 5

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Visit:
    """One step of a stream."""

    index: int
    """Number of the image in the data set."""
    corruption: Corruption | None = None

    @property
    def domain(self) -> str:
        """What the image comes from: the corruption's text, or `none`."""
        return CLEAN if self.corruption is None else str(self.corruption)


CAMERA_RUN = (5, 60)
"""Images in a run of `camera`, at least and at most; the last run of a class may be shorter."""

Visits = Callable[[Indices, Indices, np.random.Generator], list[Visit]]
"""A function of the images to visit `[n]`, the labels of all images `[N]` and a generator; it returns the visits."""
Choice = Callable[[Indices, np.random.Generator], Indices]
"""A function of the labels of all images `[N]` and a generator; it returns the classes to see."""


@dataclass(frozen=True)
class StreamPlan:
    """What an order asks for."""

    visits: Visits
    classes: Choice | None = None
    """Chooses the classes to see, of whose images some may be left out later; None for all of them."""


def plan_stream(order: str, corruption: str | None = None) -> StreamPlan:
    """The plan that an order text asks for. Every mistake in the text is found here, before any work.

    Args:
        order: One of the texts above.
        corruption: Such as `contrast:4`, for all images; only for orders that set none themselves.

    Raises:
        ConfigError: The order or the corruption is unknown, or they do not go together.
    """
    name, rest = re.fullmatch(r"(\w*):?(.*)", order, re.DOTALL).groups()  # type: ignore[union-attr]
    if name not in _ORDERS:
        raise ConfigError(unknown("order", name, _ORDERS))
    fixed = _domain(corruption or CLEAN)
    if fixed is not None and name in ("mixture", "gradual", "cycle"):
        raise ConfigError(f"the order {name} sets the corruptions itself; leave the corruption {fixed} out")
    choice = _CHOICES[name](rest) if name in _CHOICES else None
    return StreamPlan(_ORDERS[name](rest, fixed), choice)


def chooses_classes(order: str) -> bool:
    """Whether the seed of an order decides which classes are seen."""
    return order.partition(":")[0] in _CHOICES


def _domain(text: str) -> Corruption | None:
    return None if text.strip() == CLEAN else parse_corruption(text)


def _iid(rest: str, corruption: Corruption | None) -> Visits:
    _nothing_more("iid", rest)
    return lambda images, labels, generator: [Visit(i, corruption) for i in _shuffled(images, generator)]


def _sorted(rest: str, corruption: Corruption | None) -> Visits:
    _nothing_more("sorted", rest)
    return lambda images, labels, generator: [Visit(i, corruption) for i in _by_class(images, labels, generator)]


def _blocks(rest: str, corruption: Corruption | None) -> Visits:
    length = _number(rest, "the length of blocks", RUN_LENGTH)

    def visits(images: Indices, labels: Indices, generator: np.random.Generator) -> list[Visit]:
        runs = _runs(_by_class(images, labels, generator), labels, length)
        return [Visit(i, corruption) for run in generator.permutation(len(runs)) for i in runs[run]]

    return visits


def _mixture(rest: str, corruption: Corruption | None) -> Visits:
    if "," not in rest:
        raise ConfigError("a mixture needs two domains or more; write mixture:contrast:4,fog:3,none")
    domains = [_domain(part) for part in rest.split(",")]

    def visits(images: Indices, labels: Indices, generator: np.random.Generator) -> list[Visit]:
        dealt = generator.permutation(np.arange(len(images)) % len(domains))
        return [Visit(i, domains[d]) for i, d in zip(_shuffled(images, generator), dealt, strict=True)]

    return visits


def _gradual(rest: str, corruption: Corruption | None) -> Visits:
    levels = [None, *(Corruption(rest.strip(), severity) for severity in range(1, SEVERITIES + 1))]

    def visits(images: Indices, labels: Indices, generator: np.random.Generator) -> list[Visit]:
        steps = np.arange(len(images)) * (2 * SEVERITIES + 1) // len(images)  # 0, 1, … 5, … 1, 0: eleven equal parts
        severities = SEVERITIES - abs(SEVERITIES - steps)
        return [Visit(i, levels[s]) for i, s in zip(_shuffled(images, generator), severities, strict=True)]

    return visits


def _cycle(rest: str, corruption: Corruption | None) -> Visits:
    names, _, severity = rest.partition("@")
    level = _number(severity, "the severity of cycle", CYCLE_SEVERITY)
    turns = [Corruption(name.strip(), level) for name in (names.split(",") if names else MAIN)]
    if len(set(turns)) < len(turns):
        raise ConfigError("cycle names a corruption twice; name each once")
    return lambda images, labels, generator: [Visit(i, turn) for turn in turns for i in _shuffled(images, generator)]


def _few(rest: str, corruption: Corruption | None) -> Visits:
    return _iid("", corruption)


def _few_classes(rest: str) -> Choice:
    count = _number(rest, "the number of classes of few", 0)

    def choose(labels: Indices, generator: np.random.Generator) -> Indices:
        present = generator.permutation(np.unique(labels))
        return present[: count or max(2, len(present) // 10)]

    return choose


def _camera(rest: str, corruption: Corruption | None) -> Visits:
    def visits(images: Indices, labels: Indices, generator: np.random.Generator) -> list[Visit]:
        left = {k: _shuffled(images[labels[images] == k], generator) for k in np.unique(labels[images]).tolist()}
        seen: list[int] = []
        last = -1
        while left:
            others = [k for k in left if k != last] or list(left)
            last = others[int(generator.integers(len(others)))]
            length = int(generator.integers(CAMERA_RUN[0], CAMERA_RUN[1] + 1))
            seen += left[last][:length]
            left[last] = left[last][length:]
            if not left[last]:
                del left[last]
        return [Visit(i, corruption) for i in seen]

    return visits


def _camera_classes(rest: str) -> Choice:
    count = _number(rest, "the number of classes of camera", 0)

    def choose(labels: Indices, generator: np.random.Generator) -> Indices:
        many = count or int(generator.integers(2, 6))
        drawn = generator.permutation(labels)  # a class comes in proportion to its images
        first = np.sort(np.unique(drawn, return_index=True)[1])[:many]
        return drawn[first]

    return choose


_ORDERS: dict[str, Callable[[str, Corruption | None], Visits]] = {
    "iid": _iid,
    "sorted": _sorted,
    "blocks": _blocks,
    "mixture": _mixture,
    "gradual": _gradual,
    "cycle": _cycle,
    "few": _few,
    "camera": _camera,
}
_CHOICES: dict[str, Callable[[str], Choice]] = {"few": _few_classes, "camera": _camera_classes}


def _nothing_more(name: str, rest: str) -> None:
    if rest:
        raise ConfigError(f"the order {name} takes no argument, but has {rest!r}; write {name} alone")


def _number(text: str, what: str, default: int) -> int:
    if text and not (text.isdecimal() and int(text) > 0):
        raise ConfigError(f"{what} must be a whole number from 1, not {text!r}")
    return int(text) if text else default


def _shuffled(images: Indices, generator: np.random.Generator) -> list[int]:
    order: list[int] = generator.permutation(images).tolist()
    return order


def _by_class(images: Indices, labels: Indices, generator: np.random.Generator) -> list[int]:
    return sorted(_shuffled(images, generator), key=lambda image: int(labels[image]))


def _runs(by_class: list[int], labels: Indices, length: int) -> list[list[int]]:
    """Cut where the class changes or a run is full; a class's last run may be shorter."""
    runs: list[list[int]] = []
    for image in by_class:
        if not runs or len(runs[-1]) == length or labels[runs[-1][-1]] != labels[image]:
            runs.append([])
        runs[-1].append(image)
    return runs
