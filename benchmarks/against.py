"""Speed of this version against another checkout, both in one run: every engine, and a stream through an `Adapter`.

    git worktree add /tmp/other v0.1
    python benchmarks/against.py /tmp/other/src --device cuda --rounds 60 --output against.json
    python benchmarks/against.py /tmp/other/src --device cpu --model tiny --rounds 40

Two processes hold one version each and take turns, in an order that changes from round to round; only one of them works
at a time. A ratio is this version's time over the other's, round by round, with a bootstrap interval of its median.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

MODEL, CLASSES, STREAMS, BATCH = "ViT-B-16", 102, 32, 128
CASES = {
    "cuda": [
        *(f"{engine} {preset}" for engine in ("graph", "chunk", "multi") for preset in ("fixed", "paper", "default")),
        "eager default",
        "adapter-graph default",
        "adapter-chunk default",
    ],
    "cpu": ["eager fixed", "eager default", "cpu fixed", "cpu paper", "cpu default", "adapter-cpu default"],
}
Step = Callable[[], object]


def first_of(*names: str) -> Any:
    """The first of these modules that this version has."""
    for name in names[:-1]:
        try:
            return import_module(name)
        except ImportError:
            continue
    return import_module(names[-1])


def tower(model: str, device: str) -> Any:
    """A vision tower with random weights; float16 on a GPU."""
    import torch

    shape = first_of("lessmore.models.shapes", "lessmore.shapes").SHAPES[model][0]
    vit = first_of("lessmore.core.vit", "lessmore.vit").ViT(shape).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for key, parameter in vit.named_parameters():
        if parameter.ndim > 1 or key == "class_embed":
            scale = 1.0 if key in ("positions", "class_embed") else parameter[0].numel() ** -0.5
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    return vit.to(device, torch.float16 if device == "cuda" else torch.float32)


def step_of(case: str, vision: Any) -> Step:
    """What is timed, after a warm-up in which the memory fills."""
    import torch

    from lessmore.config import preset
    from lessmore.methods import Setup

    engine, name = case.split()
    engines, generator = first_of("lessmore.engines", "lessmore.engine"), torch.Generator().manual_seed(1)
    text = torch.nn.functional.normalize(torch.randn(CLASSES, vision.shape.embed, generator=generator), dim=-1)
    setup = Setup(vision, text.to(vision.positions), 100.0, preset(name), classes=tuple(map(str, range(CLASSES))))
    side = vision.shape.image_size
    images = torch.randn(BATCH, 3, side, side, generator=generator).to(vision.positions)
    if engine == "multi":
        multi = first_of("lessmore.engines.multi", "lessmore.engine.multi").Multi(setup, STREAMS)
        return lambda: multi.predict(images[:STREAMS])
    if engine.startswith("adapter-"):
        adapter = adapter_of(setup, engine.removeprefix("adapter-"))
        count = BATCH if images.is_cuda else 4
        return lambda: [None for _ in adapter.stream(list(images[:count]))]
    method = engines.build(engine, "tca", setup)
    if engine == "chunk":
        return lambda: method.predict_many(images)
    for image in images[:20]:
        method.predict(image[None])
    return lambda: method.predict(images[:1])


def adapter_of(setup: Any, engine: str) -> Any:
    """An adapter on the tower; the text side of an embedded model stands in, since the class texts are given."""
    import lessmore

    tiny = lessmore.load("tiny")
    vlm = type(tiny)(setup.vision, tiny.text, 100.0, 0.0, tiny.tokenizer, tiny.preprocess, "clip", "random")
    try:
        from lessmore.models.class_list import ClassList
    except ImportError:  # a checkout from before class lists could change
        return lessmore.Adapter(vlm, setup, "", "tca", engine=engine)
    names = setup.classes or tuple(map(str, range(len(setup.text))))
    return lessmore.Adapter(ClassList(vlm, names, (), "photo", setup.text), setup, "tca", engine=engine)


def work(model: str, device: str) -> None:
    """Hold one version: read cases and numbers of repetitions, answer with seconds per repetition."""
    import torch

    torch.set_grad_enabled(False)
    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    torch.set_num_threads(torch.get_num_threads() if device == "cuda" else 1)
    vision, steps = tower(model, device), dict[str, Step]()
    for line in sys.stdin:
        case, times = line.rsplit(maxsplit=1)
        if case not in steps:
            steps[case] = step_of(case, vision)
        step = steps[case]
        wait()
        start = time.perf_counter()
        for _ in range(int(times)):
            step()
        wait()
        print((time.perf_counter() - start) / int(times), file=sys.__stdout__, flush=True)


class Side:
    """A process that holds one version."""

    def __init__(self, source: Path, model: str, device: str) -> None:
        command = [sys.executable, __file__, "--work", "--model", model, "--device", device, str(source)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])}
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
        self._process = subprocess.Popen(command, env=environment, **pipes)

    def time(self, case: str, times: int) -> float:
        """Seconds per repetition."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(case, times, file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def compare(case: str, sides: list[Side], rounds: int) -> dict[str, Any]:
    """Both sides' medians and the ratio of the first to the second."""
    seconds: list[list[float]] = [[], []]
    slowest = max(side.time(case, 3) for side in sides)
    times = max(1, min(50, int(0.05 / slowest)))
    dice = random.Random(0)
    for _ in range(rounds):
        for k in dice.sample((0, 1), 2):
            seconds[k].append(sides[k].time(case, times))
    ratios = [ours / theirs for ours, theirs in zip(*seconds, strict=True)]
    medians = sorted(statistics.median(dice.choices(ratios, k=rounds)) for _ in range(1000))
    row: dict[str, Any] = {"case": case, "rounds": rounds, "repetitions": times}
    row |= {"ms": 1000 * statistics.median(seconds[0]), "other ms": 1000 * statistics.median(seconds[1])}
    return row | {"ratio": statistics.median(ratios), "interval": [medians[25], medians[974]]}


def main() -> None:
    """Compare case by case and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="the other version's source folder, which holds `lessmore`")
    parser.add_argument("--device", default="cpu", choices=tuple(CASES))
    parser.add_argument("--model", default=MODEL, help="a shape that both versions know")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--cases", nargs="+", help="such as 'graph default'; all by default")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args.model, args.device)
        return
    here = Path(__file__).resolve().parents[1] / "src"
    sides, rows = [Side(source, args.model, args.device) for source in (here, args.other)], []
    print(f"{'case':24} {'this ms':>9} {'other ms':>9} {'ratio':>7}  95 % interval")
    for case in args.cases or CASES[args.device]:
        row = compare(case, sides, args.rounds)
        low, high = row["interval"]
        print(
            f"{case:24} {row['ms']:9.3f} {row['other ms']:9.3f} {row['ratio']:7.3f}  [{low:.3f}, {high:.3f}]",
            flush=True,
        )
        rows.append(row)
    for side in sides:
        side.close()
    if args.output:
        args.output.write_text(json.dumps({"model": args.model, "device": args.device, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
