"""The runs of tables, done or collected for `lessmore reproduce`, and what its options ask for."""

from __future__ import annotations

import sys
from collections.abc import Generator, Hashable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import torch
from jsonargparse import Namespace
from tqdm import tqdm

from lessmore.cli.common import printable
from lessmore.cli.run import line
from lessmore.cli.sweep import describe
from lessmore.data.registry import is_direct
from lessmore.lab.spec import RunSpec
from lessmore.lab.store import read_summary
from lessmore.lab.summary import RunSummary
from lessmore.lab.sweep import FinishedRun, Worker
from lessmore.lab.sweep_local import run_locally
from lessmore.lab.sweep_ray import run_on_ray
from lessmore.paper.plan import ReproductionRequest, finished_runs, run_identity

FoundRuns = dict[Hashable, RunSummary]
FailedRuns = dict[Hashable, str]


def output_of(args: Namespace) -> Path:
    """The folder of tables and runs."""
    return Path(args.output or "reproduce")


def request_of(args: Namespace) -> ReproductionRequest:
    """What the options ask for, whatever the table."""
    names = ("root", "limit", "preset", "templates", "precision", "engine", "calibrate", "device")
    return ReproductionRequest(
        model=next(iter(args.model), ""),
        datasets=tuple(args.dataset),
        corruptions=tuple(None if name == "none" else name for name in args.corruption),
        orders=tuple(args.order),
        seeds=tuple(args.seeds),
        rows=tuple(args.rows),
        common={name: getattr(args, name) for name in names},
    )


def get_runs(runs: Mapping[Hashable, RunSpec], args: Namespace) -> tuple[FoundRuns, FailedRuns]:
    """Do the runs, or with --collect find those that are done.

    Args:
        runs: The runs, by identity.
        args: The options of `lessmore reproduce`.

    Returns:
        Summaries by identity, and the reason for every failure.
    """
    folder = output_of(args) / "runs"
    return (_collected(runs, folder), {}) if args.collect else _follow(runs, folder, args)


def _results(specs: Sequence[RunSpec], folder: Path, args: Namespace) -> Generator[FinishedRun]:
    """The runs as they end; a single job needs no process of its own."""
    if args.ray is not None:
        yield from run_on_ray(specs, folder, args.ray, cpus=1, gpus=float(args.device.startswith("cuda")))
        return
    threads = max(1, torch.get_num_threads() // args.jobs)
    if args.jobs > 1:
        yield from run_locally(specs, folder, args.jobs, threads)
    else:
        yield from map(Worker(folder, threads), specs)


def _follow(runs: Mapping[Hashable, RunSpec], folder: Path, args: Namespace) -> tuple[FoundRuns, FailedRuns]:
    """Do the runs and show results as they arrive: summaries by identity, and the reason for every failure."""
    found: FoundRuns = {}
    failed: FailedRuns = {}
    progress = tqdm(total=len(runs), unit="run", disable=args.quiet or None)
    with closing(_results(list(runs.values()), folder, args)) as results, progress as bar:
        for number, done in enumerate(results, start=1):
            if done.summary is None:
                failed[run_identity(done.spec)] = said = f"{_title(done.spec)}: {' '.join(done.error.split())}"
                bar.write(printable(f"lessmore reproduce: {said}"), file=sys.stderr)
            else:
                found[run_identity(done.spec)] = done.summary
                if not args.quiet:
                    bar.write(printable(f"{number}/{len(runs)} {line(done.summary)}"))
            bar.update()
    return found, failed


def _collected(runs: Mapping[Hashable, RunSpec], folder: Path) -> FoundRuns:
    """Summaries of finished runs, wherever they were done; neither model nor device has to match."""
    done = finished_runs(folder)
    found = {key: summary for key in runs if key in done and (summary := read_summary(done[key])) is not None}
    print(f"{len(found)} of {len(runs)} runs are done", flush=True)
    return found


def _title(spec: RunSpec) -> str:
    """A run in a few words, without the paths of this machine."""
    data = Path(spec.dataset.partition(":")[2]).name if is_direct(spec.dataset) else spec.dataset
    return describe(replace(spec, model=Path(spec.model).name, dataset=data or spec.dataset, root=None))
