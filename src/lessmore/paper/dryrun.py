"""What there is to do, in words: the runs of every table, their images and costs, and how long they would take here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from lessmore.core.vit import ViT
from lessmore.lab.job import open_model
from lessmore.lab.spec import RunSpec
from lessmore.lab.weightless import blank_model
from lessmore.models.shapes import SHAPES
from lessmore.models.vlm import VLM
from lessmore.paper.estimate import Cost, Throughput, estimate_costs, measure_rates
from lessmore.paper.plan import (
    DatasetCache,
    ReproductionRequest,
    TablePlan,
    distinct_runs,
    finished_runs,
    plan_table,
    run_identity,
)
from lessmore.paper.tables import TableSpec

_TOWERS = {
    "CLIP ViT-L/14": "ViT-L-14",
    "SigLIP ViT-B/16": "ViT-B-16-SigLIP",
    "SigLIP 2 ViT-B/16": "ViT-B-16-SigLIP2",
}


def tower_of(table: TableSpec) -> str:
    """The shape of the paper's model, for a dry run without a model."""
    return _TOWERS.get(table.paper.model if table.paper else "", "ViT-B-16")


def dry_run(tables: Sequence[TableSpec], request: ReproductionRequest, runs_at: Path, jobs: int) -> Iterator[str]:
    """Describe the work of some tables.

    Args:
        tables: The tables.
        request: What the user asked for. Without a model it means the paper's, whose shapes are enough.
        runs_at: Folder of runs that may be done already.
        jobs: Runs at a time, for the estimate.

    Yields:
        Lines to print.
    """
    datasets = DatasetCache(request.root)
    missing: dict[str, str] = {}
    models = [request.model or tower_of(table) for table in tables]
    for model in dict.fromkeys(models):
        group = [table for table, wanted in zip(tables, models, strict=True) if wanted == model]
        own = replace(request, model=model)
        plans = [plan_table(table, own, datasets, absent=True) for table in group]
        yield from _of_model(plans, own, datasets, runs_at, jobs)
        for one in plans:
            missing |= one.missing
    if missing:
        yield "Not there, so that their columns will be left out:"
        yield from (f"  {reason}" for reason in {name.partition("/")[0]: why for name, why in missing.items()}.values())


def _of_model(
    plans: Sequence[TablePlan], request: ReproductionRequest, datasets: DatasetCache, runs_at: Path, jobs: int
) -> Iterator[str]:
    """The tables of one model, then all of them together; a run of several tables counts in the first."""
    tower, vlm = _open(request)
    threads = max(1, torch.get_num_threads() // jobs)
    pace, runs = measure_rates(tower, threads), distinct_runs(plans)
    done = finished_runs(runs_at).keys() & runs.keys()
    costs, new = estimate_costs(runs, vlm, datasets), set(runs) - done
    model = Path(request.model).name
    for one in plans:
        yield f"{one.table.name}: {one.table.title}, with {model}"
        rows = [[run_identity(spec) for specs in _of_row(one, i) for spec in specs] for i in range(len(one.rows))]
        for row, keys in zip(one.rows, rows, strict=True):
            yield f"  {row.name:<36}{_row_text([costs[key] for key in keys])}"
        own = {key for keys in rows for key in keys}
        left = _left([costs[key] for key in own & new], pace, jobs)
        yield f"  {len(own)} runs, {len(own - new)} of them done or in tables above; {left}"
        new -= own
    todo = [costs[key] for key in runs if key not in done]
    ready = [cost for cost in todo if cost.available]
    yield f"{model}, all: {len(runs)} runs, {len(done)} done; {_left(todo, pace, jobs)}"
    yield f"  {len(ready)} of them have their data; {_left(ready, pace, jobs)}"
    yield _how(pace, threads)


def _of_row(of: TablePlan, row: int) -> list[tuple[RunSpec, ...]]:
    return [specs for (i, _), specs in of.cells.items() if i == row]


def _open(request: ReproductionRequest) -> tuple[ViT, VLM]:
    """A tower for timing and a model for counting; a shape alone has no text tower that could run."""
    if request.model in SHAPES:
        return ViT(SHAPES[request.model][0]).eval().requires_grad_(False), blank_model(request.model)
    common = {name: request.common[name] for name in ("device", "precision") if name in request.common}
    vlm = open_model(RunSpec(request.model, "", **common))
    return vlm.vision, vlm


def _row_text(costs: Sequence[Cost]) -> str:
    if not costs:
        return "nothing to run on these data"
    gmacs = [cost.gmacs for cost in costs]
    cost = f"{min(gmacs):.2f}" if max(gmacs) - min(gmacs) < 0.01 else f"{min(gmacs):.2f}–{max(gmacs):.2f}"
    return f"{len(costs):>4} runs {sum(c.images for c in costs):>12,} images {cost:>14} GMACs per image"


def _left(costs: Sequence[Cost], pace: Throughput, jobs: int) -> str:
    seconds = sum(cost.seconds(pace) for cost in costs) / jobs
    return f"{sum(c.images for c in costs):,} images to answer, about {duration(seconds)}"


def duration(seconds: float) -> str:
    """Seconds in the unit that fits."""
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"


def _how(pace: Throughput, threads: int) -> str:
    return (
        f"Measured here on {threads} thread{'s' * (threads > 1)}: {pace.plain_ms:.1f} ms for one plain image, "
        f"{1e3 * pace.answer:.1f} ms for an answer from a stored encoding. Other encodings are scaled by their "
        "multiply-accumulates; those that runs share count once; decoding is not counted."
    )
