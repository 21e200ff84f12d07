"""What the `fixed` preset brings on real photographs it was not chosen on: gain over matched zero-shot, three orders.

    python benchmarks/precision.py pack --model DIR --data DIR --output streams.safetensors
    python benchmarks/default_gain.py streams.safetensors --output benchmarks/results/default_gain.json

Matched zero-shot: same prompts, R = 1. The interval is a paired bootstrap over images, orders taken together.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from precision import difference, unpack
from torch import Tensor
from tqdm import tqdm

from lessmore.config import preset
from lessmore.core.encoder import encode
from lessmore.core.vit import ViT
from lessmore.methods import Setup, make_method


@torch.no_grad()
def adapted(vit: ViT, scale: float, pixels: Tensor, text: Tensor, R: float) -> Tensor:
    """Answers [T] of TCA over one order of a stream."""
    method = make_method("tca", Setup(vit, text, scale, preset("fixed", R=R)))
    return torch.stack([method.predict(image[None]).scores.argmax() for image in pixels])


def main() -> None:
    """Run every stream in three orders at R = 0.9, print and write the table as it grows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--orders", type=int, default=3)
    parser.add_argument("--R", type=float, default=0.9)
    parser.add_argument("--output", default="benchmarks/results/default_gain.json")
    args = parser.parse_args()
    vit, scale, streams = unpack(args.file)
    print("| stream | images × orders | matched zero-shot | TCA, fixed | gain, 95 % interval |")
    print("|---|---|---|---|---|")
    rows = []
    for name, stream in streams.items():
        pixels, labels, text = stream["pixels"][: args.images], stream["labels"][: args.images], stream["text"].float()
        with torch.no_grad():
            features = torch.cat([encode(vit, batch).feature for batch in pixels.split(50)])
        plain = (features @ text.T).argmax(dim=1) == labels
        right, base = [], []
        for seed in tqdm(range(args.orders), desc=name, leave=False):
            order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(seed))
            right.append(adapted(vit, scale, pixels[order], text, args.R) == labels[order])
            base.append(plain[order])
        after, before = torch.cat(right), torch.cat(base)
        mean, low, high = difference(after, before)
        rows.append(
            {
                "stream": name,
                "images": len(pixels),
                "orders": args.orders,
                "R": args.R,
                "zero_shot": 100 * float(before.float().mean()),
                "tca": 100 * float(after.float().mean()),
                "gain": [mean, low, high],
            }
        )
        print(
            f"| {name} | {len(pixels)} × {args.orders} | {rows[-1]['zero_shot']:.2f} | {rows[-1]['tca']:.2f} "
            f"| {mean:+.2f} [{low:+.2f}, {high:+.2f}] |",
            flush=True,
        )
        Path(args.output).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
