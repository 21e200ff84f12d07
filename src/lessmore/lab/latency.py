"""How long things take, compared fairly: contenders take turns, so that all see the same machine.

A machine does other things too, and clocks drift. Medians of interleaved rounds survive both, and a ratio is taken
round by round before its median is: what slows one round down slows both of its sides.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

Contenders = Mapping[str, Callable[[], object]]
Times = dict[str, list[float]]
"""Seconds of every contender, one value per round, all in the order of the rounds."""


class Ratio(NamedTuple):
    """One contender's time as a multiple of another's, with a 95 % interval."""

    value: float
    low: float
    high: float


def timed(run: Callable[[], object], device: torch.device | str = "cpu") -> float:
    """Seconds of one call, the device drained before and after."""
    wait = torch.cuda.synchronize if torch.device(device).type == "cuda" else _nothing
    wait()
    start = time.perf_counter()
    run()
    wait()
    return time.perf_counter() - start


def _nothing() -> None:
    pass


def interleaved(
    contenders: Contenders, rounds: int, device: torch.device | str = "cpu", warmup: int = 3
) -> Iterator[Times]:
    """Time every contender once per round, in an order that changes from round to round.

    Yields the times so far after every round, warm-up rounds left out, so that callers may stop early or show progress.
    """
    times: Times = {name: [] for name in contenders}
    order, shuffle = list(contenders), random.Random(0).shuffle
    for i in range(warmup + rounds):
        shuffle(order)
        for name in order:
            seconds = timed(contenders[name], device)
            if i >= warmup:
                times[name].append(seconds)
        if i >= warmup:
            yield times


def measure_latency(contenders: Contenders, rounds: int, device: torch.device | str = "cpu", warmup: int = 3) -> Times:
    """All rounds of `interleaved`."""
    times: Times = {name: [] for name in contenders}
    for times in interleaved(contenders, rounds, device, warmup):  # noqa: B007 (the last one is what we want)
        pass
    return times


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie, by linear interpolation."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def ratio(times: Sequence[float], base: Sequence[float], draws: int = 1000) -> Ratio:
    """Median over the rounds of times/base, with a bootstrap interval over the rounds."""
    pairs = [t / b for t, b in zip(times, base, strict=True)]
    choices = random.Random(0).choices
    medians = [statistics.median(choices(pairs, k=len(pairs))) for _ in range(draws)]
    return Ratio(statistics.median(pairs), percentile(medians, 0.025), percentile(medians, 0.975))
