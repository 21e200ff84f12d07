"""Charts as SVG text: axes, curves, points and bars, coloured by the classes of the pages' style sheet."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray

WIDTH, HEIGHT = 340, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 34, 8, 8, 24
_TITLE = 14  # room for the title of the horizontal axis
_NEAR = 14  # two texts would overprint
_POINTS = 150  # a curve has no more corners than that, whatever the length of its stream

ChartPoint = tuple[float, float]


@dataclass(frozen=True)
class Axis:
    """From `low` to `high`, with a text at every tick."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    title: str = ""


def round_axis(values: Iterable[float], title: str = "", intervals: int = 5) -> Axis:
    """An axis with round numbers at its ends and ticks.

    Args:
        values: What must fit on it.
        title: Printed below a horizontal axis; empty for none.
        intervals: About how many between ticks.
    """
    known = list(values)
    low, high = min(known, default=0.0), max(known, default=1.0)
    step = _step((high - low) / intervals or abs(high) / intervals or 1.0)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    last = max(last, first + 1)
    ticks = [(k * step, f"{k * step:.6g}".replace("-", "−")) for k in range(first, last + 1)]
    return Axis(first * step, last * step, ticks, title)


def at_least_wide(values: Sequence[float], share: float = 0.2) -> list[float]:
    """The values, and where they lie too close together two more, so that an axis does not blow up small differences.

    Args:
        values: What must fit on the axis.
        share: Least width of the axis, as a share of the largest value.
    """
    low, high = min(values), max(values)
    lacking = (share * abs(high) - (high - low)) / 2
    return [*values, low - lacking, high + lacking] if lacking > 0 else list(values)


def _step(least: float) -> float:
    """1, 2 or 5 times a power of ten, at least `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * (1 - 1e-9))


class Plot:
    """A drawing on two axes. It takes data coordinates, and escapes texts."""

    def __init__(self, x: Axis, y: Axis, width: int = WIDTH, height: int = HEIGHT) -> None:
        self._x, self._y = x, y
        self._width, self._height = width, height
        self._bottom = height - _BOTTOM - (_TITLE if x.title else 0)
        self._parts: list[str] = []
        self._grid()

    def at(self, x: float, y: float) -> ChartPoint:
        """A point of the data in the coordinates of the drawing.

        Args:
            x: On the horizontal axis.
            y: On the vertical axis.
        """
        across = (x - self._x.low) / ((self._x.high - self._x.low) or 1)
        up = (y - self._y.low) / ((self._y.high - self._y.low) or 1)
        return _LEFT + across * (self._width - _LEFT - _RIGHT), self._bottom - up * (self._bottom - _TOP)

    def _grid(self) -> None:
        """Horizontal lines with their numbers, and the numbers of the horizontal axis below."""
        right, below = self._width - _RIGHT, self._bottom + 16
        for value, text in self._y.ticks:
            y = self.at(self._x.low, value)[1]
            self._parts.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" class="grid"/>')
            self._text(_LEFT - 5, y + 3.5, text, "end")
        for value, text in self._x.ticks:
            x = self.at(value, self._y.low)[0]
            self._text(x, below, text, "end" if x > right - 8 else "start" if x < _LEFT + 1 else "middle")
        if self._x.title:
            self._text((_LEFT + right) / 2, below + _TITLE, self._x.title, "middle")

    def _text(self, x: float, y: float, text: str, anchor: str, css: str = "") -> None:
        named = f' class="{css}"' if css else ""
        self._parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{named}>{escape(text)}</text>')

    def line(self, points: Sequence[ChartPoint], css: str) -> None:
        """A curve; one with many points is thinned out.

        Args:
            points: In data coordinates.
            css: Classes of the style sheet.
        """
        every = max(1, math.ceil(len(points) / _POINTS))
        shown = sorted({*range(0, len(points), every), len(points) - 1} - {-1})
        corners = " ".join("{:.1f},{:.1f}".format(*self.at(*points[i])) for i in shown)
        self._parts.append(f'<polyline points="{corners}" class="{css}"/>')

    def dot(self, point: ChartPoint, css: str, radius: float = 4, told: str = "") -> None:
        """A disc.

        Args:
            point: In data coordinates.
            css: Classes of the style sheet.
            radius: In units of the drawing.
            told: Tooltip; empty for none.
        """
        x, y = self.at(*point)
        title = f"<title>{escape(told)}</title>" if told else ""
        self._parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" class="{css}">{title}</circle>')

    def whisker(self, x: float, low: float, high: float, css: str) -> None:
        """A vertical interval.

        Args:
            x: Where, in data coordinates.
            low: Lower end.
            high: Upper end.
            css: Classes of the style sheet.
        """
        (left, bottom), (_, top) = self.at(x, low), self.at(x, high)
        self._parts.append(f'<line x1="{left:.1f}" y1="{bottom:.1f}" x2="{left:.1f}" y2="{top:.1f}" class="{css}"/>')

    def note(self, point: ChartPoint, text: str) -> None:
        """A short text to the upper right of a point, or to the upper left where there is no room.

        Args:
            point: In data coordinates.
            text: A few letters.
        """
        x, y = self.at(*point)
        left = x > self._width - _RIGHT - 24
        self._text(x - 6 if left else x + 6, y - 6, text, "end" if left else "start", "note")

    def notes(self, points: Sequence[tuple[ChartPoint, str]]) -> None:
        """Short texts at points; those of points that lie together stand in one text.

        Args:
            points: In data coordinates, each with a few letters.
        """
        groups: list[tuple[ChartPoint, list[str]]] = []
        for point, text in points:
            near = next((g for g in groups if math.dist(self.at(*g[0]), self.at(*point)) < _NEAR), None)
            if near is None:
                groups.append((point, [text]))
            else:
                near[1].append(text)
        for point, texts in groups:
            self.note(point, ", ".join(texts))

    def svg(self, label: str) -> str:
        """The finished drawing; `label` describes it to those who cannot see it."""
        return (
            f'<svg viewBox="0 0 {self._width} {self._height}" role="img" aria-label="{escape(label, quote=True)}">'
            f"{''.join(self._parts)}</svg>"
        )


_ROW, _NAMES, _BAR, _VALUE = 15, 126, 214, 46


@dataclass(frozen=True)
class Bar:
    """A name and a signed value."""

    name: str
    value: float
    told: str


def bar_chart(of: Sequence[Bar], label: str, span: float = 0) -> str:
    """Horizontal bars on both sides of zero, one per line, each with its name and value.

    Args:
        of: The bars, from top to bottom.
        label: Describes the drawing to those who cannot see it.
        span: Least value range of the full width, so that several charts can share a scale.
    """
    values = [0.0, *(bar.value for bar in of)]
    low, high = min(values), max(values)
    unit = (_BAR - _VALUE * ((low < 0) + (high > 0))) / (max(span, high - low) or 1)
    zero = _NAMES + (_VALUE - low * unit if low < 0 else 0)
    height = _ROW * len(of) + 4
    lines = "".join(_bar(bar, i * _ROW + 2, zero, unit) for i, bar in enumerate(of))
    axis = f'<line x1="{zero:g}" y1="0" x2="{zero:g}" y2="{height}" class="axis"/>'
    view = f"0 0 {_NAMES + _BAR} {height}"
    return f'<svg viewBox="{view}" role="img" aria-label="{escape(label, quote=True)}">{lines}{axis}</svg>'


def _bar(bar: Bar, top: float, zero: float, unit: float) -> str:
    length, y = abs(bar.value) * unit, top + _ROW - 4
    start = zero if bar.value >= 0 else zero - length
    beside, anchor = (zero + length + 4, "start") if bar.value >= 0 else (start - 4, "end")
    css = "good" if bar.value > 0 else "bad" if bar.value < 0 else "none"
    name = bar.name if len(bar.name) <= 18 else f"{bar.name[:17]}…"
    return (
        f"<g><title>{escape(bar.told)}</title>"
        f'<text x="{_NAMES - 6}" y="{y:.1f}" text-anchor="end" class="name">{escape(name)}</text>'
        f'<rect x="{start:.1f}" y="{top + 2:.1f}" width="{length:.1f}" height="{_ROW - 4}" class="{css}"/>'
        f'<text x="{beside:.1f}" y="{y:.1f}" text-anchor="{anchor}">{signed_number(bar.value)}</text></g>'
    )


_SIDE, _LABELS = 214, 126


def heat_map(counts: NDArray[np.int64], names: Sequence[str], label: str) -> str:
    """A square of cells, each as dark as its share of its row; those off the diagonal are framed.

    Args:
        counts: `[n, n]`.
        names: Of the rows, and of the columns in the same order.
        label: Describes the drawing to those who cannot see it.
    """
    cell, size = _SIDE / len(names), min(11.0, _SIDE / len(names) * 0.8)
    parts = []
    for i, name in enumerate(names):
        short = name if len(name) <= 18 else f"{name[:17]}…"
        y = (i + 0.5) * cell + size * 0.35
        parts.append(
            f'<text x="{_LABELS - 6}" y="{y:.1f}" text-anchor="end" style="font-size:{size:.1f}px" '
            f'class="name">{escape(short)}</text>'
        )
        whole = int(counts[i].sum())
        for j in np.flatnonzero(counts[i]).tolist():
            told = (
                f"{name} taken for {names[j]}: {counts[i, j]} of {whole}" if i != j else f"{name}: {counts[i, j]} right"
            )
            css = "right-cell" if i == j else "wrong-cell"
            parts.append(
                f'<rect x="{_LABELS + j * cell:.1f}" y="{i * cell:.1f}" width="{cell:.1f}" height="{cell:.1f}" '
                f'class="{css}" fill-opacity="{max(0.08, counts[i, j] / whole):.2f}">'
                f"<title>{escape(told)}</title></rect>"
            )
    view = f"0 0 {_LABELS + _SIDE} {_SIDE}"
    frame = f'<rect x="{_LABELS}" y="0" width="{_SIDE}" height="{_SIDE}" class="frame"/>'
    return f'<svg viewBox="{view}" role="img" aria-label="{escape(label, quote=True)}">{frame}{"".join(parts)}</svg>'


def interval_bar(low: float, value: float, high: float, widest: float) -> str:
    """A small drawing of an interval around zero; its numbers are printed next to it.

    Args:
        low: Lower end.
        value: The estimate.
        high: Upper end.
        widest: Half the value range of the drawing.
    """

    def x(v: float) -> float:
        return 50 + 46 * v / (widest or 1)

    return (
        '<svg viewBox="0 0 100 12" class="interval" aria-hidden="true">'
        '<line x1="50" y1="0" x2="50" y2="12" class="axis"/>'
        f'<line x1="{x(low):.1f}" y1="6" x2="{x(high):.1f}" y2="6" class="{gain_verdict(low, high)}"/>'
        f'<circle cx="{x(value):.1f}" cy="6" r="3" class="{gain_verdict(low, high)}"/></svg>'
    )


def gain_verdict(low: float, high: float) -> str:
    """The style class of a difference: `good` or `bad` where its interval excludes zero, else `unsure`.

    Args:
        low: Lower end of the interval.
        high: Upper end.
    """
    return "good" if low > 0 else "bad" if high < 0 else "unsure"


def signed_number(value: float, digits: int = 1, sign: str = "+") -> str:
    """A number with its sign, and a minus as long as the plus.

    Args:
        value: The number.
        digits: After the decimal point.
        sign: `+`, or empty for none before positive numbers.
    """
    return f"{value:{sign}.{digits}f}".replace("-", "−")
