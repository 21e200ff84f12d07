"""Tables and pages as text. Templates escape everything they print for their format, so no name can be forgotten."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from markupsafe import escape as html_escape

from lessmore.lab.report.escape import latex, markdown, one_line, visible
from lessmore.lab.report.grid import TableGrid, TablePage

_TEX_SIGNS: dict[str, Any] = {
    "block_start_string": "<%",
    "block_end_string": "%>",
    "variable_start_string": "<<",
    "variable_end_string": ">>",
    "comment_start_string": "<#",
    "comment_end_string": "#>",
}
"""LaTeX uses braces itself."""


def to_markdown(page: TablePage, level: int = 1) -> str:
    """A page as a heading, the command, pipe tables and notes.

    Args:
        page: The page; without a title there is no heading.
        level: Of the heading.
    """
    return render("page.md", page=page, level=level)


def markdown_table(grid: TableGrid) -> str:
    """A grid as a pipe table."""
    return render("table.md", grid=grid)


def to_latex(page: TablePage) -> str:
    """A page as booktabs tabulars with their notes."""
    return render("page.tex", page=page)


def to_html(page: TablePage, command: str) -> str:
    """A page of its own that loads nothing.

    Args:
        page: The page.
        command: What wrote it, for the footer.
    """
    return render("tables.html", page=page, written_by=command)


def render(name: str, **content: Any) -> str:
    """A template, filled in; the ending of its name decides how texts are escaped.

    Args:
        name: File in the folder `templates`.
        **content: The template's variables.
    """
    text = _environment(name.rpartition(".")[2]).get_template(name).render(content)
    return text.encode("utf-8", "replace").decode()  # names of files need not be UTF-8, what we write must be


def part(name: str) -> str:
    """A file of the folder `templates`, verbatim."""
    return resources.files("lessmore.lab.report").joinpath("templates", name).read_text(encoding="utf-8")


@functools.cache
def _environment(ending: str) -> Environment:
    environment = Environment(
        loader=PackageLoader("lessmore.lab.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_FINALIZE[ending],
        **(_TEX_SIGNS if ending == "tex" else {}),
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "ensure_ascii": False}
    environment.filters.update(one_line=one_line, thousands="{:,}".format)
    return environment


def _finalize(escape: Callable[[str], str]) -> Callable[[Any], Markup]:
    """What macros made is escaped already; everything else is escaped now."""
    return lambda value: value if isinstance(value, Markup) else Markup(escape(str(value)))


_FINALIZE: dict[str, Callable[[Any], Any]] = {
    "md": _finalize(markdown),
    "tex": _finalize(latex),
    "html": _finalize(lambda text: str(html_escape(visible(text)))),
}
