"""A table of runs written down: Markdown and LaTeX to be read, CSV in long form with every figure."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lessmore.lab.report.tables import Cell, ResultTable, SummaryView


@dataclass(frozen=True)
class _Style:
    escape: Callable[[str], str]
    bold: str
    plus_minus: str


def _grid(of: ResultTable, style: _Style) -> list[list[str]]:
    """Head, images and rows as finished texts."""
    settings = [*of.head, "seeds"]
    head = [*settings, *of.columns]
    images = ["images", *("" for _ in settings[1:]), *of.images]
    lines = [[style.escape(text) for text in line] for line in (head, images)]
    for row in of.rows:
        cells = [_text(cell, of.best(row, i), style) for i, cell in enumerate(row.cells)]
        lines.append([*(style.escape(text) for text in (*row.labels, row.seeds)), *cells])
    return lines


def _text(cell: Cell | None, best: bool, style: _Style) -> str:
    if cell is None:
        return "–"
    accuracy = f"{cell.accuracy:.2f}"
    interval = "" if cell.half is None else f" {style.plus_minus} {cell.half:.2f}"
    gain = "" if cell.gain is None else f" ({cell.gain:+.2f})"
    return (style.bold % accuracy if best else accuracy) + interval + gain


def to_markdown(of: ResultTable) -> str:
    """A pipe table with its notes below."""
    head, *lines = _grid(of, _Style(escape_markdown, "**%s**", "±"))
    ruler = ["---"] * (len(of.head) + 1) + ["---:"] * len(of.columns)
    rows = "\n".join(f"| {' | '.join(line)} |" for line in (head, ruler, *lines))
    return "\n\n".join([rows, *(escape_markdown(note) for note in of.notes)]) + "\n"


def escape_markdown(text: str) -> str:
    """One line of text that means nothing special in a pipe table."""
    return re.sub(r"([\\|*_`<>\[\]#~])", r"\\\1", " ".join(text.split()))


_LATEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "†": r"$\dagger$",
    "–": "--",
}


def to_latex(of: ResultTable) -> str:
    """A tabular with booktabs' rules and the notes below."""
    head, images, *lines = _grid(of, _Style(escape_latex, r"\textbf{%s}", r"$\pm$"))
    columns = "l" * (len(of.head) + 1) + "r" * len(of.columns)
    body = [_latex_line(line) for line in lines]
    parts = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", _latex_line(head), _latex_line(images), r"\midrule"]
    notes = [rf"\par\footnotesize {escape_latex(note)}" for note in of.notes]
    return "\n".join(["% needs the package booktabs", *parts, *body, r"\bottomrule", r"\end{tabular}", *notes]) + "\n"


def _latex_line(cells: list[str]) -> str:
    return " & ".join("--" if cell == "–" else cell for cell in cells) + r" \\"


def escape_latex(text: str) -> str:
    """One line of text that means nothing special in LaTeX."""
    return "".join(_LATEX.get(sign, sign) for sign in " ".join(text.split()))


def to_csv(summaries: Iterable[SummaryView]) -> str:
    """One line per run with every single figure; fractions as the summaries have them, not percent."""
    lines = [dict(_flat(run)) for run in summaries]
    names = list(dict.fromkeys(name for line in lines for name in line))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: harmless(value) for name, value in line.items()} for line in lines)
    return text.getvalue()


_PARTS = ("spec", "dataset", "metrics", "cost")


def _flat(run: SummaryView) -> Iterable[tuple[str, Any]]:
    """Names and single values; an interval becomes two, lists such as the accuracy over time are left out."""
    yield "key", run["key"]
    yield "tuned_on", run.get("tuned_on")
    for part in _PARTS:
        for name, value in run.get(part, {}).items():
            if name.endswith("_ci") and value is not None:
                yield from zip((f"{part}.{name}.low", f"{part}.{name}.high"), value, strict=True)
            elif isinstance(value, Mapping):
                yield f"{part}.{name}", json.dumps(value, sort_keys=True)
            elif not isinstance(value, (list, tuple)):
                yield f"{part}.{name}", value


def harmless(value: Any) -> Any:
    """Texts a spreadsheet would take for a formula get a quote in front."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
