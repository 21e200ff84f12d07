"""One run's charts and tables, from its rows: accuracy over time, calibration, gains by class and by domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lessmore.lab.confusion import confused_classes, confused_pairs, confusion
from lessmore.lab.journal import SampleRow
from lessmore.lab.metrics import BINS
from lessmore.lab.report.charts import Axis, Bar, Plot, bar_chart, heat_map, round_axis, signed_number

_FIRST = 20  # running accuracies of fewer images say nothing
_BARS = 15  # a chart has no more
_CONFUSED = 20  # rows of the confusion matrix
_PAIRS = 30  # lines of its table

_LAYERS = ("c2", "c0")  # zero-shot's dotted line lies over the adapted one, which it would vanish under
Curve = NDArray[np.float64]


@dataclass(frozen=True)
class DetailFigure:
    """A chart, its message in words, and its numbers as a table."""

    title: str
    svg: str
    caption: str
    head: tuple[str, ...]
    body: tuple[tuple[str, ...], ...]


def over_time_figure(rows: Sequence[SampleRow]) -> DetailFigure:
    """Share of right answers among all images so far."""
    answered = [row for row in rows if "error" not in row]
    first, n = min(_FIRST, len(answered)), len(answered)
    curves = [_running(answered, name)[first - 1 :] for name in ("zero_shot", "prediction")]
    plot = Plot(Axis(first, n, ((first, f"{first:,}"), (n, f"{n:,} images"))), round_axis(np.concatenate(curves)))
    for curve, css in zip(reversed(curves), _LAYERS, strict=True):
        plot.line(list(enumerate(curve.tolist(), start=first)), f"curve {css}")
    ends = f"zero-shot {curves[0][-1]:.1f} %, adapted {curves[1][-1]:.1f} %"
    at = np.unique(np.linspace(0, n - first, 11).round().astype(int))
    body = tuple((f"{first + i:,}", *(f"{curve[i]:.1f}" for curve in curves)) for i in at)
    label = f"Accuracy over all images so far. After {n} images: {ends}"
    return DetailFigure(
        "Running accuracy", plot.svg(label), f"At the end: {ends}.", ("images", "zero-shot", "adapted"), body
    )


def _running(rows: Sequence[SampleRow], name: str) -> Curve:
    hits = np.array([row[name] == row["label"] for row in rows], dtype=np.float64)
    return np.asarray(100 * hits.cumsum() / np.arange(1, len(hits) + 1))


def windows_figure(parts: Sequence[Any]) -> DetailFigure:
    """Accuracy within equal parts of the stream, from the summary."""
    ends = [part["seen"] for part in parts]
    middles = [(start + end) / 2 for start, end in zip([0, *ends], ends, strict=False)]
    curves = [[100 * part[name] for part in parts] for name in ("zero_shot_accuracy", "accuracy")]
    plot = Plot(Axis(0, ends[-1], ((0, "0"), (ends[-1], f"{ends[-1]:,} images"))), round_axis(chain(*curves)))
    for curve, css in zip(reversed(curves), _LAYERS, strict=True):
        plot.line(list(zip(middles, curve, strict=True)), f"curve {css}")
        for x, y in zip(middles, curve, strict=True):
            plot.dot((x, y), f"{css} dot", 2.5)
    body = tuple((f"{end:,}", *(f"{c[i]:.1f}" for c in curves)) for i, end in enumerate(ends))
    caption = f"Each point is one of {len(parts)} equal parts of the stream."
    label = f"Accuracy within {len(parts)} equal parts of the stream; the table below has the numbers"
    return DetailFigure(
        "Accuracy part by part", plot.svg(label), caption, ("images up to", "zero-shot", "adapted"), body
    )


@dataclass(frozen=True)
class Bins:
    """Answers by their confidence; empty bins are left out."""

    confidence: Curve
    """Mean in each bin."""
    accuracy: Curve
    share: Curve


def confidence_bins(rows: Sequence[SampleRow], name: str, probability: str) -> Bins:
    """Answers in equal bins of confidence, as many as the calibration error uses.

    Args:
        rows: Of the run; unreadable images are ignored.
        name: Column of the predicted class.
        probability: Column of its probability.
    """
    answered = [row for row in rows if "error" not in row]
    sure = np.array([row[probability] for row in answered], dtype=np.float64)
    hits = np.array([row[name] == row["label"] for row in answered], dtype=np.float64)
    bin_of = np.minimum((sure * BINS).astype(int), BINS - 1)
    counts = np.bincount(bin_of, minlength=BINS)
    used = counts > 0
    sums = [np.bincount(bin_of, weights=values, minlength=BINS)[used] / counts[used] for values in (sure, hits)]
    return Bins(sums[0], sums[1], counts[used] / len(answered))


def calibration_figure(rows: Sequence[SampleRow], metrics: Any) -> DetailFigure:
    """Accuracy against confidence; on the diagonal they agree.

    Args:
        rows: Of the run.
        metrics: Of its summary, for the calibration errors.
    """
    both = {
        "zero-shot": confidence_bins(rows, "zero_shot", "zero_shot_probability"),
        "adapted": confidence_bins(rows, "prediction", "confidence"),
    }
    axis = [(v / 100, f"{v}") for v in (0, 25, 50, 75, 100)]
    plot = Plot(Axis(0, 1, axis, "confidence, %"), Axis(0, 1, axis))
    plot.line([(0, 0), (1, 1)], "diagonal")
    for css, (name, bins) in zip(reversed(_LAYERS), both.items(), strict=True):
        points = list(zip(bins.confidence.tolist(), bins.accuracy.tolist(), strict=True))
        plot.line(points, f"curve {css}")
        for point, share in zip(points, bins.share.tolist(), strict=True):
            told = (
                f"{name}: {100 * share:.1f} % of the answers, {100 * point[0]:.0f} % sure, {100 * point[1]:.0f} % right"
            )
            plot.dot(point, f"{css} dot", 2 + 8 * share**0.5, told)
    errors = f"zero-shot {100 * metrics['zero_shot_ece']:.1f}, adapted {100 * metrics['confidence_ece']:.1f} points"
    body = tuple(
        (name, f"{100 * c:.1f}", f"{100 * a:.1f}", f"{100 * s:.1f}")
        for name, bins in both.items()
        for c, a, s in zip(bins.confidence, bins.accuracy, bins.share, strict=True)
    )
    head = ("answers", "confidence, %", "right, %", "share of answers, %")
    caption = (
        f"Calibration error: {errors}; raw scores {100 * metrics['ece']:.1f}. Below the dashed line answers are surer "
        "than right. Large dots: many answers."
    )
    return DetailFigure(
        "Reliability", plot.svg(f"Accuracy against confidence. Calibration error: {errors}"), caption, head, body
    )


def confusion_figure(rows: Sequence[SampleRow], classes: Sequence[str]) -> DetailFigure:
    """Which class is taken for which, among the classes with the most mistakes.

    Args:
        rows: Of the run.
        classes: Their names.
    """
    counts = confusion(rows, len(classes))
    plain = confusion(rows, len(classes), "zero_shot")
    shown = confused_classes(counts, _CONFUSED)
    part = counts[np.ix_(shown, shown)]
    names = [classes[c] for c in shown]
    total, wrong = int(counts.sum()), int(counts.sum() - counts.trace())
    which = f"the {len(shown)} classes with most mistakes" if len(shown) < len(classes) else "all classes"
    caption = (
        f"{wrong:,} of {total:,} answers are wrong. Rows are true classes, columns answers, of {which}; the darker, "
        "the larger the share of the row. Mistakes are framed."
    )
    body = tuple(
        (classes[true], classes[answer], f"{n:,}", f"{plain[true, answer]:,}", f"{100 * n / counts[true].sum():.1f}")
        for true, answer, n in confused_pairs(counts, _PAIRS)
    )
    head = ("true class", "answer", "images", "zero-shot's", "of the class, %")
    return DetailFigure("Confusions", heat_map(part, names, caption), caption, head, body)


class Gain(NamedTuple):
    """Accuracies in percent of the images of one kind."""

    name: str
    images: int
    zero_shot: float
    adapted: float

    @property
    def points(self) -> float:
        """The difference."""
        return self.adapted - self.zero_shot


def class_figures(rows: Sequence[SampleRow], classes: Sequence[str]) -> tuple[DetailFigure, DetailFigure]:
    """The classes that gain most, with a table of all of them, and the classes that lose most.

    Args:
        rows: Of the run.
        classes: Their names.
    """
    lines = class_gains(rows, classes)
    better, worse = ([line for line in lines if sign * line.points > 0] for sign in (1, -1))
    span = max(abs(line.points) for line in lines)
    same = f"; {len(lines) - len(better) - len(worse)} are as before" if better else ""
    up = f"{len(better)} of {len(lines)} classes gain{same}.{_only(better)}"
    down = f"{len(worse)} of {len(lines)} classes lose.{_only(worse)}"
    return (
        DetailFigure("Classes that gain, points", _bars(better[:_BARS], up, span), up, *_table(lines, "class")),
        DetailFigure("Classes that lose, points", _bars(worse[: -_BARS - 1 : -1], down, span), down, (), ()),
    )


def class_gains(rows: Sequence[SampleRow], classes: Sequence[str]) -> list[Gain]:
    """The gain of every class that was seen, the largest first.

    Args:
        rows: Of the run.
        classes: Their names.
    """
    answered = [row for row in rows if "error" not in row]
    labels = np.array([row["label"] for row in answered])
    counts = np.bincount(labels, minlength=len(classes))
    right = [
        np.bincount(labels[[row[name] == row["label"] for row in answered]], minlength=len(classes))
        for name in ("zero_shot", "prediction")
    ]
    seen = np.flatnonzero(counts)
    plain, ours = (100 * hits[seen] / counts[seen] for hits in right)
    order = np.argsort(-(ours - plain), kind="stable")
    return [Gain(classes[seen[i]], int(counts[seen[i]]), float(plain[i]), float(ours[i])) for i in order]


def domain_figure(domains: Mapping[str, Any]) -> DetailFigure:
    """Gain of every domain, in the order of the stream."""
    lines = [Gain(name, d["n"], 100 * d["zero_shot_accuracy"], 100 * d["accuracy"]) for name, d in domains.items()]
    caption = f"{len(lines)} domains, as the stream first meets them.{_only(lines)}"
    return DetailFigure("Gain by domain, points", _bars(lines[:_BARS], caption), caption, *_table(lines, "domain"))


def _bars(lines: Sequence[Gain], label: str, span: float = 0) -> str:
    told = "{0}: {2:.1f} → {3:.1f} % of {1}"
    return bar_chart([Bar(line.name, line.points, told.format(*line)) for line in lines], label, span) if lines else ""


def _only(lines: Sequence[Gain]) -> str:
    return f" Drawn are {_BARS}." if len(lines) > _BARS else ""


def _table(lines: Sequence[Gain], kind: str) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Head and body."""
    head = (kind, "images", "zero-shot, %", "adapted, %", "gain, points")
    body = ((g.name, f"{g.images:,}", f"{g.zero_shot:.1f}", f"{g.adapted:.1f}", signed_number(g.points)) for g in lines)
    return head, tuple(body)
