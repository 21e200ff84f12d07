"""A table of several orders is read by kinds of streams: what a row gains on each, where it hurts, what it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from lessmore.lab.report.grid import TableGrid, Text

MISSING = "–"
KINDS_NOTE = (
    "zero-shot: accuracy in percent. Others: gain over matched zero-shot (same prompts and images, all tokens) in "
    "points with its 95 % interval over the images, mean over the seeds and streams of a kind. Bold: the interval "
    "leaves out zero. Worst stream: the least gain on any one. ECE: expected calibration error over 15 bins, mean over "
    "the streams. GMACs: of one image, as it is really computed. ms: median of one image, all rows in turn on the same "
    "images, and in brackets over zero-shot's. State: the size of a saved state, in MB."
)


def of_kinds(value: Mapping[str, Any]) -> bool:
    """Whether the table's streams come in several orders."""
    return len({column.get("order") for column in value["columns"]} - {None}) > 1


def kinds_grid(value: Mapping[str, Any]) -> TableGrid:
    """One line per row."""
    head = ("", *value["averages"], "worst stream", "ECE", "GMACs", "ms", "state")
    lines = [_row_line(value, row) for row in value["rows"] if row["settings"] is not None and row["gmacs"]]
    return TableGrid("Gains by kind of stream", head, tuple(lines))


def _row_line(value: Mapping[str, Any], row: Mapping[str, Any]) -> tuple[Text, ...]:
    """Texts of a row."""
    plain = row["name"] == value["base"]
    gains = [_estimate(cell.get("accuracy" if plain else "gain"), plain) for cell in row["averages"].values()]
    errors = [cell["ece"] for cell in row["cells"] if "ece" in cell]
    pace = value.get("pace", {}).get(row["name"], {})
    ms = f"{pace['ms']:.1f} ({pace['relative']:.2f})" if pace else MISSING
    return (
        Text(row["name"]),
        *gains,
        Text(MISSING) if plain else _worst_stream(value, row),
        Text(f"{fmean(errors):.3f}" if len(errors) == len(row["cells"]) else MISSING),
        Text(f"{row['gmacs']['matmul']:.2f}"),
        Text(ms),
        Text(f"{pace['state_mb']:.2g}" if pace else MISSING),
    )


def _estimate(estimate: Sequence[float] | None, plain: bool) -> Text:
    if estimate is None:
        return Text(MISSING)
    value, low, high = estimate
    if plain:
        return Text(f"{value:.1f}")
    return Text(f"{value:+.1f} [{low:+.1f}, {high:+.1f}]", strong=low > 0 or high < 0)


def _worst_stream(value: Mapping[str, Any], row: Mapping[str, Any]) -> Text:
    if "worst" not in row:
        return Text(MISSING)
    column = value["columns"][row["worst"]["column"]]
    where = ", ".join(part for part in (column["dataset"], column["order"], column["corruption"]) if part)
    return Text(f"{row['worst']['gain'][0]:+.1f} ({where})")
