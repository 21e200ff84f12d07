"""The table of README.md: every preset and rival on the same images, all made by one command.

    lessmore sweep benchmarks/readme.yaml --output RUNS                  # photo-s8 and the data lie in ../shared
    lessmore build RUNS -o benchmarks/results/readme.csv
    python benchmarks/readme_table.py                                    # writes README.md
    python benchmarks/readme_table.py --check                            # exit code 1 if it is not up to date

The runs of a mixed stream differ in their seed alone and see the same images in another order, so their intervals are
averaged; a camera runs once. The three data sets share no image, so the half-widths of their means add up in
quadrature.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from lessmore.storage.files import replacing

REPOSITORY = Path(__file__).resolve().parents[1]
RUNS = REPOSITORY / "benchmarks" / "results" / "readme.csv"
BEGIN, END = "<!-- table: made by benchmarks/readme_table.py -->", "<!-- end of the table -->"
TITLES = {"eurosat": "EuroSAT", "caltech101": "Caltech101", "tiny_imagenet": "Tiny-ImageNet"}
SHIFTS = {"": "clean", "contrast:2": "low contrast"}
SEEDS = {"iid": 3, "camera": 1}
"""Runs of each stream, by order."""
ROWS = {
    ("zeroshot", "default"): "zero-shot, the plain model",
    ("tda", "default"): "TDA, its published settings",
    ("tca", "paper"): "TCA as the paper writes it, `paper`",
    ("tca", "released"): "TCA as its authors released it, `released`",
    ("tca", "default"): "**TCA as we set it, `default`**",
    ("tca", "camera"): "**TCA as we set it for cameras, `camera`**",
}
"""Names by method and preset."""
HEAD = (
    "| | mixed images, low contrast: accuracy | gain | mixed, clean: accuracy | gain | a camera's images: gain "
    "| worst of the twelve streams | GMACs |"
)

Interval = Sequence[float]
"""A value, and the ends of its 95 % interval, in percent or points."""
Stream = tuple[str, str, str]
"""Data set, corruption and order."""


class Line(NamedTuple):
    """One row of the table."""

    name: str
    accuracy: Mapping[Stream, Interval]
    gain: Mapping[Stream, Interval]
    gmacs: float


def main() -> int:
    """Write or check the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, say whether the table is up to date")
    check = parser.parse_args().check
    target = REPOSITORY / "README.md"
    before = target.read_text(encoding="utf-8")
    head, _, rest = before.partition(BEGIN)
    after = f"{head}{BEGIN}\n{table()}{END}{rest.partition(END)[2]}"
    if check or before == after:
        print("up to date" if before == after else "README.md differs from the result file; run this without --check")
        return int(before != after)
    with replacing(target) as new:
        new.write_text(after, encoding="utf-8")
    return 0


def table() -> str:
    """The table as Markdown."""
    found: dict[tuple[str, str], list[Mapping[str, str]]] = defaultdict(list)
    with RUNS.open(encoding="utf-8") as file:
        for run in csv.DictReader(file):
            found[run["spec.method"], run["spec.preset"]].append(run)
    lines = [line(name, found[row]) for row, name in ROWS.items()]
    return "\n".join([HEAD, "|" + " --- |" * (HEAD.count("|") - 1), *map(_markdown, lines)]) + "\n"


def line(name: str, runs: Sequence[Mapping[str, str]]) -> Line:
    """A row of the table.

    Args:
        name: Its name.
        runs: All its runs.
    """
    of: dict[Stream, list[Mapping[str, str]]] = defaultdict(list)
    for run in runs:
        of[run["dataset.name"], run["spec.corruption"], run["spec.order"]].append(run)
    assert {order: len(seeds) for (_, _, order), seeds in of.items()} == SEEDS, f"{name}: {len(runs)} runs"
    assert len(of) == len(TITLES) * len(SHIFTS) * len(SEEDS), f"{name}: {len(of)} streams"
    return Line(
        name,
        {stream: _over_seeds(seeds, "accuracy") for stream, seeds in of.items()},
        {stream: _over_seeds(seeds, "gain") for stream, seeds in of.items()},
        fmean(float(run["cost.gmacs_matmul"]) for run in runs),
    )


def _over_seeds(runs: Sequence[Mapping[str, str]], value: str) -> Interval:
    names = (f"metrics.{value}", f"metrics.{value}_ci.low", f"metrics.{value}_ci.high")
    return [100 * fmean(float(run[name]) for run in runs) for name in names]


def _mean(streams: Mapping[Stream, Interval], order: str, shifts: Sequence[str] = tuple(SHIFTS)) -> Interval:
    """Mean over streams of an order. The conditions of a data set show the same images, so their ends are averaged."""
    sets = [[fmean(streams[name, shift, order][i] for shift in shifts) for i in range(3)] for name in TITLES]
    centre = fmean(value for value, _, _ in sets)
    below = math.hypot(*(value - low for value, low, _ in sets)) / len(sets)
    above = math.hypot(*(high - value for value, _, high in sets)) / len(sets)
    return [centre, centre - below, centre + above]


def _markdown(row: Line) -> str:
    plain = not any(map(any, row.gain.values()))
    cells = [row.name]
    for shift in ("contrast:2", ""):
        cells += [_shown(_mean(row.accuracy, "iid", [shift]), ".1f")]
        cells += ["–" if plain else _shown(_mean(row.gain, "iid", [shift]), "+.1f")]
    (name, shift, order), least = min(row.gain.items(), key=lambda stream: stream[1][0])
    where = ", ".join([TITLES[name], SHIFTS[shift], *(["a camera"] if order == "camera" else [])])
    cells += ["–" if plain else _shown(_mean(row.gain, "camera"), "+.1f")]
    cells += ["–" if plain else f"{_shown(least, '+.1f')} {where}", f"{row.gmacs:.2f}"]
    return "| " + " | ".join(cells) + " |"


def _shown(value: Interval, kind: str) -> str:
    centre, low, high = (f"{one:{kind}}".replace("-", "−") for one in value)
    return f"{centre} [{low}, {high}]"


if __name__ == "__main__":
    sys.exit(main())
