"""Sets listed in a CSV, JSON or JSON-lines file with one row per image: path, label, and optionally the class name."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lessmore.data.coop import names_by_label
from lessmore.data.dataset import Dataset, Files
from lessmore.data.layout import inside, own_file
from lessmore.data.spec import COMMON, Spec
from lessmore.errors import ConfigError, unknown
from lessmore.prompts import class_names

COLUMNS = ("path", "label", "classname")


def read_listed(spec: Spec, root: Path) -> Dataset:
    """A known set with a manifest in its folder.

    Args:
        spec: What is known of the set; `split` names the manifest.
        root: The folder that holds the data sets.
    """
    read = read_manifest(own_file(spec, root, str(spec.split)))
    return Dataset(spec.name, read.classes, read.ids, read.labels, read.source, spec.templates)


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
    paths = tuple(str(row["path"]) for row in rows)
    if not anywhere:
        inside(paths, file)
    labels, classes = _labels(rows, classes, file)
    return Dataset(file.stem, classes, paths, labels, Files(file.parent, paths), COMMON)


def _rows(file: Path) -> list[dict[str, Any]]:
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            rows = _parse(stream, file)
    except FileNotFoundError as error:
        raise ConfigError(f"there is no manifest {file}; check the path") from error
    except (ValueError, csv.Error) as error:
        raise ConfigError(f"{file} cannot be read ({error}); write UTF-8 CSV, JSON or JSON lines") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ConfigError(f"{file} is not a list of objects; write one with path and label for each image")
    for number, row in enumerate(rows, 1):
        if not row.get("path") or row.get("label") in (None, ""):
            raise ConfigError(_without(file, number, row))
    return rows


def _parse(stream: Iterable[str], file: Path) -> Any:
    ending = file.suffix.lower()
    if ending == ".csv":
        return list(csv.DictReader(stream))
    if ending == ".json":
        return json.loads("".join(stream))
    if ending == ".jsonl":
        return [json.loads(line) for line in stream if line.strip()]
    raise ConfigError(f"{file} does not end in .csv, .json or .jsonl; give the manifest that ending")


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
    if not all(text.lstrip("-").isdecimal() for text in texts):
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
