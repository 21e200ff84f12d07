"""The table of README.md, made from the committed result files of photo-s8.

    python benchmarks/readme_table.py           # writes README.md
    python benchmarks/readme_table.py --check   # exit code 1 if it is not up to date

Zero-shot and TDA come from `lessmore reproduce cross-dataset`, `paper` and `released` from `lessmore reproduce
options`, `default` from `lessmore run`. All saw the same 600 images of each stream. The first two files hold intervals
of the means over streams. The third holds those of single streams only, so the interval of its mean is put together
from them: the three data sets share no image, hence half-widths add up in quadrature.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from lessmore.storage.files import replacing

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results"
BEGIN, END = "<!-- table: made by benchmarks/readme_table.py -->", "<!-- end of the table -->"
SETS = ("eurosat", "caltech101", "tiny_imagenet")
TITLES = {"eurosat": "EuroSAT", "caltech101": "Caltech101", "tiny_imagenet": "Tiny-ImageNet"}
GROUPS = {"clean average": "", "corrupted average": "contrast:2"}
ROWS = (
    ("zero-shot, the plain model", "cross-dataset", "CLIP"),
    ("TDA, its published settings", "cross-dataset", "TDA"),
    ("TCA as the paper writes it, `paper`", "options", "preset paper"),
    ("TCA as its authors released it, `released`", "options", "preset released"),
)

Interval = Sequence[float]
"""A value, and the ends of its 95 % interval."""


class Line(NamedTuple):
    """One row of the table, in percent and points."""

    name: str
    accuracy: dict[str, Interval]
    """By group of streams."""
    gain: dict[str, Interval]
    worst: tuple[str, Interval]
    """The stream with the lowest gain."""
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
        print("up to date" if before == after else "README.md differs from the result files; run this without --check")
        return int(before != after)
    with replacing(target) as new:
        new.write_text(after, encoding="utf-8")
    return 0


def table() -> str:
    """The table as Markdown."""
    head = "| | low contrast, accuracy | gain | clean, accuracy | gain | worst of the six streams | GMACs |"
    lines = [line(*row) for row in ROWS] + [default()]
    return "\n".join([head, "| --- | --- | --- | --- | --- | --- | --- |", *map(_markdown, lines)]) + "\n"


def line(name: str, file: str, row: str) -> Line:
    """A row of one of the stored tables."""
    stored = json.loads((RESULTS / "reproduce" / "photo-s8" / f"{file}.json").read_text(encoding="utf-8"))
    (found,) = [one for one in stored["rows"] if one["name"] == row]
    pairs = zip(stored["columns"], found["cells"], strict=True)
    streams = {_stream(c["dataset"], c["corruption"]): i["gain"] for c, i in pairs}
    averages = found["averages"]
    return Line(
        name,
        {group: averages[group]["accuracy"] for group in GROUPS},
        {group: averages[group]["gain"] for group in GROUPS},
        _worst(streams),
        found["gmacs"]["matmul"],
    )


def default() -> Line:
    """The row of the preset `default`, from the table of its runs."""
    with (RESULTS / "photo-s8-labelfree.csv").open(encoding="utf-8") as file:
        runs = [run for run in csv.DictReader(file) if run["spec.preset"] == "labelfree"]
    of = {
        (name, shift): [run for run in runs if (run["dataset.name"], run["spec.corruption"]) == (name, shift)]
        for name in SETS
        for shift in GROUPS.values()
    }
    accuracy = {key: _over_orders(found, "accuracy", "accuracy_ci") for key, found in of.items()}
    gain = {key: _over_orders(found, "gain", "gain_ci") for key, found in of.items()}
    used = [run for found in of.values() for run in found]
    return Line(
        "**TCA as we set it, `default`**",
        {group: _mean([accuracy[name, shift] for name in SETS]) for group, shift in GROUPS.items()},
        {group: _mean([gain[name, shift] for name in SETS]) for group, shift in GROUPS.items()},
        _worst({_stream(*key): value for key, value in gain.items()}),
        fmean(float(run["cost.gmacs_matmul"]) for run in used),
    )


def _over_orders(runs: Sequence[Mapping[str, Any]], value: str, ends: str) -> Interval:
    """Mean over the orders of a stream; they share their images, so the interval is their mean as well."""
    names = (f"metrics.{value}", f"metrics.{ends}.low", f"metrics.{ends}.high")
    return [100 * fmean(float(run[name]) for run in runs) for name in names]


def _mean(streams: Sequence[Interval]) -> Interval:
    """Mean over streams that share no image."""
    middle = fmean(value for value, _, _ in streams)
    below = math.hypot(*(value - low for value, low, _ in streams)) / len(streams)
    above = math.hypot(*(high - value for value, _, high in streams)) / len(streams)
    return [middle, middle - below, middle + above]


def _worst(streams: Mapping[str, Interval]) -> tuple[str, Interval]:
    return min(streams.items(), key=lambda stream: stream[1][0])


def _stream(dataset: str, corruption: str | None) -> str:
    return TITLES[dataset] + (", low contrast" if corruption else ", clean")


def _markdown(row: Line) -> str:
    cells = [row.name]
    plain = not any(map(any, row.gain.values()))
    for group in ("corrupted average", "clean average"):
        cells += [_shown(row.accuracy[group], ".1f"), "–" if plain else _shown(row.gain[group], "+.1f")]
    stream, gain = row.worst
    cells += ["–" if plain else f"{_shown(gain, '+.1f')} {stream}", f"{row.gmacs:.2f}"]
    return "| " + " | ".join(cells) + " |"


def _shown(value: Interval, kind: str) -> str:
    middle, low, high = (f"{one:{kind}}".replace("-", "−") for one in value)
    return f"{middle} [{low}, {high}]"


if __name__ == "__main__":
    sys.exit(main())
