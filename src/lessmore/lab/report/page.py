"""One self-contained HTML page of a demo run: table, running accuracy, gallery. A pure view of numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lessmore.lab.report.charts import Axis, Plot, round_axis, signed_number
from lessmore.lab.report.write import render


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval, in percent or percentage points."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class DemoRow:
    """One line of the table."""

    name: str
    cells: Sequence[Estimate]
    """One per shift, then their mean."""
    gmacs: float
    ms: float
    gain: bool = False
    """Whether it is a difference from the first row: values get a sign, and costs are changes in percent."""

    def shown(self) -> Iterator[tuple[str, str]]:
        """The content of each cell, in large and in small print."""
        sign = "+" if self.gain else ""
        for cell in self.cells:
            value, low, high = (signed_number(v, sign=sign) for v in (cell.value, cell.low, cell.high))
            yield value, f"{low} … {high}"
        if self.gain:
            yield from ((f"{signed_number(cost, 0)} %", "") for cost in (self.gmacs, self.ms))
        else:
            yield from ((f"{self.gmacs:.3f}", ""), (f"{self.ms:.1f}", ""))


@dataclass(frozen=True)
class Chart:
    """Running accuracy in percent under one shift; curves start after `first` images."""

    title: str
    curves: Mapping[str, Sequence[float]]
    first: int


@dataclass(frozen=True)
class TokenPanel:
    """One picture of the gallery."""

    uri: str
    caption: str
    alt: str


@dataclass(frozen=True)
class Exhibit:
    """One image, its tokens, and the answers of zero-shot (before) and of the method (after)."""

    verdict: str
    shift: str
    truth: str
    before: str
    after: str
    method: str
    """The method that gave the second answer."""
    panels: Sequence[TokenPanel]


@dataclass(frozen=True)
class DemoPage:
    """Everything the page shows; plain text, escaped when it is written."""

    title: str
    lead: str
    facts: Mapping[str, str]
    columns: Sequence[str]
    rows: Sequence[DemoRow]
    notes: str
    charts: Sequence[Chart]
    gallery: str
    exhibits: Sequence[Exhibit]


def render_demo(page: DemoPage) -> str:
    """The page as self-contained HTML text that loads nothing."""
    y = round_axis(value for chart in page.charts for curve in chart.curves.values() for value in curve)
    legend = list(page.charts[0].curves) if page.charts else []
    return render("demo.html", page=page, legend=legend, charts=[_chart(chart, y) for chart in page.charts])


def _chart(chart: Chart, y: Axis) -> tuple[str, str, str]:
    """Drawing, title and caption; the caption repeats the numbers at the end of the stream."""
    ends = ", ".join(f"{name} {curve[-1]:.1f} %" for name, curve in chart.curves.items() if curve)
    last = chart.first + max((len(curve) for curve in chart.curves.values()), default=0) - 1
    plot = Plot(Axis(chart.first, last, ((chart.first, f"{chart.first}"), (last, f"{last} images"))), y)
    for number, curve in enumerate(chart.curves.values()):
        plot.line(list(enumerate(curve, start=chart.first)), f"curve c{number}")
    return plot.svg(f"Running accuracy, {chart.title}; at the end: {ends}"), chart.title, f"at the end: {ends}"
