"""All runs of a page side by side: a line per setting and stream, and accuracy against cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from lessmore.lab.report.charts import Plot, at_least_wide, round_axis
from lessmore.lab.report.page import Estimate
from lessmore.lab.report.runs import Finished
from lessmore.lab.report.tables import ALWAYS, SOMETIMES, Run, newest_runs


@dataclass(frozen=True)
class OverviewLine:
    """One setting on one stream, mean over its seeds; in percent and points."""

    number: int
    """From 1; the charts show it."""
    settings: tuple[str, ...]
    stream: str
    runs: tuple[tuple[int, str], ...]
    """Seed and key of each."""
    images: tuple[int, ...]
    accuracy: Estimate
    zero_shot: Estimate
    gain: Estimate
    ece: float
    zero_shot_ece: float
    gmacs: float
    plain_gmacs: float
    ms: float | None
    """Median of one image; None where every encoding came from the cache."""
    tuned: bool
    plain: bool
    """Whether it is zero-shot on all tokens, the baseline of the others."""
    short: str = ""
    """Method and R, for narrow screens."""


@dataclass(frozen=True)
class Overview:
    """What the first part of the page shows."""

    head: tuple[str, ...]
    lines: tuple[OverviewLine, ...]
    tuned_on: tuple[str, ...]
    repeated: int
    """Older runs of the same setting, stream and seed, which are left out."""

    @property
    def opened(self) -> str | None:
        """Key of the run to look at first: of the setting that differs most from zero-shot, for better or worse."""
        lines = sorted((line for line in self.lines if not line.plain), key=lambda line: -abs(line.gain.value))
        return next((line.runs[0][1] for line in lines), None)

    @property
    def streams(self) -> list[str]:
        """Names of the streams, each once."""
        return list(dict.fromkeys(line.stream for line in self.lines))


def overview(runs: Sequence[Finished]) -> Overview:
    """Arrange the runs as `lessmore build` does, but with a line for every stream."""
    kept, repeated = newest_runs(run.summary for run in runs)
    head = (*ALWAYS, *(name for name in SOMETIMES if len({run.settings[name] for run in kept}) > 1))
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in kept:
        groups.setdefault((run.column, *(run.settings[name] for name in head)), []).append(run)
    lines = tuple(_line(number, *group) for number, group in enumerate(sorted(groups.items()), start=1))
    tuned = {run.summary["tuned_on"] for run in kept if run.summary.get("tuned_on")}
    return Overview(head, lines, tuple(sorted(tuned)), repeated)


def _line(number: int, labels: tuple[str, ...], runs: list[Run]) -> OverviewLine:
    stream, *settings = labels
    metrics, costs = [run.metrics for run in runs], [run.summary["cost"] for run in runs]
    times = [cost["ms_p50"] for cost in costs if cost["ms_p50"] is not None]
    spec = runs[0].summary["spec"]
    return OverviewLine(
        number=number,
        settings=tuple(settings),
        stream=stream,
        runs=tuple(sorted((run.summary["spec"]["seed"], run.summary["key"]) for run in runs)),
        images=tuple(sorted({m["n"] for m in metrics})),
        accuracy=_mean(metrics, "accuracy", "accuracy_ci"),
        zero_shot=_mean(metrics, "zero_shot_accuracy", "zero_shot_ci"),
        gain=_mean(metrics, "gain", "gain_ci"),
        ece=100 * fmean(m["confidence_ece"] for m in metrics),
        zero_shot_ece=100 * fmean(m["zero_shot_ece"] for m in metrics),
        gmacs=fmean(cost["gmacs_matmul"] for cost in costs),
        plain_gmacs=fmean(cost["plain_gmacs_matmul"] for cost in costs),
        ms=fmean(times) if times else None,
        tuned=any(run.summary.get("tuned_on") for run in runs),
        plain=spec["method"] == "zeroshot" and spec["reducer"] == "none",
        short=f"{spec['method']}, {spec['preset']}, R = {spec['R']:g}",
    )


def _mean(metrics: Sequence[Any], name: str, interval: str) -> Estimate:
    low, high = (fmean(m[interval][side] for m in metrics) for side in range(2))
    return Estimate(100 * fmean(m[name] for m in metrics), 100 * low, 100 * high)


def cost_chart(lines: Sequence[OverviewLine], cost: Callable[[OverviewLine], float | None], title: str) -> str:
    """Accuracy against a cost, for the lines of one stream; empty if no line has the cost.

    Args:
        lines: The lines.
        cost: Reads the cost from a line; None where it is unknown.
        title: Of the axis; `GMACs` also shows matched zero-shot.
    """
    known = [(line, x) for line in lines if (x := cost(line)) is not None]
    if not known:
        return ""
    plain = _matched(lines) if title == "GMACs" else []
    heights = [end for line, _ in known for end in (line.accuracy.low, line.accuracy.high)]
    across = round_axis(at_least_wide([*(x for _, x in known), *(x for x, _ in plain)]), title, intervals=4)
    plot = Plot(across, round_axis([*heights, *(y for _, y in plain)]))
    for at in plain:
        plot.dot(at, "c0 dot", told=f"matched zero-shot: {at[1]:.1f} %, {at[0]:.3g} GMACs")
    for line, at_x in known:
        css = "c0" if line.plain else "c2"
        plot.whisker(at_x, line.accuracy.low, line.accuracy.high, f"{css} whisker")
        plot.dot(
            (at_x, line.accuracy.value), f"{css} dot", told=f"{' '.join(line.settings)}: {_told(line, at_x, title)}"
        )
    plot.notes([((at_x, line.accuracy.value), str(line.number)) for line, at_x in known])
    shown = "; ".join(f"line {line.number}: {_told(line, at_x, title)}" for line, at_x in known)
    return plot.svg(f"Accuracy against {title}. {shown}")


def _told(line: OverviewLine, x: float, title: str) -> str:
    return f"{line.accuracy.value:.1f} %, {x:.3g} {title}"


def _matched(lines: Iterable[OverviewLine]) -> list[tuple[float, float]]:
    """Where matched zero-shot stands, once per model."""
    models = {line.settings[0]: (line.plain_gmacs, line.zero_shot.value) for line in lines}
    shown = {line.settings[0] for line in lines if line.plain}
    return [at for model, at in models.items() if model not in shown]
