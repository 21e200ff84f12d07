"""Encodings of images, made once, for the benchmarks of what is said beside an answer: calibration, unknown, tracks.

    python benchmarks/answers_encode.py --model MODEL --root DATA --dataset eurosat --corruption none contrast:2 \
        --limit 300 --output FOLDER
    python benchmarks/answers_encode.py --model tiny --dataset world --corruption none noise:3 --views 12 \
        --output FOLDER

One npz file per data set and condition: tokens [n, L, D] and feature [n, E] of preset `default`, the feature of matched
zero-shot (R = 1) [n, E], labels [n], class embeddings [C, E] and names, the logits' scale. With `--views` every image
is looked at several times, as a camera would: moved, zoomed, lit otherwise, blurred; `track` [n] tells the views of one
image from those of others. `--garbage` makes pictures of noise instead of photographs.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from labelfree_streams import data_set, world_set
from torch import Tensor

import lessmore
from lessmore.core.encoder import PLAIN, encode
from lessmore.methods.resolve import resolve
from lessmore.models.vlm import VLM

BATCH = 25


def jittered(pixels: Tensor, views: int, dice: torch.Generator) -> Tensor:
    """Views of preprocessed images [B, 3, S, S], [B·views, 3, S, S].

    Every view shows 80 to 100 % of the image's side from another place, up to a seventh brighter or darker, with more
    or less contrast, and at times blurred.
    """
    frames = pixels.repeat_interleave(views, dim=0)
    u = torch.rand(len(frames), 6, generator=dice)
    zoom = 0.8 + 0.2 * u[:, 0]
    theta = torch.zeros(len(frames), 2, 3)
    theta[:, 0, 0] = theta[:, 1, 1] = zoom
    theta[:, :, 2] = (1 - zoom)[:, None] * (2 * u[:, 1:3] - 1)
    seen = F.grid_sample(frames, F.affine_grid(theta, list(frames.shape), align_corners=False), align_corners=False)
    blurred = F.avg_pool2d(F.pad(seen, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    seen = torch.where((u[:, 5] > 0.8)[:, None, None, None], blurred, seen)
    mean = seen.mean(dim=(1, 2, 3), keepdim=True)
    contrast, light = 0.8 + 0.4 * u[:, 3], u[:, 4] - 0.5
    changed: Tensor = mean + (seen - mean) * contrast[:, None, None, None] + light[:, None, None, None]
    return changed


@torch.no_grad()
def encoded(vlm: VLM, batches: Iterator[Tensor], views: int) -> dict[str, Any]:
    """Encodings of pixels [B, 3, H, W] under preset `default`, and features of the whole model."""
    config, dice = resolve("tca", "default", None, "auto", {}, vlm.vision.shape).preset.condensation, torch.Generator()
    dice.manual_seed(0)
    found: dict[str, list[Tensor]] = {"tokens": [], "feature": [], "plain": []}
    for images in batches:
        for pixels in jittered(images, views, dice).split(BATCH) if views else images.split(BATCH):
            condensed = encode(vlm.vision, pixels, config)
            found["tokens"].append(condensed.tokens)
            found["feature"].append(condensed.feature)
            found["plain"].append(encode(vlm.vision, pixels, PLAIN).feature)
    return {name: torch.cat(parts).numpy() for name, parts in found.items()}


def noise(count: int, side: int) -> Iterator[Tensor]:
    """Pictures of nothing: white noise, smooth noise and plain colours, a third of each."""
    dice = torch.Generator().manual_seed(0)
    white = torch.randn(count // 3, 3, side, side, generator=dice)
    coarse = torch.randn(count // 3, 3, 7, 7, generator=dice)
    smooth = 1.5 * F.interpolate(coarse, size=(side, side), mode="bicubic")
    plain = 1.5 * torch.randn(count // 3, 3, 1, 1, generator=dice).expand(-1, -1, side, side)
    yield from torch.cat([white, smooth, plain]).split(BATCH)


def main() -> None:
    """Encode what is asked for; a file that is there already is left alone."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--dataset", nargs="+", required=True)
    parser.add_argument("--root", type=Path)
    parser.add_argument("--corruption", nargs="+", default=["none"])
    parser.add_argument("--limit", type=int, default=300, help="images of a data set")
    parser.add_argument("--views", type=int, default=0, help="jittered views of each image")
    parser.add_argument("--garbage", type=int, default=0, help="pictures of noise, besides")
    parser.add_argument("--other", action="store_true", help="other images than without")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    vlm = lessmore.load(args.model)
    args.output.mkdir(parents=True, exist_ok=True)
    model = Path(args.model).name
    garbage = args.output / f"{model}.noise.none.npz"
    if args.garbage and not garbage.exists():
        np.savez(garbage, **encoded(vlm, noise(args.garbage, vlm.vision.shape.image_size), 0))
    for name in args.dataset:
        _, common, batches = (world_set if name == "world" else data_set)(vlm, name, args)
        for condition in args.corruption:
            suffix = f".views{args.views}" if args.views else ""
            file = args.output / f"{model}.{name}.{condition.replace(':', '-')}{suffix}.npz"
            if file.exists():
                continue
            found = common | encoded(vlm, batches(condition), args.views)
            track = np.repeat(np.arange(len(common["labels"])), max(1, args.views))
            found |= {"labels": common["labels"][track], "track": track}
            np.savez(file, **found)
            logits = found["plain"] @ found["text"].T
            print(f"{file.name}: zero-shot {100 * (logits.argmax(1) == found['labels']).mean():.1f}", flush=True)


if __name__ == "__main__":
    main()
