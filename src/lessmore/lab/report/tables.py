"""Many runs arranged as one table, as a pure function of their summaries; `lessmore.lab.report.write` formats it.

A row is a setting, a column a stream of images, a cell the mean over seeds. Seeds put the same images into another
order, so they do not narrow the interval: ± is half the width of a run's own 95 % interval, averaged over the seeds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from lessmore.lab.labels import preset_note
from lessmore.lab.report.grid import TableGrid, TablePage, Text

SummaryView = Mapping[str, Any]
"""The content of one summary.json."""

ALWAYS = ("model", "method", "reducer", "preset", "R")
SOMETIMES = ("options", "templates", "precision", "device")
"""Settings that are shown only if the runs differ in them."""
TUNED = "†"


@dataclass(frozen=True)
class Cell:
    """Figures of one setting on one stream, in percent and points."""

    accuracy: float
    half: float | None = None
    """Half the width of the 95 % interval."""
    gain: float | None = None
    """Against matched zero-shot; None in zero-shot's own row."""
    gain_half: float | None = None
    """Half the width of its 95 % interval."""


@dataclass(frozen=True)
class ResultRow:
    """One setting."""

    labels: tuple[str, ...]
    seeds: str
    cells: tuple[Cell | None, ...]
    """One per column, the average last where there are two columns or more."""
    tuned: bool = False
    """Whether its settings were chosen on test labels; such a row is never marked as best."""


@dataclass(frozen=True)
class ResultTable:
    """What Markdown, LaTeX and HTML show."""

    head: tuple[str, ...]
    """Names of the settings in `ResultRow.labels`."""
    columns: tuple[str, ...]
    images: tuple[str, ...]
    """Number of images of each column."""
    rows: tuple[ResultRow, ...]
    notes: tuple[str, ...]

    def best(self, row: ResultRow, i: int) -> bool:
        """Whether no row of the same model is better in a column, at the digits shown.

        Args:
            row: The row; one that was tuned on test labels never is.
            i: Number of the column.
        """
        rivals = [r.cells[i] for r in self.rows if r.labels[0] == row.labels[0] and not r.tuned]
        top = max((round(cell.accuracy, 2) for cell in rivals if cell is not None), default=None)
        cell = row.cells[i]
        return cell is not None and not row.tuned and round(cell.accuracy, 2) == top


@dataclass(frozen=True)
class Run:
    """A summary and its place: the row of its settings and the column of its stream."""

    summary: SummaryView
    settings: Mapping[str, str]
    column: str

    @property
    def metrics(self) -> Mapping[str, Any]:
        """The results."""
        metrics: Mapping[str, Any] = self.summary["metrics"]
        return metrics


def result_table(summaries: Iterable[SummaryView], incomplete: Sequence[str] = ()) -> ResultTable:
    """Arrange finished runs as a table.

    Args:
        summaries: Of the runs.
        incomplete: Names of runs that are left out, to be listed in the notes.
    """
    runs, repeated = newest_runs(summaries)
    head = (*ALWAYS, *(name for name in SOMETIMES if len({run.settings[name] for run in runs}) > 1))
    columns = sorted({run.column for run in runs})
    matched = _grouped(runs, lambda run: _matched_labels(run, head))
    settings = _grouped(runs, lambda run: tuple(run.settings[name] for name in head))
    rows = [_matched_row(labels, of, columns) for labels, of in matched]
    rows += [_row(labels, of, columns) for labels, of in settings]
    rows.sort(key=lambda row: row.labels[0])  # by model; zero-shot stays before the others
    average = ("average",) if len(columns) > 1 else ()
    images = (*(_images(run for run in runs if run.column == column) for column in columns), *("" for _ in average))
    return ResultTable(head, (*columns, *average), images, tuple(rows), _notes(runs, repeated, incomplete))


def newest_runs(summaries: Iterable[SummaryView]) -> tuple[list[Run], int]:
    """One run per setting, stream and seed, the last to finish; and how many others there were."""
    distinct = {summary["key"]: summary for summary in with_short_names(summaries)}
    streams: dict[str, set[str]] = {}
    for summary in distinct.values():
        streams.setdefault(_column(summary), set()).add(summary["dataset"]["fingerprint"])
    kept: dict[tuple[object, ...], Run] = {}
    for summary in sorted(distinct.values(), key=lambda one: (str(one["provenance"].get("finished")), one["key"])):
        column = _column(summary)
        if len(streams[column]) > 1:  # different data under one name
            column = f"{column}, {summary['dataset']['fingerprint'][:8]}"
        run = Run(summary, {name: _setting(summary, name) for name in (*ALWAYS, *SOMETIMES)}, column)
        kept[(*run.settings.values(), column, summary["spec"]["seed"])] = run
    return list(kept.values()), len(distinct) - len(kept)


def with_short_names(summaries: Iterable[SummaryView]) -> list[SummaryView]:
    """Summaries whose models are named without the folders above them, by as much of a path as tells them apart."""
    found = list(summaries)
    places = {str(one["spec"]["model"]) for one in found if Path(str(one["spec"]["model"])).is_absolute()}
    short = {place: _tail(Path(place), [Path(other) for other in places if other != place]) for place in places}
    return [
        {**one, "spec": {**one["spec"], "model": short.get(str(one["spec"]["model"]), one["spec"]["model"])}}
        for one in found
    ]


def _tail(place: Path, others: Sequence[Path]) -> str:
    """The end of a path that no other path has."""
    lengths = range(1, len(place.parts))
    n = next(
        (n for n in lengths if all(place.parts[-n:] != other.parts[-n:] for other in others)), len(place.parts) - 1
    )
    return "/".join(place.parts[-n:])


def _setting(summary: SummaryView, name: str) -> str:
    """A setting as text; the device is the one that was used, because `auto` says nothing."""
    value = summary["provenance"].get("device") if name == "device" else summary["spec"].get(name)
    if name == "preset" and summary.get("tuned_on"):
        return f"{_preset(summary)} {TUNED}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={value[key]}" for key in sorted(value))
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _preset(summary: SummaryView) -> str:
    """Presets tuned on the data set they run on share a row: `released/eurosat` on eurosat is `released/own`."""
    name = str(summary["spec"]["preset"])
    return f"{name.rpartition('/')[0]}/own" if summary["tuned_on"] == summary["dataset"]["name"] else name


def _column(summary: SummaryView) -> str:
    spec, data = summary["spec"], summary["dataset"]
    parts = [data["name"], spec.get("corruption"), None if spec.get("order") == "iid" else spec.get("order")]
    return ", ".join(str(part) for part in (*parts, data.get("note")) if part)


def _grouped(runs: list[Run], labels: Callable[[Run], tuple[str, ...]]) -> list[tuple[tuple[str, ...], list[Run]]]:
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(labels(run), []).append(run)
    return sorted(groups.items())


def _row(labels: tuple[str, ...], runs: list[Run], columns: list[str]) -> ResultRow:
    of = [[run for run in runs if run.column == column] for column in columns]
    counts = sorted({len(part) for part in of if part})
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]}–{counts[-1]}"
    return ResultRow(
        labels, seeds, _averaged([_cell(part) for part in of]), any(run.summary["tuned_on"] for run in runs)
    )


def _cell(runs: list[Run]) -> Cell | None:
    if not runs:
        return None
    return Cell(
        100 * fmean(run.metrics["accuracy"] for run in runs),
        fmean(_half(run.metrics["accuracy_ci"]) for run in runs),
        100 * fmean(run.metrics["gain"] for run in runs),
        fmean(_half(run.metrics["gain_ci"]) for run in runs),
    )


def _matched_labels(run: Run, head: tuple[str, ...]) -> tuple[str, ...]:
    """Labels of the row for matched zero-shot, whose answers every run records next to its own."""
    given = {"method": "matched zero-shot", "R": "1", "reducer": "", "preset": "", "options": ""}
    return tuple(given.get(name, run.settings[name]) for name in head)


def _matched_row(labels: tuple[str, ...], runs: list[Run], columns: list[str]) -> ResultRow:
    cells: list[Cell | None] = []
    for column in columns:
        metrics = [run.metrics for run in runs if run.column == column]
        accuracy = [100 * m["zero_shot_accuracy"] for m in metrics]
        cells.append(Cell(fmean(accuracy), fmean(_half(m["zero_shot_ci"]) for m in metrics)) if metrics else None)
    return ResultRow(labels, "", _averaged(cells))


def _half(interval: Sequence[float]) -> float:
    low, high = interval
    return 100 * (high - low) / 2


def _averaged(cells: list[Cell | None]) -> tuple[Cell | None, ...]:
    """The cells and their mean. One gap leaves no mean, because it would not compare with others."""
    if len(cells) < 2:
        return tuple(cells)
    known = [cell for cell in cells if cell is not None]
    if len(known) < len(cells):
        return (*cells, None)
    gains = [cell.gain for cell in known if cell.gain is not None]
    return (*cells, Cell(fmean(cell.accuracy for cell in known), gain=fmean(gains) if gains else None))


def _images(runs: Iterable[Run]) -> str:
    counts = sorted({run.metrics["n"] for run in runs})
    return f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,}–{counts[-1]:,}"


def _adapts(run: Run) -> bool:
    return bool(run.summary["spec"]["method"] == "tca")


def _notes(runs: list[Run], repeated: int, incomplete: Sequence[str]) -> tuple[str, ...]:
    notes = [
        "Accuracy in percent ± half the width of the 95 % interval, mean over seeds; in brackets the gain over matched "
        "zero-shot (same prompts and images, all tokens) in points, with its own interval. Bold: best of its model.",
    ]
    tuned = sorted({run.summary["tuned_on"] for run in runs if run.summary["tuned_on"]})
    if tuned:
        notes.append(f"{TUNED} Settings tuned on test labels, those of {', '.join(tuned)}; never in bold.")
    told = preset_note(sorted({run.summary["spec"]["preset"].partition("/")[0] for run in runs if _adapts(run)}))
    notes += [told] if told else []
    failed = sum(run.metrics["failed"] for run in runs)
    if failed:
        notes.append(f"{failed:,} images could not be read and count nowhere.")
    refused = sum(run.metrics["refused"] for run in runs)
    if refused:
        notes.append(f"{refused:,} adapted answers were not finite; zero-shot's count in their place.")
    if repeated:
        notes.append(f"{repeated} older runs of the same setting, stream and seed are left out.")
    if incomplete:
        notes.append(f"Not finished or not readable, left out: {', '.join(incomplete)}.")
    return tuple(notes)


def result_page(of: ResultTable) -> TablePage:
    """The table in the form that is written."""
    settings = (*of.head, "seeds")
    images = ("images", *("" for _ in of.head), *of.images)
    lines = tuple(_line(of, row) for row in of.rows)
    return TablePage("", (TableGrid("", (*settings, *of.columns), lines, len(settings), images),), of.notes)


def _line(of: ResultTable, row: ResultRow) -> tuple[Text, ...]:
    cells = (_text(cell, of.best(row, i)) for i, cell in enumerate(row.cells))
    return (*map(Text, (*row.labels, row.seeds)), *cells)


def _text(cell: Cell | None, best: bool) -> Text:
    if cell is None:
        return Text("–")
    interval = "" if cell.half is None else f"± {cell.half:.2f}"
    spread = "" if cell.gain_half is None else f" ± {cell.gain_half:.2f}"
    gain = "" if cell.gain is None else f"({cell.gain:+.2f}{spread})"
    return Text(f"{cell.accuracy:.2f}", best, " ".join(filter(None, (interval, gain))))


def run_lines(summaries: Iterable[SummaryView]) -> Iterable[dict[str, Any]]:
    """One line per run with every single number; fractions as in the summaries, not percent."""
    return (dict(_flat(run)) for run in with_short_names(summaries))


_PARTS = ("spec", "dataset", "metrics", "cost")


def _flat(run: SummaryView) -> Iterable[tuple[str, Any]]:
    """Names and single values; an interval becomes two, and lists such as the accuracy over time are left out."""
    yield "key", run["key"]
    yield "tuned_on", run.get("tuned_on")
    for part in _PARTS:
        for name, value in run.get(part, {}).items():
            if name.endswith("_ci") and value is not None:
                yield from zip((f"{part}.{name}.low", f"{part}.{name}.high"), value, strict=True)
            elif isinstance(value, Mapping):
                yield f"{part}.{name}", json.dumps(value, sort_keys=True)
            elif not isinstance(value, (list, tuple)):
                yield f"{part}.{name}", value
