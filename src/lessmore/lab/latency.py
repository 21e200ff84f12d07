"""How long things take, compared fairly: contenders take turns, so that all see the same machine.

A machine does other things too, and clocks drift. Medians over interleaved rounds are robust to both. A ratio is taken
within each round before the median is: whatever slows a round slows both sides of its ratio.
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
"""Seconds by contender, one value per round, in the order of the rounds."""


class Ratio(NamedTuple):
    """One contender's time as a multiple of another's, with a 95 % interval."""

    value: float
    low: float
    high: float


def seconds_of(run: Callable[[], object], device: torch.device | str = "cpu") -> float:
    """Seconds of one call, with all work on the device finished before and after.

    Args:
        run: What to time.
        device: Where it runs.
    """
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

    Args:
        contenders: What to time, by name.
        rounds: Rounds that count.
        device: Where they run.
        warmup: Rounds before those, which do not count.

    Yields:
        The times so far, after every round that counts, so that callers can stop early or show progress.
    """
    times: Times = {name: [] for name in contenders}
    order, shuffle = list(contenders), random.Random(0).shuffle
    for i in range(warmup + rounds):
        shuffle(order)  # in a fixed order each would always follow the same rival, and meet the caches it left
        for name in order:
            seconds = seconds_of(contenders[name], device)
            if i >= warmup:
                times[name].append(seconds)
        if i >= warmup:
            yield times


def measure_latency(contenders: Contenders, rounds: int, device: torch.device | str = "cpu", warmup: int = 3) -> Times:
    """All rounds of `interleaved`.

    Args:
        contenders: What to time, by name.
        rounds: Rounds that count.
        device: Where they run.
        warmup: Rounds before those, which do not count.
    """
    times: Times = {name: [] for name in contenders}
    for times in interleaved(contenders, rounds, device, warmup):  # noqa: B007 (the last one is what we want)
        pass
    return times


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which a share of the values lies, by linear interpolation.

    Args:
        values: In any order, at least one.
        share: 0 to 1.
    """
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def time_ratio(times: Sequence[float], base: Sequence[float], draws: int = 1000) -> Ratio:
    """Median over the rounds of times / base, with a 95 % bootstrap interval over the rounds.

    Args:
        times: Seconds per round.
        base: Seconds of the other contender in the same rounds.
        draws: Bootstrap samples.
    """
    pairs = [t / b for t, b in zip(times, base, strict=True)]
    choices = random.Random(0).choices
    medians = [statistics.median(choices(pairs, k=len(pairs))) for _ in range(draws)]
    return Ratio(statistics.median(pairs), percentile(medians, 0.025), percentile(medians, 0.975))
