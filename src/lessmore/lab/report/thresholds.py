"""What a threshold on confidence gives: how many answers are at least so sure, and how many of these are right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lessmore.lab.journal import SampleRow
from lessmore.lab.report.charts import Axis, Plot, round_axis
from lessmore.lab.report.detail import DetailFigure

PERCENTS = tuple(range(100))
"""Thresholds that the page can choose."""
SHOWN = (50, 60, 70, 80, 90, 95)
"""Thresholds of the table."""
TITLE = "What a threshold gives"
KINDS = {
    "zero-shot": ("zero_shot", "zero_shot_probability"),
    "raw": ("prediction", "probability"),
    "reported": ("prediction", "confidence"),
}
"""Whose answers, with the columns of the class and of its probability."""
_STYLES = {"raw": "c1", "reported": "c2", "zero-shot": "c0"}
_LEAST = 10
"""Shares of fewer answers say nothing and are not drawn."""


class Above(NamedTuple):
    """Answers at or above each of `PERCENTS`."""

    taken: list[int]
    right: list[int]


def answers_above(rows: Sequence[SampleRow]) -> dict[str, Above]:
    """How many answers each threshold lets pass, and how many of these are right, by kind.

    Args:
        rows: Of the run; unreadable images are ignored.
    """
    answered = [row for row in rows if "error" not in row]
    limits = np.array(PERCENTS) / 100
    found: dict[str, Above] = {}
    for kind, (answer, probability) in KINDS.items():
        sure = np.array([row[probability] for row in answered], dtype=np.float64)
        hits = np.array([row[answer] == row["label"] for row in answered], dtype=bool)
        passing = [len(part) - np.searchsorted(np.sort(part), limits) for part in (sure, sure[hits])]
        found[kind] = Above(*(counts.tolist() for counts in passing))
    return found


def threshold_figure(rows: Sequence[SampleRow]) -> DetailFigure:
    """Share of right answers against the share that a threshold lets pass, and both at some thresholds.

    Args:
        rows: Of the run.
    """
    above = answers_above(rows)
    n = max(above["reported"].taken[0], 1)
    curves = {
        kind: [(100 * t / n, 100 * r / t) for t, r in zip(*above[kind], strict=True) if t >= min(_LEAST, n)]
        for kind in _STYLES
    }
    across = Axis(0, 100, [(v, f"{v}") for v in (0, 25, 50, 75, 100)], "answers at or above the threshold, %")
    plot = Plot(across, round_axis(right for curve in curves.values() for _, right in curve))
    for kind, curve in curves.items():
        plot.line(curve, f"curve {_STYLES[kind]}")
    body = tuple((f"{percent} %", *(_cell(above[kind], percent, n) for kind in KINDS)) for percent in SHOWN)
    caption = (
        "Share of right answers among those that a threshold lets pass; raw scores are dashed. In the table: share "
        "that passes, and share of these that is right, in percent."
    )
    label = f"Right answers against answers that pass. Without a threshold {100 * above['reported'].right[0] / n:.1f} %"
    return DetailFigure(TITLE, plot.svg(label), caption, ("at least", *KINDS), body)


def _cell(above: Above, percent: int, n: int) -> str:
    taken, right = above.taken[percent], above.right[percent]
    return f"{100 * taken / n:.1f} / {100 * right / taken:.1f}" if taken else "0.0 / –"
