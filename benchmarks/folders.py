"""Whether a recorded folder would be answered faster if its images were encoded in batches, on a CPU.

    python -m benchmarks.folders --page docs/speed.md          # at most three minutes, on an idle machine
    python -m benchmarks.folders --quick                       # a smoke test

`stream(folder)` encodes image by image. Only the encoder could take several at once: the steps of adaptation follow
each other. So encoders alone are timed, and what they win is the most that a stream could. Every contender encodes the
same 16 images, one at a time or in batches; contenders take turns, and ratios are taken round by round.

OpenVINO compiles a program for every batch size, which takes longer than measuring it, so it has one size beside 1.
int8 is left out for the same reason: NNCF quantises every program anew.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.results_page import between
from lessmore.cli.bench import PLAIN, BenchContender, setup_of, tower
from lessmore.core.encoder import encode
from lessmore.engines import compiled_encoder
from lessmore.engines.availability import has_openvino, import_without_telemetry
from lessmore.engines.cores import limit_threads
from lessmore.engines.cpu import packed_setup
from lessmore.lab.latency import Times, interleaved, time_ratio
from lessmore.methods import Setup

BEGIN, END = "<!-- numbers: benchmarks/folders.py -->", "<!-- end of the numbers of folders -->"
IMAGES = 16
BATCHES = {"cpu": (4, 8, 16), "openvino": (8,)}
SETTINGS = (BenchContender(PLAIN, "zeroshot", "none", 1.0), BenchContender("TCA, R = 0.9", "tca", "tca", 0.9))
ROUNDS = 200
Encode = Callable[[Tensor], object]


def on_cpu(setup: Setup, size: int) -> Encode:
    """The packed encoder; it takes any number of images."""
    return partial(encode, packed_setup(setup).vision, config=setup.preset.condensation)


def on_openvino(setup: Setup, size: int) -> Encode:
    """An OpenVINO program for batches of this size, compiled as the engine compiles its own."""
    openvino = import_without_telemetry("openvino")
    vision, condensation = setup.vision, setup.preset.condensation
    side = vision.shape.image_size
    module = compiled_encoder._Traceable(vision, condensation).eval()
    program = torch.export.export(module, (torch.zeros(size, 3, side, side),), strict=False)
    key = (condensation, f"batches of {size}")
    made = compiled_encoder.compiled_program(vision, key, lambda: openvino.convert_model(program), "float32")
    request = made.create_infer_request()
    return lambda pixels: request.infer([pixels.contiguous().numpy()])


ENCODERS: dict[str, Callable[[Setup, int], Encode]] = {"cpu": on_cpu, "openvino": on_openvino}


def every(encoder: Encode, parts: tuple[Tensor, ...]) -> None:
    """Encode all images, part by part."""
    for part in parts:
        encoder(part)


@torch.no_grad()
def measured(model: str, engine: str, setting: BenchContender, seconds: float, rounds: int) -> dict[str, Any]:
    """Images a second one at a time, and for each batch size its rate as a multiple of that, with an interval."""
    vision = tower(model)[0]
    setup, side = setup_of(vision, 102, setting), vision.shape.image_size
    pixels = torch.randn(IMAGES, 3, side, side, generator=torch.Generator().manual_seed(0))
    sizes = (1, *BATCHES[engine])
    contenders = {str(n): partial(every, ENCODERS[engine](setup, n), pixels.split(n)) for n in sizes}
    end, times = time.monotonic() + seconds, Times()
    for times in interleaved(contenders, rounds, warmup=1):
        if time.monotonic() > end and len(times["1"]) >= 3:
            break
    row = {"images/s": IMAGES / statistics.median(times["1"]), "rounds": len(times["1"])}
    return row | {size: list(time_ratio(times["1"], times[size])) for size in times if size != "1"}


def everything(models: list[str], engines: list[str], seconds: float, rounds: int) -> dict[str, Any]:
    """All rows in as many seconds; those for which no time is left are left out."""
    load, end, rows = round(os.getloadavg()[0], 1), time.monotonic() + seconds, {}
    asked = [(model, engine, setting) for model in models for engine in engines for setting in SETTINGS]
    for i, (model, engine, setting) in enumerate(asked):
        share = (end - time.monotonic()) / (len(asked) - i)
        if share > 0:
            name = f"{model}, {engine}, {setting.name}"
            rows[name] = measured(model, engine, setting, 0.6 * share, rounds)  # the rest is for compiling
            print(f"{name}: {json.dumps(rows[name])}", flush=True)
    machine = {"threads": torch.get_num_threads(), "torch": torch.__version__, "load before": load}
    return {"rows": rows, "left out": len(asked) - len(rows), "machine": machine}


def table(results: dict[str, Any]) -> str:
    """The figures as Markdown."""
    sizes = [str(size) for size in BATCHES["cpu"]]
    lines = [f"| encoder | images/s one at a time | {' | '.join(f'batches of {size}' for size in sizes)} |"]
    lines.append("|---|---|" + "---|" * len(sizes))
    for name, row in results["rows"].items():
        cells = ["{:.2f}× [{:.2f}, {:.2f}]".format(*row[size]) if size in row else "–" for size in sizes]
        lines.append(f"| {name} | {row['images/s']:.1f} | {' | '.join(cells)} |")
    machine = results["machine"]
    told = f"{machine['threads']} threads, torch {machine['torch']}, load average {machine['load before']} at the start"
    late = f"; {results['left out']} rows had no time left" if results["left out"] else ""
    return "\n".join([*lines, "", f"Rates as a multiple of one at a time; {told}{late}."]) + "\n"


def main() -> None:
    """Measure everything, write it down, and show it as a table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=160, help="for everything")
    options.add_argument("--quick", action="store_true", help="a smoke test: tiny on engine cpu, three rounds")
    options.add_argument("--output", type=Path, default=Path("benchmarks/results/folders.json"))
    options.add_argument("--table", action="store_true", help="print the table of --output; measure nothing")
    options.add_argument("--page", type=Path, help="put the table into this page, between its marks")
    args = options.parse_args()
    if not args.table:
        limit_threads()
        engines = ["cpu", *(["openvino"] if has_openvino() else [])]
        quick = (["tiny"], engines[:1], 5.0, 3)
        found = everything(*quick) if args.quick else everything(["tiny", "ViT-B-16"], engines, args.seconds, ROUNDS)
        args.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    text = table(json.loads(args.output.read_text(encoding="utf-8")))
    print(text)
    if args.page is not None:
        args.page.write_text(between(args.page.read_text(encoding="utf-8"), BEGIN, END, text), encoding="utf-8")


if __name__ == "__main__":
    main()
