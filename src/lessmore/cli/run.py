"""Measure methods on data sets, with intervals and provenance; an interrupted run continues exactly."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import fields
from itertools import groupby
from pathlib import Path
from typing import Any

from jsonargparse import ActionConfigFile, ArgumentParser, Namespace

from lessmore.cli.common import (
    INTERRUPTED,
    OK,
    SOME_FAILED,
    Stop,
    add_calibrate,
    add_engine,
    add_unknown,
    new_parser,
    say,
    say_json,
)
from lessmore.config import list_presets
from lessmore.core.condense.registry import list_reducers
from lessmore.data.registry import open_dataset
from lessmore.data.typed import read_yaml
from lessmore.errors import ConfigError
from lessmore.lab.job import open_model
from lessmore.lab.loggers import TensorBoardLogger
from lessmore.lab.metrics import trouble, unknown_note
from lessmore.lab.runner import run_one
from lessmore.lab.spec import AXES, NAMED, RunSpec, check_packages, grid_runs
from lessmore.lab.summary import RunSummary
from lessmore.methods import list_methods

EXAMPLES = """examples:
  lessmore run --model openai/clip-vit-base-patch16 --dataset eurosat --root data --output runs
  lessmore run --model my-model --method tca zeroshot --dataset cross_dataset --root data --seed 0 1 2 --output runs
  lessmore run --model tiny --dataset folder:photos --corruption none fog:3 --R 0.9 0.7 --output runs

Every combination of the values given is one run, in a directory of its own under --output: samples.jsonl with a line
per image, and summary.json once it is done. The same command again skips finished runs and continues interrupted ones.
The file of --config uses the same names; flags override it.

An image that cannot be read is recorded with the reason and skipped. An adapted answer that is not finite is replaced
by zero-shot's. The command then ends with exit code 3, not 0.
"""


_USUAL = {
    one.name: str(one.default) for one in fields(RunSpec) if one.name in AXES and isinstance(one.default, (str, int))
}
"""What an option stands for where it is not given; `None` would tell nobody."""
_SHARED = ("options", "root", "limit", "unknown", "engine", "calibrate", "device", "workers")
"""Options that all runs of a command share."""


class ConfigFile(ActionConfigFile):  # type: ignore[misc]
    """A YAML file of options; where the command line takes several values, the file may give a single one."""

    def __call__(self, parser: ArgumentParser, cfg: Namespace, values: str, option_string: str | None = None) -> None:
        """Read the file; a mistake in it is reported as wrong usage."""
        try:
            asked = read_yaml(Path(values), "the file of --config")
        except ConfigError as error:
            raise TypeError(str(error)) from error
        if not isinstance(asked, dict):
            raise TypeError(f"{values} holds no options; write lines such as `model: tiny`")
        given = {k: v for k, v in asked.items() if v is not None}
        listed = {k: [v] if k in AXES and not isinstance(v, list) else v for k, v in given.items()}
        super().__call__(parser, cfg, json.dumps(listed, ensure_ascii=False), option_string)


def parser() -> ArgumentParser:
    """Arguments of `lessmore run`."""
    args = new_parser(__doc__, EXAMPLES)
    args.add_argument("--config", action=ConfigFile, help="a YAML file of these options; flags override it")
    for name, (kind, text) in _lists().items():
        usual = _USUAL.get(name)
        also = ["--dtype"] if name == "precision" else []
        args.add_argument(f"--{name}", *also, type=kind, nargs="+", help=f"{text}; default: {usual}" if usual else text)
    args.add_argument("--options", type=dict[str, Any], default={}, help="fields of preset or method: --options.lam 2")
    args.add_argument("--root", type=str | None, default=None, help="the folder that holds the data sets")
    args.add_argument(
        "--limit", type=int | float | None, default=None, help="images, or a fraction of them, stratified by class"
    )
    add_engine(args)
    add_unknown(args)
    add_calibrate(args)
    args.add_argument("--workers", type=int, default=2, help="processes that decode ahead; 0 = none")
    args.add_argument("--output", type=str, required=True, help="directory for the runs, one subdirectory each")
    args.add_argument("--resume", action="store_true", help="continue interrupted runs; this is the default")
    args.add_argument("--overwrite", action="store_true", help="start every run again, even finished ones")
    args.add_argument("--cache", type=str | None, default=None, help="directory of the encodings that runs share")
    args.add_argument("--no-cache", action="store_true", help="encode every image, without reading or writing a cache")
    args.add_argument("--tensorboard", type=str | None, default=None, help="also write curves for TensorBoard here")
    args.add_argument("--json", action="store_true", help="print each summary as a line of JSON")
    args.add_argument("--quiet", action="store_true", help="no progress, only the results")
    return args


def _lists() -> dict[str, tuple[type, str]]:
    """The options that take several values."""
    return {
        "model": (str, "an embedded model (see lessmore ls models), a hub id, a folder, or open_clip:NAME/TAG"),
        "dataset": (str, "names, groups or patterns, folder:PATH, manifest:PATH, hf:NAME, or a .yaml file"),
        "method": (str, ", ".join(list_methods())),
        "reducer": (str, ", ".join(["auto", *list_reducers()])),
        "preset": (str, ", ".join(p for p in list_presets() if "/" not in p)),
        "R": (float, "kept fraction of the tokens; by default the preset's"),
        "templates": (str, "a template set of the data set or of lessmore, or a text with {}; default: the data set's"),
        "order": (str, "iid, sorted, blocks:50, mixture:contrast:4,fog:3, gradual:fog, cycle"),
        "corruption": (str, "such as contrast:4; default: none"),
        "seed": (int, "seeds of the order"),
        "precision": (str, f"{', '.join(NAMED)}; int8 runs on engine openvino"),
    }


def run(args: Namespace) -> int:
    """Do all runs; 0, 3 if some images have no adapted answer, 130 if interrupted."""
    _check(args)
    asked = {name: getattr(args, name) for name in (*AXES, *_SHARED)}
    specs = grid_runs({name: value for name, value in asked.items() if value is not None})
    check_packages(specs)
    failed = 0
    with Stop() as stop:
        for number, summary in enumerate(_summaries(specs, args, stop), start=1):
            if summary is None:
                print("lessmore run: interrupted; run the same command to go on", file=sys.stderr)
                return INTERRUPTED
            failed += bool(trouble(summary["metrics"]))
            if args.json:
                say_json(summary, indent=None)
            else:
                say(f"{number}/{len(specs)} {line(summary)}")
    return SOME_FAILED if failed else OK


def _check(args: Namespace) -> None:
    if args.no_cache and args.cache is not None:
        raise ConfigError("--cache and --no-cache are mutually exclusive; give one of them")
    if args.resume and args.overwrite:
        raise ConfigError("--resume and --overwrite are mutually exclusive; give one of them")


def _summaries(specs: list[RunSpec], args: Namespace, stop: Stop) -> Iterator[RunSummary | None]:
    """Summaries of the runs, one after another; None if one was interrupted. Models and data are opened once."""
    cache: bool | str = False if args.no_cache else args.cache or True
    logger = None if args.tensorboard is None else TensorBoardLogger(args.tensorboard)
    for _, same_model in groupby(specs, key=lambda spec: (spec.model, spec.precision)):
        vlm = None
        for _, same_data in groupby(same_model, key=lambda spec: spec.dataset):
            dataset = None
            for spec in same_data:
                vlm = vlm or open_model(spec)
                dataset = dataset or open_dataset(spec.dataset, None if spec.root is None else Path(spec.root))
                yield run_one(
                    spec,
                    args.output,
                    resume=not args.overwrite,
                    quiet=args.quiet,
                    cache=cache,
                    stop=lambda: stop.asked,
                    vlm=vlm,
                    dataset=dataset,
                    logger=logger,
                )


def line(summary: RunSummary) -> str:
    """One run in one line."""
    spec, found = summary["spec"], summary["metrics"]
    seen = " ".join(part for part in (summary["dataset"]["name"], spec["corruption"], spec["order"]) if part)
    title = f"{seen} seed {spec['seed']}: {Path(spec['model']).name} {spec['method']}+{spec['reducer']} R={spec['R']:g}"
    if not found["n"]:
        return f"{title}: none of the {found['failed']} images could be read"
    accuracy, plain, gain, low, high = (
        100 * value for value in (found["accuracy"], found["zero_shot_accuracy"], found["gain"], *found["gain_ci"])
    )
    notes = "".join(f"; {note}" for note in (unknown_note(found), trouble(found)) if note)
    return (
        f"{title}: {accuracy:.2f} % of {found['n']}, zero-shot {plain:.2f} %, "
        f"gain {gain:+.2f} [{low:+.2f}, {high:+.2f}] points{notes}"
    )
