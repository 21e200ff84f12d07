"""A table of ours beside the paper's, as one JSON value from which every other form is made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from statistics import fmean
from typing import Any

from lessmore.data.registry import spec_of
from lessmore.lab.spec import RunSpec
from lessmore.paper.measured import PaperCell, estimates, paired_with
from lessmore.paper.plan import Column, ReproductionRequest, TablePlan
from lessmore.paper.printed import PaperTable
from lessmore.paper.tables import TableRow

SCHEMA = "lessmore.table/1"


def compare(
    plan: TablePlan, cells: Mapping[tuple[int, int], PaperCell], request: ReproductionRequest, failed: Sequence[str]
) -> dict[str, Any]:
    """The whole table as JSON. It contains no path of this machine.

    Args:
        plan: Its rows, columns and runs.
        cells: Results by (row, column); cells without one are absent.
        request: What the user asked for.
        failed: Runs that failed, each with the reason, to be listed.
    """
    table, printed = plan.table, plan.table.paper
    averages = _averages(plan.columns, printed)
    return {
        "schema": SCHEMA,
        "table": table.name,
        "title": table.title,
        "note": table.note,
        "base": table.base,
        "paper": None if printed is None else _printed(printed),
        "model": Path(request.model).name,
        "asked": _asked(request),
        "columns": [
            _column(column, [c for (_, j), c in cells.items() if j == n]) for n, column in enumerate(plan.columns)
        ],
        "averages": averages,
        "rows": [_row(row, i, plan, cells, averages) for i, row in enumerate(plan.rows)],
        "left_out": {row.name: row.needs for row in plan.left_out},
        "missing": {name: f"get {spec_of(name).source}" for name in plan.missing},
        "failed": list(failed),
        "provenance": _provenance(list(cells.values())),
    }


def _asked(request: ReproductionRequest) -> dict[str, Any]:
    """The parts of the user's request that the table does not show elsewhere."""
    kept = ("limit", "order", "preset", "templates", "precision")
    common = {name: request.common[name] for name in kept if request.common.get(name) is not None}
    if request.orders:
        common["order"] = " ".join(request.orders)
    return {"seeds": list(request.seeds), "rows": list(request.rows), "own_data": bool(request.datasets), **common}


def _averages(columns: Sequence[Column], printed: PaperTable | None) -> dict[str, list[int]]:
    """The averages and the numbers of their columns: the paper's where they fit, else clean and corrupted."""
    if len({column.order for column in columns}) > 1:
        return _by_kind(columns)
    clean = [j for j, column in enumerate(columns) if column.corruption is None]
    bad = [j for j, column in enumerate(columns) if column.corruption is not None]
    if bad:
        named = {"clean average": clean, "corrupted average": bad}
        return {name: part for name, part in named.items() if len(part) > 1}
    found = {"average": clean} if len(clean) > 1 else {}
    for name, over in printed.averages.items() if printed else ():
        part = [j for j in clean if columns[j].dataset in over]
        if len(part) == len(over):
            found[name] = part
    return found


def _by_kind(columns: Sequence[Column]) -> dict[str, list[int]]:
    """Averages of the kinds of streams, and of all of them."""
    kinds: dict[str, list[int]] = {}
    for j, column in enumerate(columns):
        more = "" if column.order != "iid" else ", clean" if column.corruption is None else ", corrupted"
        kinds.setdefault(f"{column.order}{more}", []).append(j)
    return {**kinds, "all": list(range(len(columns)))}


def _column(column: Column, cells: Sequence[PaperCell]) -> dict[str, Any]:
    name = column.dataset.rpartition(":")[2]
    if not cells:
        return {"dataset": Path(name).name if ":" in column.dataset else name, "corruption": column.corruption}
    first = cells[0].summaries[0]
    return {
        "dataset": first["dataset"]["name"],
        "corruption": column.corruption,
        "order": first["spec"]["order"],
        "classes": first["dataset"]["classes"],
        "note": first["dataset"]["note"],
        "fingerprint": first["dataset"]["fingerprint"],
        "images": len(cells[0].values.images),
        "zero_shot": estimates(cells[:1])["zero_shot"],
    }


def _row(
    row: TableRow,
    i: int,
    plan: TablePlan,
    cells: Mapping[tuple[int, int], PaperCell],
    averages: Mapping[str, Sequence[int]],
) -> dict[str, Any]:
    own = [cells.get((i, j)) for j in range(len(plan.columns))]
    others = _against_base(row, own, plan, cells)
    printed = plan.table.paper
    paper_row = None if printed is None else printed.rows.get(row.in_paper)
    return {
        "name": row.name,
        "tuned": row.tuned,
        "settings": _settings(row, next((plan.cells[i, j][0] for j, cell in enumerate(own) if cell), None)),
        "cells": [
            {**_cell(own[j], column, row, printed), **_change([others[j]])} for j, column in enumerate(plan.columns)
        ],
        "averages": {
            name: {**_average([own[j] for j in part], name, plan, row), **_change([others[j] for j in part])}
            for name, part in averages.items()
        },
        **_worst(own),
        "gmacs": _gmacs([cell for cell in own if cell is not None]),
        "paper_row": None if paper_row is None else paper_row.name,
        "paper_gmacs": None if paper_row is None else paper_row.gflops,
    }


def _worst(own: Sequence[PaperCell | None]) -> dict[str, Any]:
    """The column with the least gain, where there are several and every one is measured."""
    known = [cell for cell in own if cell is not None]
    if len(known) < max(2, len(own)):
        return {}
    gains = [estimates([cell])["gain"] for cell in known]
    column = min(range(len(gains)), key=lambda j: gains[j][0])
    return {"worst": {"column": column, "gain": gains[column]}}


def _against_base(
    row: TableRow, own: Sequence[PaperCell | None], plan: TablePlan, cells: Mapping[tuple[int, int], PaperCell]
) -> list[PaperCell | None]:
    """Every cell of a row against the one of the table's base; the base itself has nothing to compare with."""
    base = next((i for i, other in enumerate(plan.rows) if other.name == plan.table.base != row.name), -1)
    return [paired_with(cell, cells.get((base, j))) for j, cell in enumerate(own)]


def _change(cells: Sequence[PaperCell | None]) -> dict[str, Any]:
    """The paired difference to the base, over all cells or not at all."""
    known = [cell for cell in cells if cell is not None]
    return {"change": estimates(known)["gain"]} if len(known) == len(cells) else {}


def _settings(row: TableRow, spec: RunSpec | None) -> dict[str, Any] | None:
    """The settings of a row and all that follows from them. A tuned row differs between data sets: its request only."""
    if spec is None:
        return None
    chosen = spec.settings()
    asked = {"method": spec.method, "reducer": spec.reducer, "preset": spec.preset, "R": chosen.condensation.R}
    if row.tuned:
        return {**asked, "options": {}, **row.run}
    resolved = {"condensation": asdict(chosen.condensation), "adaptation": asdict(chosen.adaptation)}
    return {**asked, "options": dict(spec.options), **resolved}


def _cell(cell: PaperCell | None, column: Column, row: TableRow, printed: PaperTable | None) -> dict[str, Any]:
    """Our numbers, if there are any, and the paper's, which are for clean images."""
    paper = printed.accuracy(row.in_paper, column.dataset) if printed and column.corruption is None else None
    beside = {
        "paper": paper,
        "paper_marks": printed.marks_of(row.in_paper, column.dataset) if printed and paper else [],
    }
    if cell is None:
        return beside
    metrics = [summary["metrics"] for summary in cell.summaries]
    return {
        **estimates([cell]),
        "images": len(cell.values.images),
        "failed": max(m["failed"] for m in metrics),
        "seeds": [summary["spec"]["seed"] for summary in cell.summaries],
        "accuracy_by_seed": [round(100 * m["accuracy"], 4) for m in metrics],
        "gain_by_seed": [round(100 * m["gain"], 4) for m in metrics],
        "ece": round(fmean(m["ece"] for m in metrics), 4),
        "zero_shot_ece": round(fmean(m["zero_shot_ece"] for m in metrics), 4),
        "tokens_kept": round(fmean(m["tokens_kept"] for m in metrics), 2),
        "tuned_on": cell.summaries[0]["tuned_on"],
        "gmacs": _gmacs([cell]),
        **beside,
    }


def _average(cells: Sequence[PaperCell | None], name: str, plan: TablePlan, row: TableRow) -> dict[str, Any]:
    """Over all columns of the average or none, because other means would not compare."""
    printed = plan.table.paper
    over = printed.averages.get(name, ()) if printed else ()
    fits = [c.dataset for c in plan.columns if c.corruption is None and c.dataset in over] == list(over) and bool(over)
    paper = printed.accuracy(row.in_paper, name) if printed and fits else None
    marks = printed.marks_of(row.in_paper, name) if printed and paper else []
    known = [cell for cell in cells if cell is not None]
    found = estimates(known) if len(known) == len(cells) else {}
    return {**found, "paper": paper, "paper_marks": marks}


def _gmacs(cells: Sequence[PaperCell]) -> dict[str, float] | None:
    """Mean over the cells of what one image costs; the correction's part depends on the number of classes."""
    if not cells:
        return None
    costs = [cell.summaries[0]["cost"] for cell in cells]
    names = {"paper": "gmacs_paper", "matmul": "gmacs_matmul", "plain_paper": "plain_gmacs_paper"}
    names["plain_matmul"] = "plain_gmacs_matmul"
    return {short: round(fmean(cost[name] for cost in costs), 4) for short, name in names.items()}


def _printed(printed: PaperTable) -> dict[str, Any]:
    """Where the paper has the table, and its rows and remarks that no row of ours is compared with."""
    return {
        "source": printed.source,
        "place": printed.place,
        "caption": printed.caption,
        "model": printed.model,
        "columns": list(printed.columns),
        "rows": {
            name: {
                "values": {column: printed.accuracy(name, column) for column in (*printed.columns, *printed.averages)},
                "gmacs": row.gflops,
            }
            for name, row in printed.rows.items()
        },
        "marks": [mark._asdict() for mark in printed.marks],
    }


def _provenance(cells: Sequence[PaperCell]) -> dict[str, Any]:
    """Versions, hardware and weights; lists where runs of several machines came together."""
    runs = [summary["provenance"] for cell in cells for summary in cell.summaries]
    names = ("versions", "git", "hardware", "weights", "device", "dtype")
    seen = {name: _unique(run.get(name) for run in runs) for name in names}
    one = {name: values[0] if len(values) == 1 else values for name, values in seen.items()}
    return {**one, "runs": len(runs), "made": datetime.now(timezone.utc).isoformat(timespec="seconds")}


def _unique(values: Iterable[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found
