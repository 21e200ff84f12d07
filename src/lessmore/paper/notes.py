"""The notes below a table: units, whose model, what is missing, and where the paper contradicts itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any

from lessmore.lab.labels import preset_note
from lessmore.paper.kinds import KINDS_NOTE, of_kinds

Value = Mapping[str, Any]
"""The content of one table's JSON."""
TablePlace = tuple[str, str]
"""A cell of the paper: row and column."""

_OURS = (
    "Accuracy in percent; in brackets the gain over matched zero-shot (same prompts and images, all tokens) in points "
    "with its 95 % interval over the images, mean over the orders. Bold: the interval leaves out zero. GMACs: of one "
    "image, as it is really computed, mean over the columns."
)
_PAPER = (
    "Differences are in points. Percentages in the paper are relative to the baseline's accuracy (58.00 → 70.43 is its "
    "21.4 %); where it prints nothing else, the accuracy is computed from them. Its GFLOPs are multiply-accumulates."
)
_CALIBRATION = "Calibration error: expected, over 15 bins, mean over the orders; 0 is perfect."
_TUNED = (
    "† Settings chosen on the test labels of the very data set; they say what tuning could bring, not what to expect."
)
_ATS = "The cost of ATS depends on the image; ours is its upper bound, the paper's a mean."


def notes(value: Value, compared: Set[TablePlace]) -> Iterator[str]:
    """One paragraph each.

    Args:
        value: The table's JSON.
        compared: The cells of the paper that are shown.
    """
    yield KINDS_NOTE if of_kinds(value) else _OURS
    if from_zero_shot(value) and not of_kinds(value):
        yield _CALIBRATION
    elif not from_zero_shot(value) and any("change" in cell for row in value["rows"] for cell in row["cells"]):
        yield f"Change from {value['base']}: in points, image by image, with its 95 % interval over the images."
    printed = value["paper"]
    if compared:
        yield f"{_PAPER} The paper's model is {printed['model']}, ours {value['model']}."
    yield from setting_notes(value)
    if any(row["settings"]["reducer"] == "ats" for row in value["rows"] if row["settings"] is not None):
        yield _ATS
    yield from remarks(value, compared)
    yield from _absent(value)
    yield _made(value)


def setting_notes(value: Value) -> Iterator[str]:
    """How the rows were set, on which images, and what was tuned on them."""
    if value["note"]:
        yield value["note"]
    yield from _presets(value)
    yield from _data(value)
    if any(row["tuned"] for row in value["rows"] if row["settings"] is not None):
        yield _TUNED


def remarks(value: Value, places: Set[TablePlace]) -> Iterator[str]:
    """Where the paper contradicts itself.

    Args:
        value: The table's JSON.
        places: The cells of the paper that are shown.
    """
    told = [_mark(mark) for mark in value["paper"]["marks"] if (mark["row"], mark["cell"]) in places] if places else []
    if told:
        yield f"‡ On the paper's numbers: {'; '.join(told)}."


def _presets(value: Value) -> Iterator[str]:
    """Which TCA the rows are."""
    shown = [row["settings"] for row in value["rows"] if row["settings"] is not None]
    told = preset_note(s["preset"].partition("/")[0] for s in shown if s["method"] == "tca")
    if told:
        yield told


def is_plain(row: Value) -> bool:
    """Whether a row is matched zero-shot itself."""
    settings = row["settings"]
    return settings is not None and (settings["method"], settings["reducer"]) == ("zeroshot", "none")


def from_zero_shot(value: Value) -> bool:
    """Whether the table's base is matched zero-shot, so that gains are the changes from it."""
    return any(row["name"] == value["base"] and is_plain(row) for row in value["rows"])


def marks(value: Value, row: str, cell: str) -> list[str]:
    """Remarks on one cell of the paper's table.

    Args:
        value: The table's JSON.
        row: Name of the paper's row.
        cell: A data set, an average, `gflops` or `parameters`.
    """
    printed = value["paper"]
    return [m["why"] for m in (printed["marks"] if printed else ()) if (m["row"], m["cell"]) == (row, cell)]


def _mark(mark: Mapping[str, str]) -> str:
    where = ", ".join(part for part in (mark["row"], mark["cell"]) if part)
    return f"{where}: {mark['why']}" if where else mark["why"]


def _data(value: Value) -> Iterator[str]:
    """Which images, where not all."""
    chosen: dict[str, dict[str, None]] = {}
    for column in value["columns"]:
        if column.get("note"):
            chosen.setdefault(column["dataset"], {})[column["note"]] = None
    if chosen:
        yield "Images: " + "; ".join(f"{name}: {' or '.join(found)}" for name, found in chosen.items()) + "."
    failed = max((cell.get("failed", 0) for row in value["rows"] for cell in row["cells"]), default=0)
    if failed:
        yield f"Up to {failed:,} images of a stream could not be read and count nowhere."


def _absent(value: Value) -> Iterator[str]:
    if value["left_out"]:
        rows = "; ".join(f"{name} ({needs})" for name, needs in value["left_out"].items())
        yield f"Not run unless asked for with --rows: {rows}."
    if value["missing"]:
        yield "Not there: " + "; ".join(f"{name}: {how}" for name, how in value["missing"].items()) + "."
    if value["failed"]:
        yield "Failed: " + "; ".join(value["failed"]) + "."


def _made(value: Value) -> str:
    """Software and machine in a sentence."""
    made = value["provenance"]
    if not made["runs"]:
        return "No run is done yet."
    versions, hardware = (
        made[name] if isinstance(made[name], list) else [made[name]] for name in ("versions", "hardware")
    )
    software = " and ".join(f"lessmore {v['lessmore']}, torch {v['torch']}" for v in versions)
    machine = " and ".join(dict.fromkeys(h["gpu"] or h["cpu"] for h in hardware))
    return f"{made['runs']} runs, {software}, {machine}."
