"""What a step costs in time: plain zero-shot, EViT and TCA on one model, interleaved, as a ratio to plain.

    python benchmarks/speed.py --model ViT-B-16 --classes 100 --device cpu

Shapes known by name get random weights; speed does not depend on their values. Medians of interleaved single images.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
import torch.nn.functional as F
from tqdm import tqdm

import lessmore
from lessmore.assets import MODELS
from lessmore.condense.registry import reducer
from lessmore.config import preset
from lessmore.methods import Method, Setup, make
from lessmore.shapes import SHAPES
from lessmore.vit import ViT

CONTENDERS = (
    ("plain", "zeroshot", "none", 1.0),
    ("EViT, R = 0.9", "zeroshot", "evit", 0.9),
    ("TCA, R = 0.9", "tca", "tca", 0.9),
    ("TCA, R = 0.7", "tca", "tca", 0.7),
)


def tower(name: str) -> ViT:
    """The vision tower of an embedded model, or a random one of a known shape."""
    if name in MODELS:
        return lessmore.load(name).vision
    return ViT(SHAPES[name][0]).eval().requires_grad_(False)


def contender(vit: ViT, classes: int, method: str, reduce: str, R: float) -> Method:
    """A method on random class embeddings."""
    generator = torch.Generator().manual_seed(0)
    text = F.normalize(torch.randn(classes, vit.shape.embed, generator=generator), dim=-1).to(vit.positions)
    chosen = preset("default", R=R)
    return make(method, Setup(vit, text, 100.0, chosen._replace(condensation=reducer(reduce, chosen.condensation))))


@torch.no_grad()
def timed(method: Method, image: torch.Tensor) -> float:
    """Seconds of one step, the device drained before and after."""
    wait = torch.cuda.synchronize if image.is_cuda else (lambda: None)
    wait()
    start = time.perf_counter()
    method.predict(image)
    wait()
    return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=[*MODELS, *SHAPES], default="ViT-B-16")
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--images", type=int, default=40)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=["float32", "float16", "bfloat16"], default="float32")
    args = parser.parse_args()
    vit = tower(args.model).to(args.device, getattr(torch, args.dtype))
    methods = {name: contender(vit, args.classes, *rest) for name, *rest in CONTENDERS}
    images = torch.randn(args.images + 5, 1, 3, vit.shape.image_size, vit.shape.image_size).to(vit.positions)
    times: dict[str, list[float]] = {name: [] for name in methods}
    for i, image in enumerate(tqdm(images, desc=args.model)):
        for name, method in methods.items():
            seconds = timed(method, image)
            if i >= 5:
                times[name].append(seconds)
    plain = statistics.median(times["plain"])
    print(f"{args.model}, {args.classes} classes, {args.device} {args.dtype}, {torch.get_num_threads()} threads, eager")
    for name, values in times.items():
        middle = statistics.median(values)
        print(f"  {name:<16}{1000 * middle:9.2f} ms   {middle / plain:5.2f} of plain")


if __name__ == "__main__":
    main()
