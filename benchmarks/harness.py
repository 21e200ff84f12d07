"""What the harness costs and whether it keeps its word, on this machine.

    python benchmarks/harness.py --model DIR --dataset eurosat --root DIR --output benchmarks/results/harness.json

Printed: differences after runs were killed and resumed, the share of the time that checkpoints take, images per second
of the loader and of the encoder, and what a grid costs with and without the cache of encodings. Without arguments the
embedded model looks at drawn images.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from lessmore.assets import world
from lessmore.core.encoder import PLAIN, encode
from lessmore.lab.job import Job, prepare_job
from lessmore.lab.loader import load_images
from lessmore.lab.report.tokens import as_picture
from lessmore.lab.runner import run_one
from lessmore.lab.spec import RunSpec, grid_runs
from lessmore.lab.store import Store
from lessmore.models.to_pixels import to_pixels

CHILD = (
    "import sys, json; from lessmore.lab.runner import run_one; from lessmore.lab.spec import RunSpec; "
    "run_one(RunSpec(**json.loads(sys.argv[1])), sys.argv[2], quiet=True, cache=False)"
)


def draw(folder: Path, images: int) -> str:
    """Drawn images in a folder per class, as a data set's name."""
    classes = world.test_classes(10)
    scene = world.world_sample(images, 1, classes)
    for i, (image, label) in enumerate(zip(world.draw_scene(scene)[0], scene.index.tolist(), strict=True)):
        path = folder / world.world_class_names(classes)[label] / f"{i:05}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        as_picture(image).save(path)
    return f"folder:{folder}"


def outcome(folder: Path) -> tuple[bytes, Any]:
    """What must not depend on how a run came about."""
    return (folder / "samples.jsonl").read_bytes(), json.loads((folder / "summary.json").read_text())["metrics"]


def kills(spec: RunSpec, job: Job, place: Path, count: int) -> dict[str, Any]:
    """Kill a run again and again, each time at a random sample further on; then let it end."""
    run_one(spec, place / "whole", quiet=True, cache=False, vlm=job.vlm)
    folder, dice, total = place / "killed" / job.name, random.Random(0), len(job.stream)
    wishes = json.dumps({k: v for k, v in vars(spec).items() if v is not None})
    done = 0
    for kill in range(count):
        target = dice.randrange(total * kill // count, max(1, total * (kill + 1) // count))
        child = subprocess.Popen([sys.executable, "-c", CHILD, wishes, str(place / "killed")])
        while child.poll() is None and _rows(folder) < target:
            time.sleep(0.005)
        done += child.poll() is None
        child.kill()
        child.wait()
    run_one(spec, place / "killed", quiet=True, cache=False, vlm=job.vlm)
    same = outcome(folder) == outcome(place / "whole" / job.name)
    return {"kills": done, "images": total, "differences": 0 if same else 1}


def _rows(folder: Path) -> int:
    path = folder / "samples.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


@contextmanager
def timed_checkpoints() -> Iterator[list[float]]:
    """Seconds of every checkpoint that is written meanwhile."""
    seconds: list[float] = []
    plain = Store.checkpoint

    def checkpoint(self: Store, *arguments: Any) -> None:
        start = time.perf_counter()
        plain(self, *arguments)
        seconds.append(time.perf_counter() - start)

    Store.checkpoint = checkpoint  # type: ignore[method-assign]
    try:
        yield seconds
    finally:
        Store.checkpoint = plain  # type: ignore[method-assign]


def checkpoints(spec: RunSpec, job: Job, place: Path) -> dict[str, Any]:
    """The share of a run that goes into checkpoints."""
    start = time.perf_counter()
    with timed_checkpoints() as seconds:
        run_one(spec, place / "checkpoints", quiet=True, cache=False, vlm=job.vlm)
    total = time.perf_counter() - start
    return {
        "count": len(seconds),
        "ms_each": 1e3 * sum(seconds) / max(1, len(seconds)),
        "seconds_between": total / max(1, len(seconds)),
        "percent_of_time": 100 * sum(seconds) / total,
    }


def loader_speed(job: Job, workers: int, images: int) -> float:
    """Images per second, ready for the encoder, once the workers are up."""
    indices = [i % len(job.stream) for i in range(images + 50)]
    samples = load_images(job.stream, job.vlm.preprocess, indices, workers)
    for _ in range(50):
        next(samples)
    start = time.perf_counter()
    count = sum(1 for _ in samples)
    return count / (time.perf_counter() - start)


@torch.no_grad()
def encoder_speed(job: Job, images: int) -> dict[str, float]:
    """Images per second, one by one, of the plain tower and of the condensing one."""
    (sample,) = load_images(job.stream, job.vlm.preprocess, [0], workers=0)
    pixels = to_pixels(torch.from_numpy(sample.pixels), job.vlm)
    speeds = {}
    for name, condensation in (("plain", PLAIN), (f"R={job.settings.condensation.R:g}", job.settings.condensation)):
        encode(job.vlm.vision, pixels, condensation)
        start = time.perf_counter()
        for _ in range(images):
            encode(job.vlm.vision, pixels, condensation)
        speeds[name] = images / (time.perf_counter() - start)
    return speeds


def grid(spec: RunSpec, job: Job, place: Path, seeds: int) -> dict[str, Any]:
    """Zero-shot and TCA over some seeds, with and without the cache."""
    wishes = {k: v for k, v in vars(spec).items() if v is not None}
    specs = grid_runs({**wishes, "method": ["zeroshot", "tca"], "seed": list(range(seeds))})
    seconds, found = {}, {}
    for name, cache in (("without", False), ("with", place / "cache")):
        start = time.perf_counter()
        found[name] = [run_one(one, place / name, quiet=True, cache=cache, vlm=job.vlm) for one in specs]
        seconds[name] = time.perf_counter() - start
    same = [a["metrics"] == b["metrics"] for a, b in zip(found["without"], found["with"], strict=True) if a and b]
    size = sum(path.stat().st_size for path in (place / "cache").rglob("*.safetensors"))
    return {
        "runs": len(specs),
        "images": len(job.stream),
        "seconds_without_cache": seconds["without"],
        "seconds_with_cache": seconds["with"],
        "times_faster": seconds["without"] / seconds["with"],
        "runs_that_differ": same.count(False),
        "cache_mb": size / 2**20,
    }


def main() -> None:
    """Measure, print, and write where told."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--dataset")
    parser.add_argument("--root")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output")
    args = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="lessmore-harness-"))
    try:
        dataset = args.dataset or draw(place / "drawn", args.images)
        spec = RunSpec(args.model, dataset, root=args.root, limit=args.images, device="cpu")
        job = prepare_job(spec)
        result: dict[str, Any] = {"model": Path(args.model).name, "dataset": job.stream.dataset.name}
        result |= {"cores": os.cpu_count(), "threads": torch.get_num_threads()}
        show("kill and resume", result, kills(spec, job, place, args.kills))
        show("checkpoints", result, checkpoints(spec, job, place))
        speeds = {f"{n} workers": loader_speed(job, n, 10 * args.images) for n in (0, 1, 2)}
        show("loader, images per second", result, speeds)
        show("encoder, images per second", result, encoder_speed(job, max(20, args.images // 4)))
        show("grid", result, grid(spec, job, place, args.seeds))
    finally:
        shutil.rmtree(place)
    if args.output:
        Path(args.output).write_text(json.dumps(result, indent=1) + "\n")


def show(name: str, result: dict[str, Any], found: dict[str, Any]) -> None:
    """Print one part and keep it."""
    result[name] = found
    rounded = {k: round(v, 3) if isinstance(v, float) else v for k, v in found.items()}
    print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in rounded.items()), flush=True)


if __name__ == "__main__":
    main()
