"""From tables to runs: which runs are needed, on which data, and which of them two tables share."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from lessmore.data.dataset import Dataset
from lessmore.data.orders import chooses_classes
from lessmore.data.registry import expand_names, is_direct, open_dataset, spec_of
from lessmore.errors import ConfigError, ImageError, LessmoreError, unknown
from lessmore.lab.spec import RunSpec
from lessmore.lab.store import read_header, read_summary
from lessmore.lab.sweep import spread_apart
from lessmore.methods import method_options
from lessmore.paper.tables import TableRow, TableSpec

_EPISODIC = ("zeroshot", "mta", "zero", "tpt", "c-tpt")
"""Methods that treat every image alone: one order is enough."""


@dataclass(frozen=True)
class ReproductionRequest:
    """What the user asks for, whatever the table."""

    model: str
    datasets: tuple[str, ...] = ()
    """Replace the paper's; groups and patterns are allowed."""
    corruptions: tuple[str | None, ...] = ()
    """Replace the table's."""
    orders: tuple[str, ...] = ()
    """Replace the table's."""
    seeds: tuple[int, ...] = (0, 1, 2)
    rows: tuple[str, ...] = ()
    """Patterns of the rows to run; empty means all that need nothing special."""
    common: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of every `RunSpec`: root, limit, order, device and so on."""

    @property
    def root(self) -> Path | None:
        """Folder of the data sets."""
        root = self.common.get("root")
        return None if root is None else Path(root)


@dataclass(frozen=True)
class Column:
    """One stream of images."""

    dataset: str
    corruption: str | None
    order: str = "iid"


@dataclass(frozen=True)
class TablePlan:
    """A table with everything it needs."""

    table: TableSpec
    columns: tuple[Column, ...]
    """Those whose data exist, and others if they were asked for."""
    missing: Mapping[str, str]
    """Missing data sets, and how to get them."""
    rows: tuple[TableRow, ...]
    left_out: tuple[TableRow, ...]
    """Rows that need more than the others and were not asked for by name."""
    cells: Mapping[tuple[int, int], tuple[RunSpec, ...]]
    """Runs of every (row, column), one per seed; a pair is absent where there is nothing to run."""


class DatasetCache:
    """Data sets by name, each opened once; for a missing one the reason is kept."""

    def __init__(self, root: Path | None) -> None:
        self._root = root
        self._found: dict[str, Dataset | str] = {}

    def __call__(self, name: str) -> Dataset | str:
        """The data set, or why it cannot be used."""
        if name not in self._found:
            try:
                self._found[name] = _readable(open_dataset(name, self._root))
            except (ConfigError, ImageError) as error:
                self._found[name] = _with_source(name, str(error))
        return self._found[name]


def _readable(dataset: Dataset) -> Dataset:
    """The data set, if its first or its last image can be read; a list of images alone is no data set."""
    try:
        dataset.image(0)
    except ImageError:
        dataset.image(len(dataset) - 1)
    return dataset


def _with_source(name: str, reason: str) -> str:
    """The reason, with how to get the data set if that is known and not said."""
    source = "" if is_direct(name) else spec_of(name).source
    return reason if source in reason else f"{reason}; get {source}"


def plan_table(
    table: TableSpec, request: ReproductionRequest, datasets: DatasetCache, absent: bool = False
) -> TablePlan:
    """The rows, columns and runs of a table.

    Args:
        table: The table.
        request: What the user asked for. Data sets that it names must exist; those of the paper may be missing.
        datasets: Opens data sets.
        absent: Also plan columns for missing data sets, to see what they would cost.

    Raises:
        ConfigError: A data set that the user named cannot be opened.
    """
    names = expand_names(request.datasets or table.datasets)
    missing = {name: reason for name in names if isinstance(reason := datasets(name), str)}
    if missing and request.datasets:
        raise ConfigError(next(iter(missing.values())))
    there = [name for name in names if absent or name not in missing]
    orders = request.orders or table.orders or (request.common.get("order", "iid"),)
    corruptions = request.corruptions or table.corruptions
    columns = tuple(Column(name, bad, order) for order in orders for bad in corruptions for name in there)
    rows, left_out = _chosen(table, request.rows)
    cells = {}
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            specs = _specs(row, column, request)
            if specs:
                cells[i, j] = specs
    return TablePlan(table, columns, missing, rows, left_out, cells)


def _chosen(table: TableSpec, patterns: Sequence[str]) -> tuple[tuple[TableRow, ...], tuple[TableRow, ...]]:
    """Rows to run, and rows left out because of what they need."""
    if not patterns:
        return tuple(r for r in table.rows if not r.needs), tuple(r for r in table.rows if r.needs)
    return tuple(row for row in table.rows if any(fits(row, pattern) for pattern in patterns)), ()


def fits(row: TableRow, pattern: str) -> bool:
    """Whether a pattern matches a row's name, ignoring case.

    Args:
        row: The row.
        pattern: Such as `TCA*`.
    """
    return fnmatchcase(row.name.lower(), pattern.lower())


def check_rows(tables: Iterable[TableSpec], patterns: Sequence[str]) -> None:
    """Refuse a pattern that matches no row.

    Args:
        tables: Whose rows count.
        patterns: As in `fits`.

    Raises:
        ConfigError: A pattern matches none.
    """
    rows = [row for table in tables for row in table.rows]
    for pattern in patterns:
        if not any(fits(row, pattern) for row in rows):
            raise ConfigError(unknown("row", pattern, {row.name for row in rows}))


def _specs(row: TableRow, column: Column, request: ReproductionRequest) -> tuple[RunSpec, ...]:
    fields = row.on(column.dataset)
    if fields is None:
        return ()
    once = fields["method"] in _EPISODIC and not chooses_classes(column.order)
    seeds = request.seeds[:1] if once else request.seeds
    where = {"model": request.model, "dataset": column.dataset, "corruption": column.corruption, "order": column.order}
    return tuple(RunSpec(**{**request.common, **where, **fields, "seed": seed}) for seed in seeds)


def run_identity(spec: RunSpec) -> Hashable:
    """Equal for runs with the same result, however their settings were written."""
    settings, own = spec.settings(), method_options(spec.method, spec.own_options())
    data = spec.dataset if is_direct(spec.dataset) else expand_names([spec.dataset])[0]
    model = Path(spec.model).name  # the same model may lie elsewhere on another machine
    where = (model, data, spec.templates, spec.order, spec.corruption, spec.seed, spec.limit, spec.precision)
    return (*where, spec.method, own, settings.condensation, settings.adaptation)


def distinct_runs(plans: Iterable[TablePlan]) -> dict[Hashable, RunSpec]:
    """Every run of the plans once, by identity, ordered so that runs profit from each other's encodings."""
    runs: dict[Hashable, RunSpec] = {}
    for one in plans:
        for specs in one.cells.values():
            for spec in specs:
                runs.setdefault(run_identity(spec), spec)
    return {run_identity(spec): spec for spec in spread_apart(list(runs.values()))}


def finished_runs(folder: Path) -> dict[Hashable, Path]:
    """Folders of finished runs, by the identity of their request; only `run_one` looks at weights too.

    Of several runs with the same request, the last one counts.
    """
    found: dict[Hashable, Path] = {}
    # Oldest first, so that later runs replace earlier ones.
    for file in sorted(folder.glob("*/summary.json"), key=lambda file: file.stat().st_mtime_ns):
        try:
            summary = read_summary(file.parent)
            if summary is not None:
                found[run_identity(RunSpec(**read_header(file.parent, summary["key"])["spec"]))] = file.parent
        except (LessmoreError, TypeError):  # not one of ours, or of another version
            continue
    return found
