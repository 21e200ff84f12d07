"""Sets listed in a CSV, JSON or JSON-lines file with one row per image: path, label, and optionally the class name."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lessmore.data.coop import names_by_label
from lessmore.data.dataset import Dataset, Files
from lessmore.data.layout import inside, own_file
from lessmore.data.spec import COMMON, Spec
from lessmore.data.typed import parse_json, read_text
from lessmore.errors import ConfigError, unknown
from lessmore.prompts import class_names, spoken

_NUMBER = re.compile(r"-?[0-9]{1,9}")
COLUMNS = ("path", "label", "classname")


def read_listed(spec: Spec, root: Path) -> Dataset:
    """A known set with a manifest in its folder.

    Args:
        spec: What is known of the set; `split` names the manifest.
        root: The folder that holds the data sets.
    """
    read = read_manifest(own_file(spec, root, str(spec.split)))
    return Dataset(spec.name, tuple(map(spoken, read.classes)), read.ids, read.labels, read.source, spec.templates)


def read_manifest(file: Path, classes: Sequence[str] | None = None, anywhere: bool = False) -> Dataset:
    """Images of a manifest.

    Args:
        file: A .csv, .json or .jsonl file with `path` and `label` for each image; labels are numbers or class names.
        classes: Names in the order of numbered labels; None means they are in a column `classname`.
        anywhere: Allow absolute paths and paths out of the manifest's folder.

    Raises:
        ConfigError: The file cannot be used; the message names the row or column.
    """
    rows = _rows(file)
    paths = tuple(row["path"] for row in rows)
    if not anywhere:
        inside(paths, file)
    labels, classes = _labels(rows, classes, file)
    return Dataset(file.stem, classes, paths, labels, Files(file.parent, paths), COMMON)


def _rows(file: Path) -> list[dict[str, Any]]:
    if file.suffix.lower() not in _PARSERS:
        raise ConfigError(f"{file} does not end in .csv, .json or .jsonl; give the manifest that ending")
    rows = _PARSERS[file.suffix.lower()](read_text(file, "the manifest"), file)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ConfigError(f"{file} is not a list of objects; write one with path and label for each image")
    for number, row in enumerate(rows, 1):
        if row.get("path") in (None, "") or row.get("label") in (None, ""):
            raise ConfigError(_without(file, number, row))
        strange = next((name for name, kinds in _KINDS.items() if type(row.get(name)) not in kinds), None)
        if strange is not None:
            raise ConfigError(f"{file}: row {number} has the {strange} {str(row[strange])[:60]!r}; {_WANTED}")
    return rows


_KINDS = {"path": (str,), "label": (str, int), "classname": (str, type(None))}
_WANTED = "paths and class names are texts, labels texts or whole numbers"


def _csv_rows(text: str, file: Path) -> list[dict[str, Any]]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        names = list(reader.fieldnames or ())
        rows = list(reader)
    except csv.Error as error:
        raise ConfigError(f"{file} is not CSV (line {reader.line_num}: {error}); correct it") from error
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"{file} has two columns {twice!r}; give every column its own name")
    return rows


def _json_lines(text: str, file: Path) -> list[Any]:
    lines = enumerate(text.split("\n"), 1)
    return [parse_json(line, f"{file}, line {number},") for number, line in lines if line.strip()]


_PARSERS: dict[str, Callable[[str, Path], Any]] = {
    ".csv": _csv_rows,
    ".json": lambda text, file: parse_json(text, str(file)),
    ".jsonl": _json_lines,
}


def _without(file: Path, number: int, row: dict[str, Any]) -> str:
    missing = next(column for column in COLUMNS if row.get(column) in (None, ""))
    if missing in row:
        return f"{file}: row {number} has no {missing}; fill it in"
    others = [str(column) for column in row if column not in COLUMNS]
    hint = f" ({unknown('column', others[0], COLUMNS)})" if others else ""
    return f"{file} has no column {missing!r}{hint}; the columns are {', '.join(COLUMNS)}, the last one optional"


def _labels(
    rows: list[dict[str, Any]], classes: Sequence[str] | None, file: Path
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    texts = [str(row["label"]).strip() for row in rows]
    if not all(_NUMBER.fullmatch(text) for text in texts):
        known = list(classes) if classes is not None else sorted(set(texts))
        strange = next((text for text in texts if text not in known), None)
        if strange is not None:
            raise ConfigError(f"{file}: {unknown('class', strange, known)}")
        index = {name: label for label, name in enumerate(known)}
        return tuple(index[text] for text in texts), tuple(class_names(known))
    labels = tuple(map(int, texts))
    if classes is not None:
        return labels, tuple(class_names(classes))
    if not all(row.get("classname") for row in rows):
        raise ConfigError(f"{file} numbers its classes but does not name them; add a column classname")
    return labels, names_by_label(zip(labels, (str(row["classname"]) for row in rows), strict=True), file)
