"""What a step costs on a CPU: our plain tower, other libraries' own, and TCA, in every CPU engine, interleaved.

    python benchmarks/cpu.py --threads 2 --rounds 40 --output benchmarks/results/cpu.json

Towers of ViT-B/16 shape (CLIP and SigLIP) with random weights, float32, one image at a time. Every figure is a median
over rounds in which all contenders take turns; ratios are taken round by round, with a 95 % interval.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from lessmore.cli.bench import PLAIN, BenchContender, setup_of, tower
from lessmore.engines import cpu
from lessmore.lab.latency import Times, interleaved, time_ratio
from lessmore.lab.provenance import environment
from lessmore.methods import make_method

MODELS = ("ViT-B-16", "ViT-B-16-SigLIP")
CONTENDERS = (
    BenchContender(PLAIN, "zeroshot", "none", 1.0),
    BenchContender("TCA, R = 0.9", "tca", "tca", 0.9),
    BenchContender("TCA, R = 0.7", "tca", "tca", 0.7),
)
ENGINES = {"eager": make_method, "cpu": cpu.build_cpu, "cpu, bfloat16": partial(cpu.build_cpu, bfloat16=True)}
TARGETS = {"TCA, R = 0.9": 0.93, "TCA, R = 0.7": 0.75}
PEER_TARGET = 1.03
Step = Callable[[], object]


def peers(model: str, image: Tensor, text: Tensor) -> dict[str, Step]:
    """The same image through other libraries' own towers, to class probabilities."""

    def answer(encode: Callable[[Tensor], Tensor]) -> Tensor:
        return (100 * F.normalize(encode(image), dim=-1) @ text.T).softmax(dim=-1)

    return {f"{library} itself": partial(answer, encode) for library, encode in _peer_towers(model).items()}


def _peer_towers(model: str) -> dict[str, Callable[[Tensor], Tensor]]:
    import open_clip
    import transformers

    theirs = open_clip.create_model(model, force_quick_gelu="SigLIP" not in model, pretrained_hf=False)
    if "SigLIP" in model:
        config = transformers.SiglipVisionConfig(image_size=224, patch_size=16)
        hf = transformers.SiglipVisionModel(config).eval().requires_grad_(False)
        return {"open_clip": _frozen(theirs).encode_image, "transformers": lambda x: hf(x).pooler_output}
    config = transformers.CLIPVisionConfig(image_size=224, patch_size=16)
    hf = transformers.CLIPVisionModelWithProjection(config).eval().requires_grad_(False)
    return {"open_clip": _frozen(theirs).encode_image, "transformers": lambda x: hf(x).image_embeds}


def _frozen(model: Any) -> Any:
    return model.eval().requires_grad_(False)


def steps_of(model: str, classes: int, preset: str, with_peers: bool) -> dict[str, Step]:
    """Every contender's step, by `engine: name`."""
    vision, _ = tower(model)
    side = vision.shape.image_size
    image = torch.randn(1, 3, side, side, generator=torch.Generator().manual_seed(0))
    steps: dict[str, Step] = {}
    for contender in CONTENDERS:
        setup = setup_of(vision, classes, contender, preset)
        for engine, build in ENGINES.items():
            if "bfloat16" not in engine or cpu.has_bfloat16():
                steps[f"{engine}: {contender.name}"] = partial(build(contender.method, setup).predict, image)
    return steps | (peers(model, image, setup.text) if with_peers else {})


@torch.no_grad()
def contest(model: str, classes: int, preset: str, with_peers: bool, rounds: int) -> list[dict[str, Any]]:
    """Rows of one model and number of classes."""
    steps = steps_of(model, classes, preset, with_peers)
    times: Times = {}
    for times in tqdm(interleaved(steps, rounds), total=rounds, desc=f"{model}, {classes} classes"):  # noqa: B007
        pass
    return [_row(key, times) for key in steps]


def _row(key: str, times: Times) -> dict[str, Any]:
    engine, _, name = key.partition(": ")
    own = times.get(f"{engine}: {PLAIN}", times[key])
    compared = {"of_own_plain": own, "of_eager_plain": times[f"eager: {PLAIN}"], "of_cpu_plain": times[f"cpu: {PLAIN}"]}
    figures = {what: list(time_ratio(times[key], base)) for what, base in compared.items()}
    return {"key": key, "name": name, "engine": engine, "ms": 1000 * statistics.median(times[key]), **figures}


def show(rows: list[dict[str, Any]]) -> None:
    """The table, and how far the targets are met."""
    print(f"  {'':<34}{'ms':>9}{'of own plain':>24}{'of eager plain':>24}{'of cpu plain':>24}")
    for row in rows:
        spans = "".join(
            f"{'{:.3f} ({:.3f}–{:.3f})'.format(*row[what]):>24}"
            for what in ("of_own_plain", "of_eager_plain", "of_cpu_plain")
        )
        print(f"  {row['key']:<34}{row['ms']:9.2f}{spans}")
    for row in rows:
        if row["engine"] == "cpu" and row["name"] in TARGETS:
            print(f"  {row['key']}: {row['of_own_plain'][0]:.3f} of plain, target ≤ {TARGETS[row['name']]}")
        if row["key"].endswith("itself"):
            ours = 1 / row["of_cpu_plain"][0]
            print(f"  our plain, engine cpu: {ours:.3f} of {row['key']}, target ≤ {PEER_TARGET}")


def main() -> None:
    """Measure, print, and write where told."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--classes", nargs="+", type=int, default=[102, 1000])
    parser.add_argument("--preset", default="default")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    result: dict[str, Any] = {"environment": environment(torch.device("cpu")), "rounds": args.rounds, "contests": []}
    for model in args.models:
        for classes in args.classes:
            rows = contest(model, classes, args.preset, classes == args.classes[0], args.rounds)
            print(f"{model}, {classes} classes, preset {args.preset}, float32, {args.threads} threads")
            show(rows)
            result["contests"].append({"model": model, "classes": classes, "preset": args.preset, "rows": rows})
    if args.output:
        args.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
