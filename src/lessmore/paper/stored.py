"""Tables on disk: NAME.json with everything, and Markdown, LaTeX, HTML and CSV made from it alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from lessmore.data.typed import parse_json, read_text
from lessmore.errors import ConfigError, unknown
from lessmore.lab.report.escape import csv_table
from lessmore.lab.report.grid import TablePage
from lessmore.lab.report.write import to_html, to_latex, to_markdown
from lessmore.paper.compare import SCHEMA
from lessmore.paper.notes import Value
from lessmore.paper.show import table_page
from lessmore.paper.tables import TABLES
from lessmore.paper.verify import VERIFY_SCHEMA
from lessmore.paper.verify_page import verify_page
from lessmore.storage.files import replacing
from lessmore.storage.sealed import seal_of

_REMEDY = "make it again with lessmore reproduce --collect"


def to_json(value: Value) -> str:
    """Sealed JSON with one line per row, so that a diff shows which rows changed."""
    sealed = {**value, "seal": seal_of(json.loads(json.dumps(value)))}
    parts = [f"{json.dumps(name)}: {_listed(content)}" for name, content in sealed.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _listed(content: Any) -> str:
    if isinstance(content, list) and any(isinstance(entry, dict) for entry in content):
        return "[\n " + ",\n ".join(json.dumps(entry, ensure_ascii=False) for entry in content) + "\n]"
    return json.dumps(content, ensure_ascii=False)


def _csv(value: Value) -> str:
    """One line per row and column, including averages, with every number."""
    parts = value.get("parts", [value])
    return csv_table(line for part in parts for row in part["rows"] for line in _csv_lines(part, row))


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
    flat |= {"verdict": cell["verdict"]} if "verdict" in cell else {}
    flat["marks"] = "; ".join(cell["paper_marks"])
    return flat


_PAGES: Mapping[Any, Callable[[Value], TablePage]] = {SCHEMA: table_page, VERIFY_SCHEMA: verify_page}


def _page(value: Value) -> TablePage:
    return _PAGES[value["schema"]](value)


FORMATS: Mapping[str, tuple[str, Callable[[Value], str]]] = {
    "markdown": (".md", lambda value: to_markdown(_page(value))),
    "csv": (".csv", _csv),
    "latex": (".tex", lambda value: to_latex(_page(value))),
    "html": (".html", lambda value: to_html(_page(value), "lessmore reproduce")),
}
"""For each format the ending of its files and the function that makes their content."""


def save_table(value: Value, folder: Path, formats: Iterable[str]) -> list[Path]:
    """Write a table as JSON and in other formats.

    Args:
        value: The table's JSON.
        folder: Where the files go; they are named after the table.
        formats: Names of `FORMATS`.

    Returns:
        The files.
    """
    texts = {".json": to_json(value), **{ending: make(value) for ending, make in map(FORMATS.__getitem__, formats)}}
    files = {folder / f"{value['table']}{ending}": text for ending, text in texts.items()}
    for file, text in files.items():
        with replacing(file) as new:
            new.write_text(text, encoding="utf-8")
    return list(files)


def check_formats(formats: Iterable[str]) -> None:
    """Refuse a format that does not exist."""
    for name in formats:
        if name not in FORMATS:
            raise ConfigError(unknown("format", name, FORMATS))


def read_table(folder: Path) -> list[Value]:
    """The tables in a folder, in the order of `lessmore reproduce --list`."""
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}; give the --output of lessmore reproduce")
    found = [value for file in sorted(folder.glob("*.json")) if (value := _read(file)) is not None]
    if not found:
        raise ConfigError(f"{folder} holds no table; give the --output of lessmore reproduce")
    order = list(TABLES)
    return sorted(found, key=lambda value: order.index(value["table"]) if value["table"] in order else len(order))


def _read(file: Path) -> Value | None:
    """The table in a file; None where it is something else, such as the numbers of a figure."""
    value = parse_json(read_text(file, "the table"), str(file))
    if not isinstance(value, dict) or value.get("schema") not in tuple(_PAGES):
        return None
    # Tables that were made before there were seals have none.
    if "seal" in value and value.pop("seal") != seal_of(value):
        raise ConfigError(f"{file} is damaged: its checksum does not match; {_REMEDY}")
    try:
        for _, make in FORMATS.values():
            make(value)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise ConfigError(f"{file} makes no sense ({type(error).__name__}: {error}); {_REMEDY}") from error
    return value
