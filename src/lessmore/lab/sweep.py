"""Many runs: a grid file becomes a list of runs, on whichever machines they are done.

A run keeps its own books: it skips what is done, resumes where it was cut off, and holds a lock while it works. A sweep
needs no memory of its own; the same command does what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import torch

from lessmore.data.orders import plan_stream
from lessmore.data.typed import read_yaml
from lessmore.errors import ConfigError, LessmoreError, unknown
from lessmore.lab.job import open_model
from lessmore.lab.runner import run_one
from lessmore.lab.spec import AXES, RunSpec, grid_runs
from lessmore.lab.summary import RunSummary
from lessmore.methods import list_methods
from lessmore.models.vlm import VLM

RETRIES = 3
"""How often a run is resumed after its process was lost."""
_FIELDS = ("grid", "exclude", "cpus", "gpus")


@dataclass(frozen=True)
class SweepGrid:
    """What a grid file asks for."""

    specs: tuple[RunSpec, ...]
    cpus: int = 1
    """Threads of each run."""
    gpus: float = 0
    """GPUs of each run on a Ray cluster; a fraction lets runs share one."""


@dataclass(frozen=True)
class FinishedRun:
    """The outcome of a run: its summary, or why there is none."""

    spec: RunSpec
    summary: RunSummary | None
    error: str = ""


def read_grid(path: Path) -> SweepGrid:
    """Read a YAML file such as this one:

    grid:                            # one mapping or a list of them; lists give every combination
      model: tiny
      dataset: [eurosat, dtd]
      method: [zeroshot, tca]
      seed: [0, 1, 2]
      root: data
    exclude:                         # runs that agree with all of an entry are left out
      - {method: zeroshot, seed: [1, 2]}
    cpus: 2                          # threads of each run
    gpus: 0.5                        # GPUs of each run, on Ray
    """
    content = read_yaml(path, "the grid")
    if not isinstance(content, dict) or not content.get("grid"):
        raise ConfigError(f"{path} has no grid; write the settings of the runs below the key grid")
    for name in content:
        if name not in _FIELDS:
            raise ConfigError(f"{path}: {unknown('key', str(name), _FIELDS)}")
    specs = expand_grid(_mappings(content["grid"], "grid"), _mappings(content.get("exclude") or [], "exclude"))
    cpus, gpus = content.get("cpus", 1), content.get("gpus", 0)
    if type(cpus) is not int or cpus < 1 or type(gpus) not in (int, float) or not 0 <= gpus < float("inf"):
        raise ConfigError(f"{path}: cpus must be a whole number from 1 and gpus a number from 0, not {cpus} and {gpus}")
    return SweepGrid(specs, cpus, gpus)


def _mappings(value: Any, name: str) -> list[Mapping[str, Any]]:
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(entry, dict) for entry in values):
        raise ConfigError(f"{name} must hold settings such as method: tca, or a list of such mappings")
    return values


def expand_grid(grids: Iterable[Mapping[str, Any]], exclude: Iterable[Mapping[str, Any]] = ()) -> tuple[RunSpec, ...]:
    """All runs of the grids, each once, checked as far as possible without a model or a data set.

    Args:
        grids: Settings by name; a field of `AXES` may be a list.
        exclude: Runs that match every setting of an entry are left out.

    Raises:
        ConfigError: A setting is unknown or wrong, or no run is left.
    """
    left_out = [_listed(entry) for entry in exclude]
    specs: dict[str, RunSpec] = {}
    for spec in (spec for wishes in grids for spec in grid_runs(_typed(wishes))):
        if not any(all(getattr(spec, name) in values for name, values in entry.items()) for entry in left_out):
            _check(spec)
            specs[repr(asdict(spec))] = spec  # options make a spec unhashable
    if not specs:
        raise ConfigError("the grid holds no run; exclude leaves nothing of it")
    return spread_apart(list(specs.values()))


def _listed(entry: Mapping[str, Any]) -> dict[str, list[Any]]:
    """An entry of exclude with lists throughout; the corruption `none` is None in a run."""
    known = [f.name for f in fields(RunSpec)]
    for name in entry:
        if name not in known:
            raise ConfigError(f"exclude: {unknown('setting', str(name), known)}")
    listed = {name: value if isinstance(value, list) else [value] for name, value in entry.items()}
    return {name: [*values, None] if "none" in values else values for name, values in listed.items()}


def _typed(wishes: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings of a grid, with values of the types that `RunSpec` declares; a file may give any."""
    for name, hint in get_type_hints(RunSpec).items():
        values = wishes[name] if isinstance(wishes.get(name), list) else [wishes[name]] if name in wishes else []
        if len(values) > 1 and name not in AXES:
            raise ConfigError(f"{name} takes one value; lists are for {', '.join(AXES)}")
        kinds = _kinds(hint)
        for value in values:
            if not isinstance(value, kinds):
                raise ConfigError(f"{name} cannot be {value!r}; give {' or '.join(kind.__name__ for kind in kinds)}")
    return wishes


def _kinds(hint: Any) -> tuple[type, ...]:
    if get_origin(hint) is Mapping:
        return (dict,)
    kinds = get_args(hint) or (hint,)
    return (*kinds, int) if float in kinds and int not in kinds else kinds


def _check(spec: RunSpec) -> None:
    plan_stream(spec.order, spec.corruption)
    if spec.method not in list_methods():
        raise ConfigError(unknown("method", spec.method, list_methods()))


def spread_apart(specs: list[RunSpec]) -> tuple[RunSpec, ...]:
    """Runs on the same images, far apart: what the first of them encodes is then cached when the next one begins."""
    turns: dict[tuple[object, ...], int] = {}
    order = []
    for number, spec in enumerate(specs):
        images = (spec.model, spec.precision, spec.dataset, spec.corruption)
        turns[images] = turns.get(images, 0) + 1
        order.append((turns[images], number))
    return tuple(specs[number] for _, number in sorted(order))


class Worker:
    """Does runs one by one in one process; the model stays loaded for runs that share it."""

    def __init__(self, output: Path, threads: int) -> None:
        self._output = output
        self._model: tuple[tuple[str, str, str], VLM] | None = None
        torch.set_num_threads(threads)

    def __call__(self, spec: RunSpec, stop: Callable[[], bool] = lambda: False) -> FinishedRun:
        """Do a run or what is left of it. A failure is this run's error and does not end the sweep."""
        try:
            return FinishedRun(spec, run_one(spec, self._output, quiet=True, stop=stop, vlm=self._vlm(spec)))
        except LessmoreError as error:
            return FinishedRun(spec, None, str(error))
        except Exception as error:
            return FinishedRun(spec, None, f"{type(error).__name__}: {error}")

    def _vlm(self, spec: RunSpec) -> VLM:
        wanted = (spec.model, spec.device, spec.precision)
        if self._model is None or self._model[0] != wanted:
            self._model = None  # let go of the old one before the new one takes its room
            self._model = (wanted, open_model(spec))
        return self._model[1]
