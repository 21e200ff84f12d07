"""A table's JSON arranged for reading: grids of short texts with notes, the same for every format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from lessmore.lab.labels import method_label
from lessmore.lab.report.grid import TableGrid, TablePage, Text
from lessmore.paper.kinds import MISSING, kinds_grid, of_kinds
from lessmore.paper.notes import TablePlace, Value, from_zero_shot, is_plain, marks, notes
from lessmore.paper.tables import find_table

NONE = MISSING
TUNED = "†"
MARKED = "‡"


def table_page(value: Value) -> TablePage:
    """The table as it is shown."""
    beside, compared = _beside(value)
    second = _calibration(value) if from_zero_shot(value) else _changes(value)
    grids = (_measured(value), *([second] if second.lines else []), *([beside] if compared else []))
    grids = (kinds_grid(value),) if of_kinds(value) else grids
    return TablePage(
        f"{value['title']}: {value['model']}", grids, tuple(notes(value, compared)), reproduce_command(value)
    )


def reproduce_command(value: Value) -> str:
    """The command that makes the table; `DATA` stands for the reader's own folder."""
    asked = value["asked"]
    sets = dict.fromkeys(column["dataset"] for column in value["columns"]) if asked["own_data"] else ()
    bad = dict.fromkeys(column["corruption"] or "none" for column in value["columns"])
    usual = [name or "none" for name in find_table(value["table"]).corruptions]
    streams = {"dataset": sets, "corruption": () if list(bad) == usual else bad}
    given = " ".join(f"--{name} {' '.join(values)}" for name, values in streams.items() if values)
    words = f"lessmore reproduce {value['table']} --model {value['model']} --root DATA", given, options_of(value)
    return " ".join(word for word in words if word)


def options_of(value: Value) -> str:
    """The options of the command besides model and streams, where they are not the usual ones."""
    asked = value["asked"]
    options = {
        "seeds": map(str, asked["seeds"]),
        "rows": (f'"{row}"' for row in asked["rows"]),
        **{name: [str(asked[name])] for name, usual in _USUAL.items() if asked.get(name, usual) != usual},
    }
    listed = {name: " ".join(values) for name, values in options.items()}
    return " ".join(f"--{name} {values}" for name, values in listed.items() if values)


_USUAL: dict[str, Any] = {"limit": None, "order": "iid", "preset": "fixed", "templates": None, "precision": "float32"}


def column_name(column: Value) -> str:
    """A stream in a few words."""
    order = column.get("order", "iid")
    parts = (column["dataset"], column["corruption"], None if order == "iid" else order)
    return ", ".join(part for part in parts if part)


def _measured(value: Value) -> TableGrid:
    """Our figures alone."""
    head = ("", *map(column_name, value["columns"]), *value["averages"], "GMACs", "orders")
    lines = [(Text("images"), *_images(value), Text(""), Text(""))]
    if not any(is_plain(row) for row in value["rows"]):
        lines.append(_zero_shot(value))
    lines += [_line(row) for row in value["rows"] if row["settings"] is not None]
    return TableGrid("Measured", head, tuple(lines))


def _images(value: Value) -> Iterator[Text]:
    yield from (Text(f"{column['images']:,}" if "images" in column else NONE) for column in value["columns"])
    yield from (Text("") for _ in value["averages"])


def _zero_shot(value: Value) -> tuple[Text, ...]:
    """The line of matched zero-shot; its averages are those recorded with any other row's."""
    own = [_interval(column.get("zero_shot")) for column in value["columns"]]
    known = {name: a["zero_shot"] for row in value["rows"] for name, a in row["averages"].items() if "zero_shot" in a}
    averages = [_interval(known.get(name)) for name in value["averages"]]
    costs = next((row["gmacs"]["plain_matmul"] for row in value["rows"] if row["gmacs"]), None)
    return (Text("matched zero-shot"), *own, *averages, Text(NONE if costs is None else f"{costs:.2f}"), Text(""))


def _interval(estimate: Sequence[float] | None) -> Text:
    return Text(NONE) if estimate is None else Text("{:.1f} [{:.1f}, {:.1f}]".format(*estimate))


def _line(row: Value) -> tuple[Text, ...]:
    cells = [*row["cells"], *row["averages"].values()]
    shown = [_interval(cell.get("accuracy")) if is_plain(row) else _gain(cell) for cell in cells]
    counts = sorted({len(cell["seeds"]) for cell in row["cells"] if "seeds" in cell})
    orders = Text("–".join(dict.fromkeys((str(counts[0]), str(counts[-1])))) if counts else NONE)
    return (Text(row_name(row)), *shown, Text(f"{row['gmacs']['matmul']:.2f}" if row["gmacs"] else NONE), orders)


def row_name(row: Value) -> str:
    """A row's name, with a mark where its settings were tuned and a word where they are a preset's."""
    settings = row["settings"]
    name = str(row["name"])
    if settings is not None and not name.startswith("preset"):
        name = method_label(name, settings["method"], settings["preset"].partition("/")[0])
    return f"{name} {TUNED}" if row["tuned"] else name


def _gain(cell: Value) -> Text:
    """Accuracy and gain; bold where the gain's interval excludes zero."""
    if "accuracy" not in cell:
        return Text(NONE)
    value, low, high = cell["gain"]
    return Text(f"{cell['accuracy'][0]:.1f} ({value:+.1f} [{low:+.1f}, {high:+.1f}])", strong=low > 0 or high < 0)


def _changes(value: Value) -> TableGrid:
    """Paired differences to the table's base, in points."""
    base = next((row_name(row) for row in value["rows"] if row["name"] == value["base"]), value["base"])
    head = (f"change from {base}", *map(column_name, value["columns"]), *value["averages"])
    lines = [(row, [*row["cells"], *row["averages"].values()]) for row in value["rows"]]
    shown = [(Text(row_name(row)), *map(_changed, cells)) for row, cells in lines if any("change" in c for c in cells)]
    return TableGrid(f"Change from {base}", head, tuple(shown))


def _changed(cell: Value) -> Text:
    if "change" not in cell:
        return Text(NONE)
    value, low, high = cell["change"]
    return Text(f"{value:+.1f} [{low:+.1f}, {high:+.1f}]", strong=low > 0 or high < 0)


def _calibration(value: Value) -> TableGrid:
    """Expected calibration errors; they replace changes where the gains show those already."""
    head = ("calibration error", *map(column_name, value["columns"]), *value["averages"])
    lines = []
    for row in value["rows"]:
        errors = [cell.get("ece") for cell in row["cells"]]
        means = [_mean([errors[n] for n in part]) for part in value["averages"].values()]
        if row["settings"] is not None:
            lines.append((Text(row_name(row)), *(Text(NONE if e is None else f"{e:.3f}") for e in [*errors, *means])))
    return TableGrid("Calibration error", head, tuple(lines))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def _beside(value: Value) -> tuple[TableGrid, set[TablePlace]]:
    """Ours, the paper's and the difference for columns that the paper has, and which of its cells these are."""
    places = [(column_name(c), c["dataset"]) for c in value["columns"]] + [(name, name) for name in value["averages"]]
    cells = [[*row["cells"], *row["averages"].values()] for row in value["rows"]]
    used = [n for n in range(len(places)) if any(line[n]["paper"] is not None for line in cells)]
    columns = [places[n][1] for n in used]
    ours = [(row, [line[n] for n in used]) for row, line in zip(value["rows"], cells, strict=True)]
    compared = [row["paper_row"] for row, _ in ours]
    # The paper's rows that we lack are of interest as long as nobody asked for certain rows.
    known = value["paper"]["rows"] if used and not value["asked"]["rows"] else {}
    others = [name for name in known if name not in compared]
    lines = [_pairs(value, row, line) for row, line in ours if any(cell["paper"] is not None for cell in line)]
    lines += [_printed(value, name, columns) for name in others]
    head = ("ours / paper / difference", *(places[n][0] for n in used), "GMACs, the paper's counting")
    shown = {(row, cell) for row in ("", *compared, *others) for cell in ("", "gflops", *columns)}
    return TableGrid("Beside the paper", head, tuple(lines)), shown if used else set()


def _pairs(value: Value, row: Value, cells: Sequence[Value]) -> tuple[Text, ...]:
    ours = f"{row['gmacs']['paper']:.2f}" if row["gmacs"] else NONE
    return (Text(row_name(row)), *map(_pair, cells), _cost(value, row["paper_row"], ours, row["paper_gmacs"]))


def _pair(cell: Value) -> Text:
    if cell["paper"] is None:
        return Text(NONE)
    mark = f" {MARKED}" if cell["paper_marks"] else ""
    if "accuracy" not in cell:
        return Text(f"{NONE} / {cell['paper']:.2f}{mark} / {NONE}")
    ours = cell["accuracy"][0]
    return Text(f"{ours:.2f} / {cell['paper']:.2f}{mark} / {ours - cell['paper']:+.2f}")


def _printed(value: Value, name: str, columns: Sequence[str]) -> tuple[Text, ...]:
    """A row of the paper's that we have not run."""
    row = value["paper"]["rows"][name]
    cells = [{"paper": row["values"].get(c), "paper_marks": marks(value, name, c)} for c in columns]
    return (Text(name), *map(_pair, cells), _cost(value, name, NONE, row["gmacs"]))


def _cost(value: Value, name: str, ours: str, printed: float | None) -> Text:
    mark = f" {MARKED}" if marks(value, name, "gflops") else ""
    return Text(f"{ours} / {NONE if printed is None else f'{printed:.2f}{mark}'}")
