"""`lessmore reproduce verify`: plan, run, and write the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jsonargparse import Namespace

from lessmore.cli.common import OK, SOME_FAILED, say
from lessmore.cli.reproduce_runs import get_runs, output_of, request_of
from lessmore.errors import ConfigError
from lessmore.lab.metrics import trouble
from lessmore.paper.dryrun import dry_run
from lessmore.paper.measured import measured_cells
from lessmore.paper.plan import DatasetCache, ReproductionRequest, TablePlan, check_rows, distinct_runs, plan_table
from lessmore.paper.stored import save_table
from lessmore.paper.tables import TableSpec
from lessmore.paper.verify import look_at_model, tables_to_verify, verification


def verify(args: Namespace, formats: Sequence[str]) -> int:
    """Verify one model, or with --dry-run say what that takes.

    Args:
        args: The options of `lessmore reproduce`, with one model or none.
        formats: What is written besides JSON, names of `FORMATS`.

    Returns:
        0; 3 if a run failed or images could not be read. A verdict is no failure.

    Raises:
        ConfigError: None of the data sets is there, or the paper has no number for what was asked.
        ModelError: The model cannot be read.
    """
    request, runs_at = request_of(args), output_of(args) / "runs"
    model = look_at_model(request)
    tables = tables_to_verify(model, request)
    check_rows(tables, request.rows)
    if args.dry_run:
        print("\n".join(dry_run(tables, replace(request, datasets=()), runs_at, args.jobs)))
        return OK
    plans = _plans(tables, request)
    if not any(one.columns for one in plans):
        raise ConfigError("none of the paper's data sets is there; give their folder with --root")
    found, failed = get_runs(distinct_runs(plans), args)
    parts = [(one, measured_cells(one, found, runs_at)) for one in plans]
    value = verification(model, parts, request, list(failed.values()))
    print(f"verify: {', '.join(map(str, save_table(value, output_of(args), formats)))}", flush=True)
    return SOME_FAILED if failed or any(trouble(one["metrics"]) for one in found.values()) else OK


def _plans(tables: Sequence[TableSpec], request: ReproductionRequest) -> list[TablePlan]:
    """What to run; data sets that were named must be there, others are left out with a word."""
    datasets, every = DatasetCache(request.root), replace(request, datasets=())
    plans = [one for table in tables if (one := plan_table(table, every, datasets)).rows]
    missing = {name: why for one in plans for name, why in one.missing.items()}
    if missing and request.datasets:
        raise ConfigError(next(iter(missing.values())))
    for why in missing.values():
        say(f"lessmore reproduce: left out: {why}", error=True)
    return plans
