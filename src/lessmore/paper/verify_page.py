"""The page of `lessmore reproduce verify`, made to be sent in: what agrees, what does not, and what it was run with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from lessmore.lab.report.grid import TableGrid, TablePage, Text
from lessmore.paper.notes import TablePlace, Value, remarks, setting_notes
from lessmore.paper.show import options_of, row_name
from lessmore.paper.verify import FEWEST

Judged = tuple[str, str, Mapping[str, Any]]
"""Row, column and the judged cell."""
_WORDS = ("within", "differs", "too few images")


def verify_page(value: Value) -> TablePage:
    """The page as it is shown."""
    grids = [_summary(value)] if any(_judged(part) for part in value["parts"]) else []
    grids += [grid for part in value["parts"] for grid in _cells(part, _part_note(value))]
    grids += [_data(value)] if value["data"] else []
    title = f"Verification: {value['model']} beside the paper"
    return TablePage(title, (*grids, _made(value)), tuple(_notes(value)), _command(value), tuple(_lead(value)))


def _judged(part: Value) -> list[Judged]:
    found = []
    for row in part["rows"]:
        named = [(c["dataset"], cell) for c, cell in zip(part["columns"], row["cells"], strict=True)]
        named += [(name, cell) for name, cell in row["averages"].items()]
        found += [(row_name(row), name, cell) for name, cell in named if cell["verdict"]]
    return found


def _all(value: Value) -> list[Judged]:
    return [one for part in value["parts"] for one in _judged(part)]


def _lead(value: Value) -> Iterator[str]:
    """What a reader must know before any number."""
    if value["limit"] is not None:
        yield (
            f"PARTIAL: only --limit {value['limit']} of every data set. A quick try, which confirms nothing: a verdict "
            "here speaks of these images alone. Run it without --limit to verify."
        )
    paper = value["paper_model"]
    if value["gaps"]:
        yield (
            f"NOT THE PAPER'S MODEL: the architecture differs from {paper}, its most similar one. In brackets what "
            f"{paper} has: {', '.join(value['gaps'])}. Differences from the printed numbers are expected and say "
            "nothing about the method."
        )
    else:
        yield (
            f"The architecture is that of the paper's {paper}. Whether the weights are those that the paper used "
            "cannot be told from here: compare their hash below, and say where you got them."
        )
    yield from _count(value)
    odd = [name for name, data in value["data"].items() if data["images"] != data["published"]]
    if odd:
        yield f"NOT THE PAPER'S IMAGES, by their number, which is in the table of data: {', '.join(odd)}."


def _count(value: Value) -> Iterator[str]:
    """How many cells agree."""
    counted = Counter(cell["verdict"] for _, _, cell in _all(value))
    if not counted:
        yield "No cell could be compared: no data set of the paper's was there, or every run failed."
        return
    inside, beyond, few = (counted[word] for word in _WORDS)
    whole = inside + beyond
    yield f"The paper's number lies within our 95 % interval in {inside} of {whole} cells, beyond it in {beyond}."
    if few:
        yield f"{few} cells have fewer than {FEWEST} images and get no verdict."


def _summary(value: Value) -> TableGrid:
    """One line per row of a table."""
    lines = []
    for part in value["parts"]:
        by_row: dict[str, list[Mapping[str, Any]]] = {}
        for row, _, cell in _judged(part):
            by_row.setdefault(row, []).append(cell)
        lines += [_summary_line(part, row, cells) for row, cells in by_row.items()]
    return TableGrid("By method", ("method", *_WORDS, "mean difference", "table"), tuple(lines))


def _summary_line(part: Value, row: str, cells: Sequence[Mapping[str, Any]]) -> tuple[Text, ...]:
    counted = Counter(cell["verdict"] for cell in cells)
    mean = fmean(cell["accuracy"][0] - cell["paper"] for cell in cells)
    numbers = (Text(str(counted[word]), strong=word == "differs" and counted[word] > 0) for word in _WORDS)
    return (Text(row), *numbers, Text(f"{mean:+.2f}"), Text(part["table"]))


def _part_note(value: Value) -> str:
    return ", partial" if value["limit"] is not None else ""


def _cells(part: Value, note: str) -> Iterator[TableGrid]:
    """Every cell beside the paper's, a grid for each data set."""
    judged = _judged(part)
    for column in dict.fromkeys(column for _, column, _ in judged):
        head = (column, "verdict", "ours", "95 % interval", "paper", "difference")
        lines = (_cell_line(row, cell, note) for row, name, cell in judged if name == column)
        yield TableGrid(f"{column}: {part['title']}", head, tuple(lines), words=2)


def _cell_line(row: str, cell: Mapping[str, Any], note: str) -> tuple[Text, ...]:
    ours, paper = cell["accuracy"][0], cell["paper"]
    low, high = cell["interval"]
    numbers = (f"{ours:.2f}", f"{low:.2f} to {high:.2f}", f"{paper:.2f}", f"{ours - paper:+.2f}")
    word = Text(f"{cell['verdict']}{note}", strong=cell["verdict"] == "differs")
    return (Text(row), word, *map(Text, numbers))


def _data(value: Value) -> TableGrid:
    head = ("data set", "used", "there", "published", "classes", "names and labels", "pixels of some")
    lines = tuple(
        (
            Text(name),
            *(Text(f"{data[key]:,}") for key in ("used", "images", "published", "classes")),
            *(Text(data[key][:16]) for key in ("fingerprint", "pixels")),
        )
        for name, data in value["data"].items()
    )
    return TableGrid("Data", head, lines)


def _made(value: Value) -> TableGrid:
    """Model, settings, software and machine; lists where runs of several machines came together."""
    part = next((one for one in value["parts"] if one["provenance"]["runs"]), value["parts"][0])
    made, asked = part["provenance"], part["asked"]
    facts = {"model": value["model"], "weights (SHA-256)": value["weights"], "preset": asked["preset"]}
    facts |= {"seeds of the order": " ".join(map(str, asked["seeds"])), "weights run in": _told(made["dtype"])}
    facts |= {"device": _told(made["device"]), "templates": asked.get("templates") or "each data set's own"}
    for versions in _listed(made["versions"]):
        facts |= {name: version for name, version in versions.items()}
    for machine in _listed(made["hardware"]):
        facts |= {"processor": machine["cpu"], "GPU": machine["gpu"] or "none", "system": machine["system"]}
    facts |= {"commit": _told(made["git"]), "runs": str(sum(one["provenance"]["runs"] for one in value["parts"]))}
    return TableGrid(
        "Made with", ("made with", "value"), tuple((Text(k), Text(str(v))) for k, v in facts.items()), words=2
    )


def _listed(found: Any) -> list[Any]:
    return found if isinstance(found, list) else [found]


def _told(found: Any) -> str:
    return ", ".join(str(one) for one in _listed(found) if one is not None) or "unknown"


def _notes(value: Value) -> Iterator[str]:
    yield (
        "Accuracy in percent, differences in points. The interval (95 %) is over the images, each counted once "
        "however many orders it was seen in. On a whole test set the paper saw the same images, so chance explains "
        "less than the interval allows: within it means that nothing contradicts, not that the numbers are equal."
    )
    for part in value["parts"]:
        if _judged(part):
            yield from setting_notes(part)
            yield from remarks(part, set(_places(part)))
    for name, needed in value["missing"].items():
        yield f"Not there, {name}: {needed}."
    if value["failed"]:
        yield f"Failed: {'; '.join(value['failed'])}."


def _places(part: Value) -> Iterator[TablePlace]:
    """The paper's cells that are shown, and its rows as such."""
    columns = [column["dataset"] for column in part["columns"]]
    for row in part["rows"]:
        yield from ((row["paper_row"], cell) for cell in ("", *columns, *row["averages"]))


def _command(value: Value) -> str:
    """The command that makes the page; `DATA` stands for the reader's own folder."""
    sets = f" --dataset {' '.join(value['datasets'])}" if value["datasets"] else ""
    options = options_of(value["parts"][0])
    return f"lessmore reproduce verify --model {value['model']} --root DATA{sets} {options}".strip()
