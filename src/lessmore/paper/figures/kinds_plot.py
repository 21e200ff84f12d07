"""What methods buy: mean gain against milliseconds, and the worst stream against the mean, with the best trade-offs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lessmore.paper.figures.request import Drawn
from lessmore.paper.figures.style import (
    INK,
    MUTED,
    SERIES,
    add_caption,
    canvas,
    headline,
    label_axes,
    save_figure,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class TradeOff(NamedTuple):
    """A method in a plot; of both numbers, more is better."""

    name: str
    x: float
    y: float


def pareto(points: Sequence[TradeOff]) -> list[TradeOff]:
    """Those that no other beats in both numbers, by falling x."""
    best: list[TradeOff] = []
    for point in sorted(points, key=lambda p: (-p.x, -p.y)):
        if not best or point.y > best[-1].y:
            best.append(point)
    return best


def draw_kinds(value: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw a table of kinds of streams; nothing where fewer than two rows are complete.

    Args:
        value: The table.
        folder: Where `NAME-pareto.png`, `.svg` and `.json` go.

    Raises:
        ConfigError: matplotlib is missing.
    """
    rows = [row for row in value["rows"] if "worst" in row or _is_base(value, row)]
    rows = [row for row in rows if row["name"] in value.get("pace", {})]
    if len(rows) < 2:
        return []
    return save_figure(_drawn(value, rows), folder, f"{value['table']}-pareto")


def _is_base(value: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    return bool(row["name"] == value["base"] and row["averages"]["all"].get("accuracy"))


def _drawn(value: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Drawn:
    gain = {row["name"]: row["averages"]["all"]["gain"][0] for row in rows}
    worst = {row["name"]: row["worst"]["gain"][0] if "worst" in row else 0.0 for row in rows}
    cost = {name: value["pace"][name]["relative"] for name in gain}
    speed = [TradeOff(name, -cost[name], gain[name]) for name in gain]
    harm = [TradeOff(name, gain[name], worst[name]) for name in gain]
    figure = canvas(3.4)
    left, right = figure.subplots(1, 2)
    _scatter(left, [p._replace(x=-p.x) for p in speed], [p._replace(x=-p.x) for p in pareto(speed)], log=True)
    left.set_xscale("log", base=2)
    left.xaxis.set_major_formatter("{x:g}")
    label_axes(left, "Gain against time", "time of one image over zero-shot's", "mean gain, points", "both")
    _scatter(right, harm, pareto(harm))
    label_axes(right, "Harm against gain", "mean gain, points", "gain on the worst stream, points", "both")
    headline(figure, f"{value['title']}: {value['model']}")
    streams = len(value["columns"])
    caption = (
        f"Gains over matched zero-shot on {streams} streams. The line joins methods that no other beats in both "
        "numbers. Times: all methods in turn on the same images, on one machine."
    )
    data = {name: {"gain": gain[name], "worst": worst[name], "relative_time": cost[name]} for name in gain}
    return add_caption(figure, data, caption)


def _scatter(ax: Axes, points: Sequence[TradeOff], front: Sequence[TradeOff], log: bool = False) -> None:
    """Points with their names; those of the front joined."""
    joined = sorted(front, key=lambda p: p.x)
    ax.plot([p.x for p in joined], [p.y for p in joined], color=SERIES[1], linewidth=1.0)
    ax.scatter([p.x for p in points], [p.y for p in points], s=14, color=SERIES[0], zorder=3)
    ax.axhline(0, color=MUTED, linewidth=0.6)
    for point, place in label_places(points, log):
        line = {"arrowstyle": "-", "linewidth": 0.4, "color": MUTED} if place.y != point.y else None
        ax.annotate(
            point.name, (point.x, point.y), (place.x, place.y), arrowprops=line, va="center", fontsize=5.5, color=INK
        )
    ax.margins(x=0.2, y=0.1)


def label_places(points: Sequence[TradeOff], log: bool) -> list[tuple[TradeOff, TradeOff]]:
    """Points and where their names go: beside them, or lower where names of others stand.

    Args:
        points: All points of a plot.
        log: Whether its x axis is logarithmic.
    """
    across = [math.log(p.x) if log else p.x for p in points]
    width, height = (max(values) - min(values) or 1.0 for values in (across, [p.y for p in points]))
    placed: list[tuple[float, float]] = []
    found = []
    for i in sorted(range(len(points)), key=lambda i: (-points[i].y, across[i])):
        x, y = across[i] + 0.02 * width, points[i].y
        for other, taken in placed:
            if abs(x - other) < 0.22 * width and y > taken - 0.045 * height:
                y = taken - 0.045 * height
        placed.append((x, y))
        found.append((points[i], points[i]._replace(x=math.exp(x) if log else x, y=y)))
    return found
