"""Measure speed on this machine: plain, EViT and TCA in every engine and precision, and what to set for the fastest."""

from __future__ import annotations

import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jsonargparse import ArgumentParser, Namespace
from torch import Tensor
from tqdm import tqdm

from lessmore.cli.common import OK, add_device, add_json, new_parser, say_json
from lessmore.core.costs import costs
from lessmore.core.vit import ViT
from lessmore.engines import build, cpu
from lessmore.engines.availability import has_openvino
from lessmore.errors import ConfigError, unknown
from lessmore.lab.latency import Times, interleaved, percentile, time_ratio
from lessmore.lab.memory import measure_peak
from lessmore.methods import Method, Setup
from lessmore.methods.resolve import resolve
from lessmore.models.load import load
from lessmore.models.shapes import SHAPES

EXAMPLES = """examples:
  lessmore bench ViT-B-16
  lessmore bench ViT-L-14 --classes 1000 --device cuda --seconds 60
  lessmore bench openai/clip-vit-base-patch16 --json
  lessmore bench ViT-B-16 --engines cpu openvino "openvino int8"

ViT-B-16 and other shapes known by name get random weights; class embeddings are always random. Neither changes the
times. Run on an idle machine, or on one that is as busy as it will be. Engines and precisions take turns, so that
ratios hold even where times do not. int8 is calibrated on noise here, which does not change its times.
"""
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
PLAIN = "plain"
LEAST_ROUNDS = 3


class BenchContender(NamedTuple):
    """One line of the table."""

    name: str
    method: str
    reducer: str
    R: float


CONTENDERS = (
    BenchContender(PLAIN, "zeroshot", "none", 1.0),
    BenchContender("EViT, R = 0.9", "zeroshot", "evit", 0.9),
    BenchContender("EViT, R = 0.7", "zeroshot", "evit", 0.7),
    BenchContender("TCA, R = 0.9", "tca", "tca", 0.9),
    BenchContender("TCA, R = 0.7", "tca", "tca", 0.7),
)


def parser() -> ArgumentParser:
    """Arguments of `lessmore bench`."""
    args = new_parser(__doc__, EXAMPLES)
    args.add_argument("model", type=str, help=f"{', '.join(SHAPES)}, or whatever lessmore.load takes")
    args.add_argument("--classes", type=int, default=100, help="number of classes")
    add_device(args)
    args.add_argument("--dtype", type=str | None, default=None, help="default: float16 on CUDA, float32 on CPUs")
    args.add_argument("--engines", type=str, nargs="+", default=None, help="only these, as the table names them")
    args.add_argument("--seconds", type=float, default=120.0, help="time to measure for")
    add_json(args)
    return args


def run(args: Namespace) -> int:
    """Measure and print."""
    if args.device == "auto":
        args.device = "cuda" if torch.cuda.is_available() else "cpu"
    _check(args)
    vision, random = tower(args.model)
    dtype = DTYPES[args.dtype or ("float16" if args.device == "cuda" else "float32")]
    vision = vision.to(args.device, dtype)
    rows = measure_contenders(vision, args.classes, args.seconds, _chosen(args.engines, vision))
    facts = {
        "model": args.model,
        "weights": "random" if random else "loaded",
        "classes": args.classes,
        "device": torch.cuda.get_device_name() if args.device == "cuda" else f"{torch.get_num_threads()} CPU threads",
        "dtype": str(dtype).removeprefix("torch."),
    }
    if args.json:
        say_json({**facts, "rows": rows})
        return OK
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    _table(rows)
    return OK


def _check(args: Namespace) -> None:
    if args.classes < 1:
        raise ConfigError(f"--classes must be 1 or more, not {args.classes}")
    if not args.seconds > 0:
        raise ConfigError(f"--seconds must be more than 0, not {args.seconds:g}")
    if args.device not in ("cpu", "cuda"):
        raise ConfigError(unknown("device", args.device, ("cpu", "cuda")))
    if args.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("there is no CUDA device that torch can use here; take --device cpu")
    if args.dtype is not None and args.dtype not in DTYPES:
        raise ConfigError(unknown("dtype", args.dtype, DTYPES))


def _chosen(names: list[str] | None, vision: ViT) -> list[str]:
    possible = engines(vision)
    for name in names or ():
        if name not in possible:
            raise ConfigError(unknown("engine here", name, possible))
    return names or possible


def tower(name: str) -> tuple[ViT, bool]:
    """The vision tower of a model, and whether its weights are random because only its shape is known."""
    if name in SHAPES:
        return ViT(SHAPES[name][0]).eval().requires_grad_(False), True
    return load(name).vision, False


def setup_of(vision: ViT, classes: int, contender: BenchContender, name: str = "default") -> Setup:
    """A contender's setup on random class embeddings.

    Args:
        vision: The tower to measure.
        classes: Number of classes.
        contender: What to measure: a method, a reducer and R.
        name: The preset.
    """
    generator = torch.Generator().manual_seed(0)
    text = F.normalize(torch.randn(classes, vision.shape.embed, generator=generator), dim=-1).to(vision.positions)
    chosen = resolve(contender.method, name, contender.R, contender.reducer, shape=vision.shape)
    return Setup(vision, text, 100.0, chosen.preset)


def engines(vision: ViT) -> list[str]:
    """Engines that run single images on the tower's device, with their precision where the weights do not say it."""
    if vision.positions.is_cuda:
        return ["eager", "graph"]
    if vision.positions.dtype != torch.float32:
        return ["eager", "cpu"]
    half = ["bfloat16"] if cpu.has_bfloat16() else []
    precisions = ["", *half, *(["int8"] if importlib.util.find_spec("nncf") else [])] if has_openvino() else []
    return ["eager", "cpu", *(f"cpu {p}" for p in half), *(f"openvino {p}".strip() for p in precisions)]


def contenders_of(engine: str) -> tuple[BenchContender, ...]:
    """What is measured in an engine. Programs of OpenVINO take long to make, so there are fewer of them.

    Args:
        engine: One of `engines`.
    """
    few = {"openvino": (PLAIN, "TCA, R = 0.9", "TCA, R = 0.7")}
    wanted = few.get(engine, (PLAIN, "TCA, R = 0.9")) if engine.startswith("openvino") else None
    return tuple(c for c in CONTENDERS if wanted is None or c.name in wanted)


@torch.no_grad()
def measure_contenders(vision: ViT, classes: int, seconds: float, chosen: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Times of every contender in every engine, taken in turns so that a change of clock rate hits all alike.

    Args:
        vision: The tower to measure, on its device and in its dtype.
        classes: Number of classes.
        seconds: How long to measure; a progress bar counts them. Every contender gets 3 rounds at least.
        chosen: Which of `engines`; all if none are named.

    Returns:
        One row per engine and contender, as `--json` prints them.
    """
    start, device = time.perf_counter(), vision.positions.device
    side = vision.shape.image_size
    image = torch.randn(1, 3, side, side, generator=torch.Generator().manual_seed(0)).to(vision.positions)
    steps: dict[str, Callable[[], object]] = {}
    memory: dict[str, int] = {}
    times: Times = {}
    with tqdm(total=seconds, bar_format="{desc} {percentage:3.0f}%|{bar}|", file=sys.stderr) as bar:
        pairs = [(engine, one) for engine in chosen or engines(vision) for one in contenders_of(engine)]
        for engine, contender in pairs:
            key = f"{engine}/{contender.name}"
            bar.set_description(key)
            begin = partial(_begun, engine, contender.method, setup_of(vision, classes, contender), image)
            method, memory[key] = measure_peak(begin, device)
            steps[key] = partial(method.predict, image)
            bar.update(min(seconds, time.perf_counter() - start) - bar.n)
        bar.set_description("taking turns")
        for done, times in enumerate(interleaved(steps, sys.maxsize, device, warmup=1), start=1):  # noqa: B007
            bar.update(min(seconds, time.perf_counter() - start) - bar.n)
            if bar.n >= seconds and done >= LEAST_ROUNDS:
                break
    return [_row(vision, classes, key, times, memory[key]) for key in steps]


def _begun(engine: str, method: str, setup: Setup, image: Tensor) -> Method:
    """A method that has answered its first image, so that everything it allocates or captures is in place."""
    name, _, precision = engine.partition(" ")
    if precision:
        setup = replace(setup, precision=precision, calibration=image.expand(2, -1, -1, -1))
    made = build(name, method, setup)
    made.predict(image)
    return made


def _row(vision: ViT, classes: int, key: str, times: Times, memory: int) -> dict[str, Any]:
    engine, name = key.split("/")
    contender = next(c for c in CONTENDERS if c.name == name)
    preset = setup_of(vision, 1, contender).preset
    adaptation = preset.adaptation if contender.method == "tca" else None
    to_plain = time_ratio(times[key], times[f"{engine}/{PLAIN}"])
    middle = statistics.median(times[key])
    weights = sum(p.numel() * p.element_size() for p in vision.parameters())
    return {
        "engine": engine,
        "name": name,
        "rounds": len(times[key]),
        "p50_ms": 1000 * middle,
        "p95_ms": 1000 * percentile(times[key], 0.95),
        "of_plain": to_plain.value,
        "interval": [to_plain.low, to_plain.high],
        "images_per_s": 1 / middle,
        "gmacs": costs(vision.shape, preset.condensation, adaptation, classes).gmacs,
        "memory_mb": (weights + memory) / 1e6,
    }


def _table(rows: list[dict[str, Any]]) -> None:
    print(f"\n{'engine':<19}{'':<16}{'p50 ms':>10}{'p95 ms':>10}{'of plain':>20}{'images/s':>11}{'GMACs':>8}{'MB':>8}")
    for row in rows:
        span = f"{row['of_plain']:.2f} ({row['interval'][0]:.2f}–{row['interval'][1]:.2f})"
        print(
            f"{row['engine']:<19}{row['name']:<16}{row['p50_ms']:10.2f}{row['p95_ms']:10.2f}{span:>20}"
            f"{row['images_per_s']:11.1f}{row['gmacs']:8.2f}{row['memory_mb']:8.0f}"
        )
    print(f"\n{rows[0]['rounds']} rounds; MB: weights, state and the step's own tensors, without OpenVINO's programs.")
    print(bench_verdict(rows))
    for line in bench_advice(rows):
        print(line)


def bench_verdict(rows: list[dict[str, Any]]) -> str:
    """One sentence on where TCA is slower than the plain model in the same engine, if anywhere."""
    slower = [f"{r['name']} in {r['engine']} ({r['of_plain']:.2f} of plain)" for r in rows if _slower(r)]
    if not slower:
        return "TCA is no slower than the plain model in any engine measured."
    return f"TCA is SLOWER than the plain model here: {'; '.join(slower)}."


def _slower(row: dict[str, Any]) -> bool:
    return bool(row["name"].startswith("TCA") and row["of_plain"] > 1)


def bench_advice(rows: list[dict[str, Any]]) -> list[str]:
    """What to set for the fastest TCA: with the answers of float32, and with answers that may differ.

    Args:
        rows: Rows of `measure_contenders`.
    """
    tca = [row for row in rows if row["name"] == "TCA, R = 0.9"]
    exact = [row for row in tca if " " not in row["engine"]]
    advice = [f"Fastest with unchanged answers: {_setting(min(exact, key=_p50))}."] if exact else []
    fastest = min(tca, key=_p50, default=None)
    if fastest is not None and " " in fastest["engine"]:
        advice.append(f"Fastest if a few answers in a hundred may differ: {_setting(fastest)}.")
    return advice


def _p50(row: dict[str, Any]) -> float:
    return float(row["p50_ms"])


def _setting(row: dict[str, Any]) -> str:
    engine, _, precision = row["engine"].partition(" ")
    more = f", precision={precision!r}" if precision else ""
    return f"engine={engine!r}{more} ({row['p50_ms']:.1f} ms)"
