"""Make the paper's tables and figures with your model and data, set beside the paper's own numbers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from lessmore.cli.common import INTERRUPTED, OK, SOME_FAILED, add_calibrate, add_engine, new_parser, say
from lessmore.cli.reproduce_runs import get_runs, output_of, request_of
from lessmore.cli.verify import verify
from lessmore.config import list_presets
from lessmore.errors import ConfigError
from lessmore.lab.metrics import trouble
from lessmore.lab.spec import NAMED
from lessmore.paper.compare import compare
from lessmore.paper.drawn import draw_figures
from lessmore.paper.dryrun import dry_run
from lessmore.paper.figures import FIGURES
from lessmore.paper.figures.kinds_plot import draw_kinds
from lessmore.paper.kinds import of_kinds
from lessmore.paper.measured import measured_cells
from lessmore.paper.pace import measure_pace, read_pace, write_pace
from lessmore.paper.plan import (
    DatasetCache,
    TablePlan,
    check_rows,
    distinct_runs,
    plan_table,
    run_identity,
)
from lessmore.paper.stored import FORMATS, check_formats, read_table, save_table
from lessmore.paper.tables import TABLES, TableSpec, find_table
from lessmore.paper.verify import VERIFY, VERIFY_TITLE

EXAMPLES = """examples:
  lessmore reproduce --list
  lessmore reproduce all --dry-run
  lessmore reproduce cross-dataset --model openai/clip-vit-base-patch16 --root data
  lessmore reproduce budget beta --model my-model --root data --dataset eurosat dtd --corruption none contrast:2
  lessmore reproduce cross-dataset --model my-model --root data --rows TPT "TCA*" --limit 500
  lessmore reproduce --from reproduce --format markdown
  lessmore reproduce verify --model openai/clip-vit-base-patch16 --root data --output verified

verify runs the headline cells (zero-shot, TDA, EViT, TCA), says of each whether the paper's number lies in its
interval, and writes one page to send in, OUTPUT/verify.html.

Columns are those of the paper's data sets that are present, or those of --dataset, each under every --corruption. Runs
are kept in OUTPUT/runs and shared by the tables; the same command again skips finished runs. Every table is written as
NAME.json, which holds everything, and in the formats asked for; --from rewrites the formats from the JSON alone.
--collect makes the tables from finished runs only, including those copied from another machine.

If some runs fail, the tables are made from the others and the command ends with exit code 3 instead of 0.
"""


def parser() -> ArgumentParser:
    """Arguments of `lessmore reproduce`."""
    args = new_parser(__doc__, EXAMPLES)
    args.add_argument("names", type=str, nargs="*", help="tables and figures, or all; --list names them")
    args.add_argument("--list", action="store_true", help="list tables and figures")
    args.add_argument("--model", type=str, nargs="+", default=[], help="as for lessmore run; several get a folder each")
    args.add_argument("--dataset", type=str, nargs="+", default=[], help="data sets in place of the paper's")
    args.add_argument("--corruption", type=str, nargs="+", default=[], help="none contrast:2; by default the table's")
    args.add_argument("--root", type=str | None, default=None, help="the folder that holds the data sets")
    args.add_argument(
        "--output", type=str | None, default=None, help="directory of tables and runs; default: reproduce"
    )
    args.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds of the order")
    args.add_argument("--limit", type=int | float | None, default=None, help="images, or a fraction of them")
    args.add_argument("--order", type=str, nargs="+", default=[], help="as for lessmore run; by default the table's")
    args.add_argument("--rows", type=str, nargs="+", default=[], help="only these rows, by name or pattern")
    args.add_argument("--preset", type=str, default="fixed", help=", ".join(p for p in list_presets() if "/" not in p))
    args.add_argument("--templates", type=str | None, default=None, help="default: the data set's")
    args.add_argument("--precision", "--dtype", type=str, default="float32", help=", ".join(NAMED))
    add_engine(args)
    add_calibrate(args)
    args.add_argument("--jobs", type=int, default=1, help="runs at a time, each in a process of its own")
    args.add_argument("--ray", type=str | None, default=None, help="in place of --jobs: auto, local, or a Ray address")
    args.add_argument("--dry-run", action="store_true", help="list the runs and estimate how long they take")
    args.add_argument("--collect", action="store_true", help="run nothing; make the tables from finished runs")
    args.add_argument(
        "--from", type=str | None, default=None, help="directory of JSON tables to write in other formats"
    )
    args.add_argument("--format", type=str, nargs="+", default=None, help="markdown, csv, latex, html; default: all")
    args.add_argument("--quiet", action="store_true", help="no progress, only failures")
    return args


def run(args: Namespace) -> int:
    """Make the tables and figures asked for; 0, 3 if something failed, 130 if interrupted."""
    formats = list(FORMATS) if args.format is None else args.format
    check_formats(formats)
    if args.list:
        known = {**_known(), VERIFY: f"page: {VERIFY_TITLE}"}
        print("\n".join(f"{name}\t{title}" for name, title in known.items()))
        return OK
    if args["from"] is not None:
        return _rewrite(Path(args["from"]), args, formats)
    verifies = VERIFY in args.names
    if verifies and len(args.names) > 1:
        raise ConfigError("verify makes one page of its own; ask for tables and figures in another command")
    tables, drawings = ([], []) if verifies else _named(args.names)
    _check(args, tables)
    if not args.model and not args.dry_run:
        raise ConfigError("there is no model; give one with --model, as for lessmore run")
    try:
        if verifies:
            return max(verify(one, formats) for one in _by_model(args))
        return max(_with_model(one, tables, drawings, formats) for one in _by_model(args))
    except KeyboardInterrupt:
        print("lessmore reproduce: interrupted; run the same command to go on", file=sys.stderr)
        return INTERRUPTED


def _by_model(args: Namespace) -> list[Namespace]:
    """The same wishes for every model; several get a folder each."""
    if len(args.model) < 2:
        return [args]
    names = [Path(model).name for model in args.model]
    if len(set(names)) < len(names):
        raise ConfigError(
            f"--model names {' and '.join(names)}, which need folders of different names; give them singly"
        )
    places = [str(output_of(args) / name) for name in names]
    return [
        Namespace(**{**vars(args), "model": [model], "output": place})
        for model, place in zip(args.model, places, strict=True)
    ]


def _with_model(args: Namespace, tables: list[TableSpec], drawings: list[str], formats: Sequence[str]) -> int:
    """Make what is asked for with one model."""
    if args.dry_run:
        print("\n".join(dry_run(tables, request_of(args), output_of(args) / "runs", args.jobs)))
        print("\n".join(f"figure {name}: {FIGURES[name].images} images" for name in drawings))
        return OK
    codes = [_tables(tables, args, formats)] if tables else []
    codes += [_figures(drawings, args)] if drawings else []
    return max(codes)


def _known() -> dict[str, str]:
    """Names of tables and figures, with what they show."""
    tables = {name: f"table: {table.title}" for name, table in TABLES.items()}
    return tables | {name: f"figure: {figure.title}" for name, figure in FIGURES.items()}


def _named(names: Sequence[str]) -> tuple[list[TableSpec], list[str]]:
    """Tables and names of figures, each once."""
    if not names:
        raise ConfigError("name tables or figures, or all; lessmore reproduce --list names them")
    wanted = list(dict.fromkeys(known for name in names for known in (_known() if name == "all" else [name])))
    return [find_table(name, tuple(FIGURES)) for name in wanted if name not in FIGURES], [
        n for n in wanted if n in FIGURES
    ]


def _check(args: Namespace, tables: Sequence[TableSpec]) -> None:
    if args.ray is not None and args.jobs != 1:
        raise ConfigError("--jobs and --ray are mutually exclusive; a cluster runs what its processors allow")
    if args.jobs < 1:
        raise ConfigError(f"--jobs must be 1 or more, not {args.jobs}")
    if len(set(args.seeds)) < len(args.seeds):
        raise ConfigError("--seeds names a seed twice; name each once")
    if tables:
        check_rows(tables, args.rows)


def _rewrite(folder: Path, args: Namespace, formats: Sequence[str]) -> int:
    """Write tables that exist in other formats: into --output, or printed."""
    for value in read_table(folder):
        if args.output is None:
            print("\n".join(FORMATS[name][1](value) for name in formats), end="")
        else:
            print("\n".join(str(file) for file in save_table(value, Path(args.output), formats)))
    return OK


def _tables(tables: Sequence[TableSpec], args: Namespace, formats: Sequence[str]) -> int:
    request, folder = request_of(args), output_of(args)
    datasets = DatasetCache(request.root)
    plans = [one for table in tables if (one := plan_table(table, request, datasets)).rows]
    missing = {name.partition("/")[0]: why for one in plans for name, why in one.missing.items()}
    for why in missing.values():
        say(f"lessmore reproduce: left out: {why}", error=True)
    if not any(one.columns for one in plans):
        raise ConfigError("none of the data sets is there; give --root, or others with --dataset")
    runs = distinct_runs(plans)
    found, failed = get_runs(runs, args)
    for one in plans:
        if one.columns:
            own = {run_identity(spec) for specs in one.cells.values() for spec in specs}
            holes = [why for key, why in failed.items() if key in own]
            value = compare(one, measured_cells(one, found, folder / "runs"), request, holes)
            if of_kinds(value):
                value |= {"pace": _pace(one, datasets, folder, args.collect)}
                _draw(value, folder)
            print(f"{one.table.name}: {', '.join(map(str, save_table(value, folder, formats)))}", flush=True)
    unread = any(trouble(summary["metrics"]) for summary in found.values())
    return SOME_FAILED if failed or unread else OK


def _draw(value: dict[str, Any], folder: Path) -> None:
    """The table's plots, where there is something to draw them with."""
    try:
        draw_kinds(value, folder)
    except ConfigError as error:
        print(f"lessmore reproduce: {value['table']}: no plots: {error}", file=sys.stderr)


def _pace(plan: TablePlan, datasets: DatasetCache, folder: Path, collected: bool) -> dict[str, dict[str, float]]:
    """Times and memory of the rows; measured rows are kept beside the table, and those are all that --collect takes."""
    file = folder / f"{plan.table.name}-pace.json"
    known = read_pace(file) if file.exists() else {}
    specs = {row.name: plan.cells[i, 0][0] for i, row in enumerate(plan.rows) if (i, 0) in plan.cells}
    dataset = datasets(plan.columns[0].dataset)
    if not collected and not isinstance(dataset, str) and specs.keys() - known.keys():
        known |= measure_pace(specs, dataset, plan.table.base)
        write_pace(file, known)
    return {name: known[name] for name in specs if name in known}


def _figures(names: Sequence[str], args: Namespace) -> int:
    """Draw the figures of every stream asked for; one whose data are missing is left out."""
    failed = False
    for name in names:
        for drawn in draw_figures(name, request_of(args), output_of(args)):
            failed |= isinstance(drawn, str)
            if isinstance(drawn, str):
                say(f"lessmore reproduce: {name} left out: {drawn}", error=True)
            else:
                print(f"{name}: {', '.join(map(str, drawn))}", flush=True)
    return SOME_FAILED if failed else OK
