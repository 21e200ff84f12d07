"""A sweep on a Ray cluster. Ray repeats a run whose worker or node is lost, and the run resumes from its checkpoint.

The output folder, the data and local models must have the same paths on every node.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lessmore.errors import ConfigError
from lessmore.lab.spec import RunSpec
from lessmore.lab.sweep import RETRIES, FinishedRun, Worker


def run_on_ray(specs: Sequence[RunSpec], output: Path, address: str, cpus: int, gpus: float) -> Iterator[FinishedRun]:
    """Do runs as Ray tasks, and yield the outcome of each as it ends.

    Args:
        specs: The runs.
        output: Where runs go.
        address: `auto` for the cluster this machine belongs to, `local` for one of this machine alone that lasts as
            long as the sweep, or any address `ray.init` takes. An open connection is used instead.
        cpus: CPUs, and threads, of each run.
        gpus: GPUs of each run; may be a fraction.

    Raises:
        ConfigError: Ray is not installed, no cluster answers, or no node could take a run.
    """
    ray = _ray()
    ours = not ray.is_initialized()
    if ours:
        _connect(ray, address)
    try:
        _check_room(ray, cpus, gpus)
        task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=RETRIES)(_task)
        left = {task.remote(spec, output.resolve(), cpus, Path.cwd()): spec for spec in specs}
        while left:
            (ready,), _ = ray.wait(list(left), num_returns=1)
            yield _outcome(ray, ready, left.pop(ready))
    finally:
        if ours:
            ray.shutdown()


def _task(spec: RunSpec, output: Path, threads: int, where: Path) -> FinishedRun:
    os.chdir(where)  # paths of the grid are relative to where the sweep was started
    return Worker(output, threads)(spec)


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray reports usage to its makers by default
    try:
        import ray
    except ImportError as error:
        raise ConfigError("sweeps on a cluster need Ray: pip install 'lessmore[sweep]'") from error
    return ray


def _connect(ray: Any, address: str) -> None:
    more = {"include_dashboard": False} if address == "local" else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **more)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"no Ray cluster answers at {address!r}; start one with ray start --head, or use --ray local"
        ) from error


def _check_room(ray: Any, cpus: int, gpus: float) -> None:
    """Refuse runs that no node could ever take; Ray would wait for one forever."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= gpus for node in nodes):
        raise ConfigError(f"no node of the Ray cluster has {cpus} CPUs and {gpus:g} GPUs; ask for less in the grid")


def _outcome(ray: Any, ready: Any, spec: RunSpec) -> FinishedRun:
    try:
        done: FinishedRun = ray.get(ready)
    except ray.exceptions.RayError as error:
        reason = str(error).strip().splitlines()[0]
        return FinishedRun(
            spec, None, f"its worker was lost {RETRIES + 1} times ({reason}); run the same command to go on"
        )
    return done
