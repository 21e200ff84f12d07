"""Tables on the disk: NAME.json with everything, and whatever is made of it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from lessmore.errors import ConfigError, unknown
from lessmore.paper.compare import SCHEMA
from lessmore.paper.notes import Value
from lessmore.paper.tables import TABLES
from lessmore.paper.write import FORMATS, to_json
from lessmore.storage.files import replacing


def save_table(value: Value, folder: Path, formats: Iterable[str]) -> list[Path]:
    """Write a table's JSON and the formats; returns the files."""
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
    """The tables in a folder, in the order in which `lessmore reproduce --list` has them."""
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}; give the --output of lessmore reproduce")
    found = [value for file in sorted(folder.glob("*.json")) if (value := _read(file)) is not None]
    if not found:
        raise ConfigError(f"{folder} holds no table; give the --output of lessmore reproduce")
    order = list(TABLES)
    return sorted(found, key=lambda value: order.index(value["table"]) if value["table"] in order else len(order))


def _read(file: Path) -> Value | None:
    """The table in a file; None where it is something else, such as the numbers of a figure."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read ({error}); make the table anew") from error
    return value if isinstance(value, dict) and value.get("schema") == SCHEMA else None
