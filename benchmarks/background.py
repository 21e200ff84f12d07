"""Of the tokens that are pruned or merged, how many show background? TCA against EViT and against chance.

    python benchmarks/background.py --output benchmarks/results/background.json

The embedded world knows where its objects are. A patch counts as background if none of its pixels belongs to the
object. Chance is the share of background among the patches that are still there when a block chooses.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

import lessmore
from lessmore.assets import MODELS, shifts, world
from lessmore.core.condense.source import GONE, MERGED, PRUNED

SEED = 52_000
STREAMS = (("clean", 0), ("background", 3), ("contrast", 2), ("noise", 3), ("sketch", 2))
CONTENDERS: dict[str, dict[str, Any]] = {
    "EViT": {"method": "zeroshot", "reducer": "evit"},
    "TCA, fixed": {"preset": "fixed"},
    "TCA, anchor row": {"preset": "fixed", "rows": "both"},
}


def background_patches(masks: Tensor, patch: int) -> Tensor:
    """Object masks [B, H, W] → [B, n] bool, True where a patch holds no object pixel."""
    tiles = masks.unfold(1, patch, patch).unfold(2, patch, patch)
    return ~tiles.flatten(3).any(dim=3).flatten(1)


def shares(traces: list[Tensor], empty: Tensor) -> list[dict[str, float]]:
    """Per condensing block: background among pruned, merged and all remaining patches, over all images."""
    fate = torch.cat(traces)  # [T, S, n]
    rows = []
    for s in range(fate.shape[1]):
        at, alive = fate[:, s], fate[:, s] != GONE
        row = {
            name: 100 * float(empty[at == code].float().mean())
            for name, code in (("pruned", PRUNED), ("merged", MERGED))
        }
        rows.append({**row, "chance": 100 * float(empty[alive].float().mean())})
    return rows


def measure(model: str, kind: str, severity: int, images: int, R: float) -> list[dict[str, Any]]:
    """All contenders on one stream."""
    vlm = lessmore.load(model)
    classes = world.test_classes(48)
    scene = world.world_sample(images, SEED, classes)
    drawn, masks = shifts.draw_shifted(scene, kind, severity)
    empty = background_patches(masks, vlm.vision.shape.patch)
    out = []
    for name, options in CONTENDERS.items():
        adapter = lessmore.adapt(vlm, world.world_class_names(classes), R=R, **options)
        traces = []
        for image in tqdm((drawn - 0.5) / 0.5, desc=f"{model} {kind} {name}", leave=False):
            trace = adapter(image, trace=True).trace
            assert trace is not None
            traces.append(trace.fate)
        for block, row in zip(trace.blocks, shares(traces, empty), strict=True):
            out.append({"model": model, "stream": f"{kind} {severity}", "method": name, "block": block, **row})
    return out


def main() -> None:
    """Measure, print the means over streams, write all rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--R", type=float, default=0.7)
    parser.add_argument("--output", default="benchmarks/results/background.json")
    args = parser.parse_args()
    rows = [row for m in MODELS for k, s in STREAMS for row in measure(m, k, s, args.images, args.R)]
    Path(args.output).write_text(json.dumps({"images": args.images, "R": args.R, "rows": rows}, indent=1) + "\n")
    print("| model | method | block | background among pruned | among merged | chance |\n|---|---|---|---|---|---|")
    for model in MODELS:
        for name in CONTENDERS:
            for block in sorted({row["block"] for row in rows}):
                same = [r for r in rows if (r["model"], r["method"], r["block"]) == (model, name, block)]
                mean = {key: sum(r[key] for r in same) / len(same) for key in ("pruned", "merged", "chance")}
                merged = "–" if mean["merged"] != mean["merged"] else f"{mean['merged']:.1f} %"
                print(f"| {model} | {name} | {block} | {mean['pruned']:.1f} % | {merged} | {mean['chance']:.1f} % |")


if __name__ == "__main__":
    main()
