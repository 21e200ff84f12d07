"""One self-contained HTML page of a demo run: table, running accuracy, gallery. A pure view of numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from string import Template

from lessmore.lab.report.charts import Axis, Plot, round_axis


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
    """A difference to the first row: values get a sign, costs are a change in percent."""


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
    """One image, what became of its tokens, and the answers of zero-shot (before) and TCA (after)."""

    verdict: str
    shift: str
    truth: str
    before: str
    after: str
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
    """The page as HTML text that loads nothing from anywhere."""
    y = round_axis(value for chart in page.charts for curve in chart.curves.values() for value in curve)
    return Template(part("demo.html")).substitute(
        style=part("base.css"),
        title=escape(page.title),
        lead=escape(page.lead),
        facts="".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in page.facts.items()),
        head="".join(f'<th scope="col">{escape(name)}</th>' for name in page.columns),
        body="".join(_row(row) for row in page.rows if not row.gain),
        gains="".join(_row(row) for row in page.rows if row.gain),
        notes=escape(page.notes),
        legend=_legend(page.charts),
        charts="".join(_chart(chart, y) for chart in page.charts),
        gallery=escape(page.gallery),
        exhibits="".join(_exhibit(exhibit) for exhibit in page.exhibits),
    )


def part(name: str) -> str:
    """A file that pages are made of."""
    return resources.files("lessmore.lab.report").joinpath("templates", name).read_text(encoding="utf-8")


def _row(row: DemoRow) -> str:
    sign = "+" if row.gain else ""
    cells = "".join(
        f"<td>{cell.value:{sign}.1f}<small>{cell.low:{sign}.1f} … {cell.high:{sign}.1f}</small></td>"
        for cell in row.cells
    )
    gmacs, ms = (f"{row.gmacs:+.0f} %", f"{row.ms:+.0f} %") if row.gain else (f"{row.gmacs:.3f}", f"{row.ms:.1f}")
    cells += f"<td>{gmacs}</td><td>{ms}</td>"
    return f'<tr><th scope="row">{escape(row.name)}</th>{cells.replace("-", "−")}</tr>\n'


def _legend(charts: Sequence[Chart]) -> str:
    names = list(charts[0].curves) if charts else []
    line = '<svg viewBox="0 0 34 10" aria-hidden="true"><line x1="1" y1="5" x2="33" y2="5" class="curve c{}"/></svg>'
    return "".join(f"<li>{line.format(i)} {escape(name)}</li>" for i, name in enumerate(names))


def _chart(chart: Chart, y: Axis) -> str:
    """A figure with its caption; the numbers at the end of the stream are in the text as well."""
    ends = ", ".join(f"{name} {curve[-1]:.1f} %" for name, curve in chart.curves.items() if curve)
    last = chart.first + max((len(curve) for curve in chart.curves.values()), default=0) - 1
    plot = Plot(Axis(chart.first, last, ((chart.first, f"{chart.first}"), (last, f"{last} images"))), y)
    for number, curve in enumerate(chart.curves.values()):
        plot.line(list(enumerate(curve, start=chart.first)), f"curve c{number}")
    return (
        f"<figure>{plot.svg(f'Running accuracy, {chart.title}; at the end: {ends}')}"
        f"<figcaption><b>{escape(chart.title)}</b> at the end: {escape(ends)}</figcaption></figure>\n"
    )


def _exhibit(exhibit: Exhibit) -> str:
    pictures = "".join(
        f'<figure><img src="{escape(p.uri, quote=True)}" alt="{escape(p.alt, quote=True)}" width="64" height="64">'
        f"<figcaption>{escape(p.caption)}</figcaption></figure>"
        for p in exhibit.panels
    )
    return (
        f'<article><h3><span class="verdict {escape(exhibit.verdict, quote=True)}">{escape(exhibit.verdict)}</span> '
        f"{escape(exhibit.truth)} <small>{escape(exhibit.shift)}</small></h3>"
        f'<div class="strip">{pictures}</div>'
        f"<p>zero-shot: {escape(exhibit.before)} → TCA: {escape(exhibit.after)}</p></article>\n"
    )
