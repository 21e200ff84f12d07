"""Do all runs of a grid file, in processes on this machine or on a Ray cluster; finished runs are skipped."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace
from tqdm import tqdm

from lessmore.cli.common import INTERRUPTED, OK, SOME_FAILED, new_parser, printable, say, say_json
from lessmore.cli.run import line
from lessmore.errors import ConfigError
from lessmore.lab.metrics import trouble
from lessmore.lab.spec import RunSpec, check_packages
from lessmore.lab.sweep import FinishedRun, SweepGrid, read_grid
from lessmore.lab.sweep_local import run_locally
from lessmore.lab.sweep_ray import run_on_ray

EXAMPLES = """examples:
  lessmore sweep grid.yaml --dry-run
  lessmore sweep grid.yaml --output results --processes 2
  lessmore sweep grid.yaml --output results --ray auto

A grid file holds the options of lessmore run; lists give every combination:

  grid:
    model: tiny
    dataset: [eurosat, dtd]
    method: [zeroshot, tca]
    seed: [0, 1, 2]
    root: data
  exclude:
    - {method: zeroshot, seed: [1, 2]}
  cpus: 2
  gpus: 0.5

`grid` may be a list of such mappings. A run that matches an entry of `exclude` in every field is left out. `cpus` is
the number of threads of each run (1), `gpus` its share of GPUs on Ray (0). With --ray, all nodes must see output, data
and models under the same paths; `auto` joins the cluster this machine belongs to, `local` starts one on this machine.

The same command again skips finished runs and continues interrupted ones. If some runs or images fail, the others are
still done, and the command ends with exit code 3 instead of 0.
"""


def parser() -> ArgumentParser:
    """Arguments of `lessmore sweep`."""
    args = new_parser(__doc__, EXAMPLES)
    args.add_argument("grid", type=str, help="the grid file")
    args.add_argument("--output", type=str, default="results", help="directory for the runs, one subdirectory each")
    args.add_argument("--processes", type=int | None, default=None, help="runs at a time; default: what cpus allow")
    args.add_argument("--ray", type=str | None, default=None, help="auto, local, or the address of a Ray cluster")
    args.add_argument("--dry-run", action="store_true", help="only list the runs")
    args.add_argument("--quiet", action="store_true", help="no progress, only failures")
    args.add_argument(
        "--json", action="store_true", help="print each summary as a line of JSON, or with --dry-run specs"
    )
    return args


def run(args: Namespace) -> int:
    """Do the runs; 0, 3 if something failed, 130 if interrupted."""
    grid = read_grid(Path(args.grid))
    if args.dry_run:
        if args.json:
            say_json([asdict(spec) for spec in grid.specs])
        else:
            say("\n".join(describe(spec) for spec in grid.specs))
        return OK
    check_packages(grid.specs)
    failed: list[FinishedRun] = []
    try:
        with closing(_executor(grid, args)) as results:
            _follow(results, len(grid.specs), failed, args)
    except KeyboardInterrupt:
        print("lessmore sweep: interrupted; run the same command to go on", file=sys.stderr)
        return INTERRUPTED
    if failed:
        print(f"lessmore sweep: {len(failed)} of {len(grid.specs)} runs failed", file=sys.stderr)
    return SOME_FAILED if failed else OK


def describe(spec: RunSpec) -> str:
    """A run in one line: data set, model, method, and whatever differs from the defaults."""
    plain = RunSpec(model=spec.model, dataset=spec.dataset, method=spec.method, root=spec.root, workers=spec.workers)
    changed = [f.name for f in fields(spec) if getattr(spec, f.name) != getattr(plain, f.name)]
    return " ".join([spec.dataset, spec.model, spec.method, *(f"{name}={getattr(spec, name)}" for name in changed)])


def _executor(grid: SweepGrid, args: Namespace) -> Any:
    if args.processes is not None and args.processes < 1:
        raise ConfigError(f"--processes must be 1 or more, not {args.processes}")
    if args.ray is not None:
        if args.processes is not None:
            raise ConfigError("--processes and --ray are mutually exclusive; a cluster runs what cpus and gpus allow")
        return run_on_ray(grid.specs, Path(args.output), args.ray, grid.cpus, grid.gpus)
    processes = args.processes or max(1, (os.cpu_count() or 1) // grid.cpus)
    return run_locally(grid.specs, Path(args.output), processes, grid.cpus)


def _follow(results: Iterator[FinishedRun], total: int, failed: list[FinishedRun], args: Namespace) -> None:
    """Show results as they arrive: a line per run, and a bar on a terminal."""
    with tqdm(total=total, unit="run", disable=args.quiet or None) as bar:
        for number, done in enumerate(results, start=1):
            why = done.error or (trouble(done.summary["metrics"]) if done.summary is not None else "")
            if why:
                failed.append(done)
                bar.write(printable(f"lessmore sweep: {describe(done.spec)}: {' '.join(why.split())}"), file=sys.stderr)
            if done.summary is not None and args.json:
                say_json(done.summary, indent=None)
            elif done.summary is not None and not args.quiet:
                bar.write(printable(f"{number}/{total} {line(done.summary)}"))
            bar.set_postfix(failed=len(failed), refresh=False)
            bar.update()
