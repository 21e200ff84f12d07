"""Do all runs of some tables on one machine with a GPU, each part where it is fast; the tables follow with --collect.

    python benchmarks/measure.py options budget --model MODEL --root DATA --dataset eurosat --limit 600 --output OUT
    lessmore reproduce options budget --model MODEL --root DATA --dataset eurosat --limit 600 --output OUT --collect

Left to itself a run encodes images one by one on its own device, which is exact and slow. Here images are encoded in
batches on the GPU, into the cache of runs on the CPU, where methods that go on from encodings are quick; the encodings
differ from those by rounding, which now and then decides which of two nearly tied tokens goes; the largest difference
over a few images is printed. Methods that need the tower itself (views, gradients, anchors that guide the encoder) run
on the GPU meanwhile, a few at a time.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from lessmore.cli.run import line
from lessmore.config import Condensation
from lessmore.data.stream import Stream
from lessmore.encoder import PLAIN, Encoded, encode
from lessmore.eval.cache import Entry, Shards, cache_folder, effective
from lessmore.eval.job import Job, open_model, prepare
from lessmore.eval.loader import Loaded, load_one
from lessmore.eval.spec import RunSpec
from lessmore.eval.sweep_local import run_locally
from lessmore.reproduce.plan import Shelf, Wishes, distinct, plan
from lessmore.reproduce.tables import find
from lessmore.vit import ViT
from lessmore.vlm import VLM, Transform

SLOW = ("mta", "zero", "tpt", "c-tpt", "sar", "tent", "tca")
"""In the order in which they run, so that what is cut off is whole rows."""
CHECKED = 4
"""Images of every stream and condensation that are encoded alone, too."""
_here: tuple[Stream, Transform]


def wanted(specs: list[RunSpec], vlm: VLM) -> dict[str, tuple[Job, set[Condensation]]]:
    """Streams by name, each with the condensations its images are needed under."""
    jobs: dict[str, Job] = {}
    kinds: dict[str, set[Condensation]] = defaultdict(lambda: {PLAIN})
    datasets = {spec.dataset: prepare(spec, vlm).stream.dataset for spec in specs}
    for spec in tqdm(specs, unit="run"):
        name = f"{spec.dataset} {spec.corruption or ''}"
        if name not in jobs:
            jobs[name] = prepare(spec, vlm, datasets[spec.dataset])
        if on_cpu(spec):
            kinds[name].add(effective(spec.settings().condensation))
    return {name: (job, kinds[name]) for name, job in jobs.items()}


def on_cpu(spec: RunSpec) -> bool:
    """Whether the method goes on from encodings."""
    guided = effective(spec.settings().condensation).uses_anchor
    return spec.method in ("zeroshot", "tda") or (spec.method == "tca" and not guided)


def begin(stream: Stream, preprocess: Transform) -> None:
    """What a loading process holds."""
    global _here
    _here = stream, preprocess
    torch.set_num_threads(1)


def one(i: int) -> Loaded:
    """Sample `i`, decoded, corrupted and preprocessed."""
    return load_one(*_here, i)


def batches(job: Job, size: int, processes: int) -> Iterator[tuple[list[str], Tensor]]:
    """Names and pixels [B, 3, H, W] of all images of a stream that can be read."""
    context = get_context("fork")
    with ProcessPoolExecutor(processes, context, begin, (job.stream, job.vlm.preprocess)) as pool:
        good = [x for x in pool.map(one, range(len(job.stream)), chunksize=10) if x.pixels is not None]
    for start in range(0, len(good), size):
        part = good[start : start + size]
        yield [job.stream.id(x.i) for x in part], torch.from_numpy(np.stack([x.pixels for x in part]))  # type: ignore[arg-type,misc]


def entries(vision: ViT, pixels: Tensor, config: Condensation) -> list[Entry]:
    """Encodings of a batch, image by image, on the CPU."""
    feature, tokens, steps = encode(vision, pixels, config)
    kept = steps[-1].target.flatten(1).amax(1) + 1 + vision.shape.class_token if steps else None
    return [
        Entry(
            Encoded(feature[i : i + 1].cpu(), tokens[i : i + 1].cpu(), []),
            vision.shape.tokens if kept is None else int(kept[i]),
        )
        for i in range(len(pixels))
    ]


def fill(job: Job, kinds: set[Condensation], vision: ViT, args: argparse.Namespace) -> float:
    """Put every encoding of a stream into the cache; returns the largest difference to one by one."""
    shelves = {config: Shards(cache_folder(True, job.sight, config), tokens=True) for config in kinds}
    worst = 0.0
    for number, (names, pixels) in enumerate(batches(job, args.batch, args.processes[0])):
        there = pixels.to(vision.positions)
        for config, shards in shelves.items():
            made = entries(vision, there, config)
            for name, entry in zip(names, made, strict=True):
                shards.put(name, entry)
            for i in range(CHECKED if number == 0 else 0):
                (alone,) = entries(vision, there[i : i + 1], config)
                both = zip(made[i].encoded[:2], alone.encoded[:2], strict=True)
                worst = max(worst, *(float((a - b).abs().max() / b.abs().max()) for a, b in both))
    for shards in shelves.values():
        shards.flush()
    return worst


def run(specs: list[RunSpec], output: Path, processes: int) -> None:
    """Do the runs and say what came of each."""
    for done in run_locally(specs, output, processes, threads=1):
        print(done.error or line(done.summary), flush=True)  # type: ignore[arg-type]


@torch.no_grad()
def main() -> None:
    """Plan as `lessmore reproduce` does, encode, and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+")
    parser.add_argument("--model", required=True)
    parser.add_argument("--root", required=True)
    parser.add_argument("--dataset", nargs="+", required=True)
    parser.add_argument("--corruption", nargs="+", default=["none"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--limit", type=int)
    parser.add_argument("--output", required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--processes", type=int, nargs=2, default=[8, 4], help="on the CPU and on the GPU")
    args = parser.parse_args()
    common = {"root": args.root, "limit": args.limit, "preset": "fixed", "device": "cpu"}
    corruptions = tuple(None if name == "none" else name for name in args.corruption)
    wishes = Wishes(args.model, tuple(args.dataset), corruptions, tuple(args.seeds), common=common)
    shelf = Shelf(Path(args.root))
    specs = list(distinct(plan(find(name), wishes, shelf) for name in args.tables).values())
    slow = [replace(spec, device=args.device) for spec in specs if not on_cpu(spec)]
    slow.sort(key=lambda spec: (SLOW.index(spec.method), spec.preset == "fixed", str(spec.options)))
    gpu = get_context("spawn").Process(target=run, args=(slow, Path(args.output) / "runs", args.processes[1]))
    gpu.start()
    vlm = open_model(specs[0])
    vision = open_model(replace(specs[0], device=args.device)).vision
    for name, (job, kinds) in wanted(specs, vlm).items():
        worst = fill(job, kinds, vision, args)
        print(f"{name}: {len(job.stream)} images, {len(kinds)} condensations, off by {worst:.1e} at most", flush=True)
    run([spec for spec in specs if on_cpu(spec)], Path(args.output) / "runs", args.processes[0])
    gpu.join()


if __name__ == "__main__":
    main()
