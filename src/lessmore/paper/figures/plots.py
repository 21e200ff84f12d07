"""Static plots of finished runs: the same views as the report's page, for papers and slides."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lessmore.lab.confusion import confused_classes, confusion
from lessmore.lab.journal import SampleRow
from lessmore.lab.metrics import BINS
from lessmore.lab.report.detail import class_gains, confidence_bins
from lessmore.lab.report.runs import Finished, find_runs
from lessmore.lab.report.tables import ALWAYS, SOMETIMES, newest_runs
from lessmore.paper.figures import style
from lessmore.paper.figures.request import Drawn, json_data

_ACROSS = 2  # panels side by side
_DASHES = ["--", ":", "-."]
_CONFUSED = 20  # classes of a confusion matrix
_CLASSES = 8  # shown from either end where there are more than twice as many


class PlotLine(NamedTuple):
    """One setting on one stream."""

    stream: str
    label: str
    colour: int
    """Number of its colour and marker, the same on all streams."""
    runs: tuple[Finished, ...]
    """One per seed."""

    def mean(self, part: str, name: str) -> float:
        """A number of the summaries, averaged over seeds.

        Args:
            part: Part of the summary, such as `metrics`.
            name: Name of the number in that part.
        """
        return fmean(run.summary[part][name] for run in self.runs)

    def half(self) -> float:
        """Half the width of the accuracy's 95 % interval, averaged over seeds."""
        return fmean((high - low) / 2 for low, high in (run.summary["metrics"]["accuracy_ci"] for run in self.runs))

    @property
    def rows(self) -> list[SampleRow]:
        """The answered samples of all seeds."""
        return [row for run in self.runs for row in run.rows if "error" not in row]

    @property
    def look(self) -> dict[str, Any]:
        """Colour and marker."""
        n = self.colour
        return {"color": style.SERIES[n % len(style.SERIES)], "marker": style.MARKERS[n % len(style.MARKERS)]}


def lines_of(runs: Sequence[Path]) -> list[PlotLine]:
    """Finished runs below these folders, one line per stream and setting with its seeds; others are left out."""
    finished, _ = find_runs(runs)
    by_key = {run.summary["key"]: run for run in finished}
    kept, _ = newest_runs(run.summary for run in finished)
    told = [name for name in (*ALWAYS, *SOMETIMES) if name == "method" or len({r.settings[name] for r in kept}) > 1]
    groups: dict[tuple[str, str], list[Finished]] = {}
    for run in kept:
        groups.setdefault((run.column, _label(run.settings, told)), []).append(by_key[run.summary["key"]])
    labels = sorted({label for _, label in groups})
    return [PlotLine(stream, label, labels.index(label), tuple(of)) for (stream, label), of in sorted(groups.items())]


def _label(settings: Mapping[str, str], told: Sequence[str]) -> str:
    """The settings that tell runs apart, in a few words; a method's own reducer is understood."""
    said = {**settings, "model": Path(settings["model"]).name, "R": f"R = {settings['R']}"}
    said["reducer"] = "" if settings["reducer"] in ("none", settings["method"]) else settings["reducer"]
    return ", ".join(said[name] for name in told if said[name])


def _panels(lines: Sequence[PlotLine], title: str, height: float = 2.6) -> tuple[Any, list[tuple[Any, list[PlotLine]]]]:
    """A figure with a plot for every stream, and which lines go where."""
    streams = list(dict.fromkeys(line.stream for line in lines))
    across = min(_ACROSS, len(streams))
    down = math.ceil(len(streams) / across)
    figure = style.canvas(0.4 + height * down, style.WIDTH if across > 1 else 0.62 * style.WIDTH)
    style.headline(figure, title)
    axes = figure.subplots(down, across, squeeze=False).flat
    placed = [
        (ax, [line for line in lines if line.stream == stream]) for ax, stream in zip(axes, streams, strict=False)
    ]
    for ax in list(axes)[len(streams) :]:
        ax.set_visible(False)
    return figure, placed


def _matched(here: Sequence[PlotLine]) -> list[tuple[str, PlotLine]]:
    """Names of the matched zero-shot models of a stream, and a line that has their answers."""
    models = {line.runs[0].summary["spec"]["model"]: line for line in here}
    for line in here:
        spec = line.runs[0].summary["spec"]
        if spec["method"] == "zeroshot" and spec["reducer"] == "none":
            models.pop(spec["model"], None)  # it is drawn already, as a run of its own
    name = "matched zero-shot"
    return [(name if len(models) == 1 else f"{name}, {Path(model).name}", line) for model, line in models.items()]


def _finish(figure: Any, lines: Sequence[PlotLine], data: list[dict[str, Any]], caption: str) -> Drawn:
    """Add the lines' names above the caption, once for all plots."""
    names: dict[str, Any] = {}
    for ax in figure.axes:
        for handle, name in zip(*ax.get_legend_handles_labels(), strict=True):
            names.setdefault(name, handle)
    seeds = sorted({len(line.runs) for line in lines})
    number = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    said = f"{caption} Means over seeds (number of seeds: {number})."
    return style.add_caption(figure, {"lines": json_data(data)}, said, dict(sorted(names.items())))


def plot_over_time(lines: Sequence[PlotLine]) -> Drawn:
    """Accuracy within successive parts of the stream."""
    figure, placed = _panels(lines, "Accuracy over the stream")
    data = []
    for ax, here in placed:
        for line in here:
            seen, ours, zero = _parts(line)
            data.append(
                {"stream": line.stream, "setting": line.label, "seen": seen, "accuracy": ours, "zero_shot": zero}
            )
            ax.plot(seen, 100 * ours, markersize=3, linewidth=1.3, label=line.label, **line.look)
        for (name, line), dash in zip(_matched(here), _DASHES * len(here), strict=False):
            seen, _, zero = _parts(line)
            ax.plot(seen, 100 * zero, dash, color=style.MUTED, linewidth=1.1, label=name)
        style.label_axes(ax, style.shorten(here[0].stream, 48), "images seen", "accuracy (%)")
        ax.margins(0.06)
    caption = "Accuracy within up to 20 equal parts of the stream, each point at the end of its part; not cumulated."
    return _finish(figure, lines, data, caption)


def _parts(line: PlotLine) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Images seen, accuracy and matched zero-shot's, each `[parts]`, averaged over the seeds of the first's length."""
    parts = [run.summary["metrics"]["over_time"] for run in line.runs]
    parts = [part for part in parts if len(part) == len(parts[0])]
    names = ("seen", "accuracy", "zero_shot_accuracy")
    seen, ours, zero = (np.mean([[point[name] for point in part] for part in parts], axis=0) for name in names)
    return seen, ours, zero


def against_gmacs(lines: Sequence[PlotLine]) -> Drawn:
    """Accuracy against multiply-accumulates."""
    figure, placed = _panels(lines, "Accuracy against cost")
    data = []
    for ax, here in placed:
        for line in here:
            data.append(_point(ax, line, line.mean("cost", "gmacs_matmul")))
        for (name, line), marker in zip(_matched(here), "*XPd" * len(here), strict=False):
            cost, zero = line.mean("cost", "plain_gmacs_matmul"), line.mean("metrics", "zero_shot_accuracy")
            ax.plot(cost, 100 * zero, marker, color=style.MUTED, markersize=8, label=name)
        style.label_axes(
            ax, style.shorten(here[0].stream, 48), "GMACs an image (10⁹ multiply-accumulates)", "accuracy (%)", "both"
        )
        ax.margins(0.15)
    caption = "All matrix products that are really spent on an image, every view and backward pass included."
    return _finish(figure, lines, data, f"{caption} Bars: 95 % intervals over images.")


def against_time(lines: Sequence[PlotLine]) -> Drawn:
    """Accuracy against measured time."""
    figure, placed = _panels(lines, "Accuracy against measured time")
    data, untimed = [], 0
    for ax, here in placed:
        for line in here:
            times = [run.summary["cost"]["ms_p50"] for run in line.runs if run.summary["cost"]["ms_p50"] is not None]
            untimed += not times
            if times:
                data.append(_point(ax, line, fmean(times)))
        for (name, line), dash in zip(_matched(here), _DASHES * len(here), strict=False):
            zero = line.mean("metrics", "zero_shot_accuracy")
            ax.axhline(100 * zero, color=style.MUTED, linestyle=dash, linewidth=1.1, label=name)
        style.label_axes(ax, style.shorten(here[0].stream, 48), "ms an image (median)", "accuracy (%)", "both")
        ax.margins(0.15)
    caption = "Median time from pixels to answer, of images that were really encoded. Bars: 95 % intervals over images."
    left = f" {untimed} settings are left out: all their encodings came from the cache." if untimed else ""
    return _finish(figure, lines, data, caption + left)


def _point(ax: Any, line: PlotLine, x: float) -> dict[str, Any]:
    accuracy, half = line.mean("metrics", "accuracy"), line.half()
    ax.errorbar(
        x, 100 * accuracy, yerr=100 * half, linestyle="", capsize=2, markersize=5, label=line.label, **line.look
    )
    return {"stream": line.stream, "setting": line.label, "x": x, "accuracy": accuracy, "half": half}


def plot_class_gains(lines: Sequence[PlotLine]) -> Drawn:
    """Gain over matched zero-shot class by class, a plot for every setting and stream."""
    apart = [line._replace(stream=f"{line.stream}: {line.label}") for line in lines]
    gains = {line.stream: _gains(line) for line in apart}
    drawn = [line for line in apart if any(gain["gain"] for gain in gains[line.stream])] or apart[:1]
    most = min(2 * _CLASSES, max(len(found) for found in gains.values()))
    figure, placed = _panels(drawn, "Gain over matched zero-shot, class by class", 0.9 + 0.17 * most)
    for ax, (line,) in placed:
        found = [gain for gain in gains[line.stream] if gain["gain"]] or gains[line.stream][:1]
        shown = found if len(found) <= 2 * _CLASSES else [*found[:_CLASSES], *found[-_CLASSES:]]
        heights = [100 * gain["gain"] for gain in shown]
        ax.barh(range(len(shown)), heights, color=[style.SERIES[int(height < 0)] for height in heights])
        ax.set_yticks(range(len(shown)), [style.shorten(gain["class"], 22) for gain in shown], parse_math=False)
        ax.invert_yaxis()
        ax.axvline(0, color=style.INK, linewidth=0.8)
        ax.margins(x=0.08)
        style.label_axes(ax, style.wrap_text(line.stream, 34), "points", "", "x")
    data = [{"setting": name, "gains": found} for name, found in gains.items()]
    caption = f"Difference of accuracy, best first; of more than {2 * _CLASSES} classes the {_CLASSES} of either end."
    caption += " Classes and settings without any difference are left out."
    return _finish(figure, lines, data, caption)


def _gains(line: PlotLine) -> list[dict[str, Any]]:
    """Every class that was seen: its images and its gain, the largest gain first."""
    known = line.runs[0].header.get("classes", ())
    most = max(row["label"] for row in line.rows) + 1
    names = [*known, *(f"class {c}" for c in range(len(known), most))]
    return [{"class": g.name, "n": g.images, "gain": g.points / 100} for g in class_gains(line.rows, names)]


def plot_calibration(lines: Sequence[PlotLine]) -> Drawn:
    """How often an answer of a given confidence is right."""
    figure, placed = _panels(lines, "Confidence and accuracy", 3.0)
    data = []
    for ax, here in placed:
        ax.plot([0, 100], [0, 100], color=style.RULE, linewidth=1)
        for line in here:
            bins, error = confidence_bins(line.rows, "prediction", "confidence"), line.mean("metrics", "confidence_ece")
            data.append({"stream": line.stream, "setting": line.label, **asdict(bins), "ece": error})
            ax.plot(
                100 * bins.confidence, 100 * bins.accuracy, markersize=3, linewidth=1.2, label=line.label, **line.look
            )
        for (name, line), dash in zip(_matched(here), _DASHES * len(here), strict=False):
            bins = confidence_bins(line.rows, "zero_shot", "zero_shot_probability")
            ax.plot(100 * bins.confidence, 100 * bins.accuracy, dash, color=style.MUTED, linewidth=1.1, label=name)
        style.label_axes(ax, style.shorten(here[0].stream, 48), "confidence (%)", "accuracy (%)", "both")
        ax.set_aspect("equal")
        ax.set(xlim=(0, 100), ylim=(0, 100))
    errors = "; ".join(
        f"{line.stream}, {line.label}: {100 * line.mean('metrics', 'confidence_ece'):.1f}" for line in lines[:8]
    )
    caption = (
        f"Answers in {BINS} bins of confidence; below the diagonal they are too sure. Calibration error in points:"
    )
    return _finish(figure, lines, data, f"{caption} {errors}{'; …' if len(lines) > 8 else ''}.")


def plot_confusions(lines: Sequence[PlotLine]) -> Drawn:
    """Which class is taken for which: a matrix for every setting and stream, over all seeds."""
    across = min(_ACROSS, len(lines))
    figure = style.canvas(0.6 + 3.4 * math.ceil(len(lines) / across), style.WIDTH if across > 1 else 0.62 * style.WIDTH)
    style.headline(figure, "Confusions")
    data = [_confusions(line) for line in lines]
    axes = list(figure.subplots(math.ceil(len(lines) / across), across, squeeze=False).flat)
    for ax, line, found in zip(axes, lines, data, strict=False):
        counts = np.array(found["counts"])
        shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        ax.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        names = [style.shorten(name, 18) for name in found["classes"]]
        ax.set_xticks(range(len(names)), names, rotation=90, parse_math=False)
        ax.set_yticks(range(len(names)), names, parse_math=False)
        ax.tick_params(labelsize=5)
        style.label_axes(ax, style.shorten(f"{line.stream}, {line.label}", 44), "answer", "true class", None)
    for ax in axes[len(lines) :]:
        ax.set_visible(False)
    shown = f"the {_CONFUSED} classes with most mistakes" if any(found["left_out"] for found in data) else "all classes"
    return _finish(figure, lines, data, f"Rows are true classes, columns answers, of {shown}; darker, more of a row.")


def _confusions(line: PlotLine) -> dict[str, Any]:
    names = line.runs[0].header["classes"]
    counts = confusion(line.rows, len(names))
    shown = confused_classes(counts, _CONFUSED)
    about = {"stream": line.stream, "setting": line.label, "left_out": len(names) - len(shown)}
    return {**about, "classes": [names[c] for c in shown], "counts": counts[np.ix_(shown, shown)].tolist()}


RUN_PLOTS: dict[str, Callable[[Sequence[PlotLine]], Drawn]] = {
    "accuracy-over-time": plot_over_time,
    "accuracy-against-gmacs": against_gmacs,
    "accuracy-against-time": against_time,
    "class-gains": plot_class_gains,
    "calibration": plot_calibration,
    "confusions": plot_confusions,
}
"""By name of the file, without its ending."""


def save_run_plots(runs: Sequence[Path], folder: Path) -> list[Path]:
    """All plots of some runs, each as PNG, SVG and JSON.

    Args:
        runs: Folders that contain runs.
        folder: Where the files go.

    Returns:
        The files.
    """
    lines = lines_of(runs)
    return [path for name, draw in RUN_PLOTS.items() for path in style.save_figure(draw(lines), folder, name)]
