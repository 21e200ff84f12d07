"""A table written down: Markdown and LaTeX for documents, HTML to look at, CSV with every figure, and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping
from html import escape
from string import Template
from typing import Any

from lessmore.lab.report.formats import escape_latex, escape_markdown, harmless
from lessmore.lab.report.page import part
from lessmore.paper.notes import Value
from lessmore.paper.show import TableGrid, Text, page


def to_json(value: Value) -> str:
    """One line per row, so that a change shows where it is."""
    parts = [f"{json.dumps(name)}: {_listed(content)}" for name, content in value.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _listed(content: Any) -> str:
    if isinstance(content, list) and any(isinstance(entry, dict) for entry in content):
        return "[\n " + ",\n ".join(json.dumps(entry, ensure_ascii=False) for entry in content) + "\n]"
    return json.dumps(content, ensure_ascii=False)


def to_markdown(value: Value, level: int = 1) -> str:
    """A heading of that level, pipe tables, notes."""
    shown = page(value)
    grids = [pipes(grid) for grid in shown.grids]
    parts = [f"{'#' * level} {escape_markdown(shown.title)}", f"```\n{shown.command}\n```", *grids]
    return "\n\n".join([*parts, *map(escape_markdown, shown.notes)]) + "\n"


def pipes(grid: TableGrid) -> str:
    """A grid as a Markdown table."""
    ruler = ["---"] + ["---:"] * (len(grid.head) - 1)
    lines = [[escape_markdown(text) for text in grid.head], ruler]
    for name, *cells in grid.lines:
        lines.append([escape_markdown(name.text), *(_marked(cell, str, "**{}**") for cell in cells)])  # ours, harmless
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _marked(cell: Text, clean: Callable[[str], str], strong: str) -> str:
    text = clean(cell.text)
    return strong.format(text) if cell.strong else text


def to_latex(value: Value) -> str:
    """Tabulars with booktabs' rules and the notes below."""
    shown = page(value)
    parts = [f"% needs the package booktabs\n% {shown.command}"]
    parts += [_tabular(grid) for grid in shown.grids]
    return "\n\n".join([*parts, *(rf"\par\footnotesize {_latex(note)}" for note in shown.notes)]) + "\n"


_GREEK = {"λ": r"$\lambda$", "β": r"$\beta$", "‡": r"$\ddagger$", "→": r"$\to$"}


def _latex(text: str) -> str:
    clean = escape_latex(text)
    for sign, command in _GREEK.items():
        clean = clean.replace(sign, command)
    return clean


def _tabular(grid: TableGrid) -> str:
    rows = [[_latex(text) for text in grid.head]]
    rows += [[_marked(cell, _latex, r"\textbf{{{}}}") for cell in line] for line in grid.lines]
    head, *body = [" & ".join(row) + r" \\" for row in rows]
    columns = "l" + "r" * (len(grid.head) - 1)
    begin = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule"]
    return "\n".join([*begin, *body, r"\bottomrule", r"\end{tabular}"])


_PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>$title</title>
<style>
${style}body { max-width: 100rem; }
</style>
</head>
<body>
<main>
<h1>$title</h1>
<p><code>$command</code></p>
$grids
$notes
</main>
<footer>Written by <code>lessmore reproduce</code>. This page loads nothing from anywhere.</footer>
</body>
</html>
""")


def to_html(value: Value) -> str:
    """A page of its own that loads nothing."""
    shown = page(value)
    return _PAGE.substitute(
        title=escape(shown.title),
        style=part("base.css"),
        command=escape(shown.command),
        grids="\n".join(_table(grid, number) for number, grid in enumerate(shown.grids)),
        notes="\n".join(f"<p><small>{escape(note)}</small></p>" for note in shown.notes),
    )


def _table(grid: TableGrid, number: int) -> str:
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in grid.head)
    body = "\n".join(_tr(line) for line in grid.lines)
    return (
        f'<h2 id="grid{number}">{escape(grid.title)}</h2>\n'
        f'<div class="wide" tabindex="0" role="region" aria-labelledby="grid{number}">\n<table>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>\n</div>"
    )


def _tr(line: Iterable[Text]) -> str:
    name, *cells = line
    rest = "".join(f"<td>{_marked(cell, escape, '<b>{}</b>')}</td>" for cell in cells)
    return f'<tr><th scope="row">{escape(name.text)}</th>{rest}</tr>'


def to_csv(value: Value) -> str:
    """One line per row and column, averages included, with every figure of it."""
    lines = [line for row in value["rows"] for line in _csv_lines(value, row)]
    names = list(dict.fromkeys(name for line in lines for name in line))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: harmless(content) for name, content in line.items()} for line in lines)
    return text.getvalue()


def _csv_lines(value: Value, row: Value) -> Iterable[dict[str, Any]]:
    settings = row["settings"] or {}
    about = {"table": value["table"], "model": value["model"], "row": row["name"], "tuned": row["tuned"]}
    about |= {name: settings.get(name) for name in ("method", "reducer", "preset", "R")}
    about["options"] = json.dumps(settings.get("options", {}), sort_keys=True)
    places = [{"dataset": c["dataset"], "corruption": c["corruption"]} for c in value["columns"]]
    places += [{"dataset": name, "corruption": None} for name in row["averages"]]
    for place, cell in zip(places, [*row["cells"], *row["averages"].values()], strict=True):
        yield {**about, **place, **_flat(cell), "paper_gmacs": row["paper_gmacs"]}


def _flat(cell: Value) -> dict[str, Any]:
    """Intervals become three columns, lists one text."""
    flat: dict[str, Any] = {}
    for name in ("accuracy", "zero_shot", "gain", "change"):
        flat |= dict(zip((name, f"{name}_low", f"{name}_high"), cell.get(name, (None,) * 3), strict=True))
    ours, paper = flat["accuracy"], cell["paper"]
    flat |= {"paper": paper, "difference": None if ours is None or paper is None else round(ours - paper, 4)}
    flat |= {name: cell.get(name) for name in ("images", "failed", "ece", "zero_shot_ece", "tokens_kept")}
    flat |= {f"gmacs_{name}": cost for name, cost in (cell.get("gmacs") or {}).items()}
    flat["seeds"] = " ".join(map(str, cell.get("seeds", ())))
    flat["gain_by_seed"] = " ".join(map(str, cell.get("gain_by_seed", ())))
    flat["marks"] = "; ".join(cell["paper_marks"])
    return flat


FORMATS: Mapping[str, tuple[str, Callable[[Value], str]]] = {
    "markdown": (".md", to_markdown),
    "csv": (".csv", to_csv),
    "latex": (".tex", to_latex),
    "html": (".html", to_html),
}
"""Endings of the files and what makes their content."""
