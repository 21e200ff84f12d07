"""What can come of one mutation, and how it is found out."""

from __future__ import annotations

import os
import random
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from types import FrameType

from lessmore.errors import LessmoreError

PATIENCE = float(os.environ.get("LESSMORE_PATIENCE", 30))
"""Seconds after which an attempt hangs; a busy machine is slow."""


class Outcome(Enum):
    """What came of a mutation; the last three are defects."""

    REFUSED = "refused"
    EQUAL = "equal"
    TRACEBACK = "traceback"
    SILENT = "silent"
    HANG = "hang"


DEFECTS = (Outcome.TRACEBACK, Outcome.SILENT, Outcome.HANG)


class Hang(BaseException):
    """No answer in time; no handler of `Exception` may swallow it."""


Attempt = Callable[[], "bool | Outcome"]
"""Uses something mutated; says whether its numbers are those of the original, or what came of it."""


@dataclass
class Tally:
    """Counts of one kind, and the first few defects in words."""

    counts: Counter[Outcome] = field(default_factory=Counter)
    defects: list[str] = field(default_factory=list)

    def add(self, outcome: Outcome, told: str) -> None:
        self.counts[outcome] += 1
        if outcome in DEFECTS and len(self.defects) < 20:
            self.defects.append(f"{outcome.value}: {told}")


@contextmanager
def limited() -> Iterator[None]:
    def ring(number: int, frame: FrameType | None) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def attempt(work: Attempt) -> tuple[Outcome, str]:
    """What comes of an attempt, and more about a defect."""
    try:
        with limited():
            found = work()
    except Hang:
        return Outcome.HANG, traceback.format_exc(limit=-3)
    except LessmoreError:
        return Outcome.REFUSED, ""
    except Exception:
        return Outcome.TRACEBACK, traceback.format_exc(limit=-3)
    if isinstance(found, Outcome):
        return found, ""
    return (Outcome.EQUAL if found else Outcome.SILENT), "other numbers without an error"


Trial = Callable[[random.Random], tuple[Attempt, str]]
"""Makes one mutation: the attempt to use it, and a word on what it is."""


def tally(trial: Trial, count: int, seed: int = 0) -> Tally:
    """The outcomes of that many mutations; number i is the same in every tally."""
    found = Tally()
    for i in range(count):
        work, told = trial(random.Random(f"{seed} {i}"))
        outcome, more = attempt(work)
        found.add(outcome, f"number {i}, {told}: {more}")
    return found
