"""The numbers printed in the paper: every cell of its tables as data, with a mark wherever it disagrees with itself."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, NamedTuple


class Mark(NamedTuple):
    """A remark on a cell (`row` and `cell`), a row (`cell` empty) or the whole table (both empty)."""

    row: str
    cell: str
    """A data set, an average, `gflops` or `parameters`."""
    why: str


@dataclass(frozen=True)
class PaperRow:
    """One row, as printed."""

    name: str
    method: str
    reducer: str
    settings: Mapping[str, Any]
    values: tuple[float | None, ...]
    """One per column: accuracies in percent, or with `relative_to` percent of that row's accuracy."""
    averages: Mapping[str, float] = field(default_factory=dict)
    relative_to: str = ""
    gflops: float | None = None
    """10⁹ multiply-accumulates of one image."""
    gflops_averaged: bool = False
    """Whether these depend on the image and are a mean over all data sets."""
    augmentation_free: bool | None = None
    parameters: int | None = None
    """Learnable parameters."""


@dataclass(frozen=True)
class PaperTable:
    """One table of the paper, with settings as rows and data sets as columns however it is printed."""

    name: str
    source: str
    """Its label in the paper."""
    place: str
    caption: str
    model: str
    columns: tuple[str, ...]
    averages: Mapping[str, tuple[str, ...]]
    """The columns that each average is over."""
    rows: Mapping[str, PaperRow]
    marks: tuple[Mark, ...]

    def accuracy(self, row: str, column: str) -> float | None:
        """Accuracy in percent; None where the paper has none.

        Args:
            row: Name of a row.
            column: A data set or an average.
        """
        found = self.rows.get(row)
        if found is None or (column not in self.columns and column not in found.averages):
            return None
        value = found.averages[column] if column in found.averages else found.values[self.columns.index(column)]
        if value is None or not found.relative_to:
            return value
        base = self.accuracy(found.relative_to, column)
        return None if base is None else round(base * (1 + value / 100), 2)

    def marks_of(self, row: str, cell: str) -> list[str]:
        """Why a cell should be read with care.

        Args:
            row: Name of a row.
            cell: A data set, an average, `gflops` or `parameters`.
        """
        return [mark.why for mark in self.marks if (mark.row, mark.cell) == (row, cell)]


@functools.cache
def paper_tables() -> dict[str, PaperTable]:
    """All tables of the paper, by the names that `lessmore reproduce` gives them."""
    text = resources.files("lessmore.paper").joinpath("paper.json").read_text(encoding="utf-8")
    return {name: _table(name, entry) for name, entry in json.loads(text)["tables"].items()}


def _table(name: str, entry: dict[str, Any]) -> PaperTable:
    rows = [PaperRow(**{**row, "values": tuple(row["values"])}) for row in entry["rows"]]
    return PaperTable(
        name=name,
        source=entry["source"],
        place=entry["place"],
        caption=entry["caption"],
        model=entry["model"],
        columns=tuple(entry["columns"]),
        averages={average: tuple(columns) for average, columns in entry["averages"].items()},
        rows={row.name: row for row in rows},
        marks=tuple(Mark(**mark) for mark in entry["marks"]),
    )
