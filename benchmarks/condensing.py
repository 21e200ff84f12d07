"""What condensation alone costs in accuracy: from `fixed` to `default` step by step, beside EViT and ToMe.

    python benchmarks/condensing.py --model tiny tiny-siglip --output benchmarks/results/condensing.json
    python benchmarks/condensing.py --model DIR --root DATA --dataset eurosat --corruption none contrast:2 --device cuda
    python benchmarks/condensing.py --tables

Zero-shot on condensed images, in points over the same model with all tokens (R = 1) on the same images.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from labelfree_streams import data_set, world_set
from labelfree_tables import signed
from torch import Tensor
from tqdm import tqdm

import lessmore
from lessmore.config import Condensation, preset
from lessmore.core.condense.registry import resolve_reducer
from lessmore.core.costs import costs
from lessmore.core.encoder import PLAIN, encode
from lessmore.models.vlm import VLM
from lessmore.storage.files import write_json

SHIFTS = ["none", "background:3", "contrast:3", "snow:3", "brightness:3", "noise:3", "blur:3", "sketch:3"]
RESULTS = Path(__file__).parent / "results" / "condensing.json"


def variants(R: float) -> dict[str, Condensation]:
    """One change after the other; then what each of them is worth by being left out."""
    fixed = replace(preset("fixed").condensation, R=R)
    ours = replace(preset("default").condensation, R=R)
    merged = replace(fixed, merge_prune=(1, 0))
    sized = replace(merged, proportional=True)
    return {
        "`fixed`": fixed,
        "… nothing pruned": merged,
        "… and sizes count": sized,
        "… and exact counts, K = 4": replace(sized, counts="exact", K=4),
        "… and late blocks: `default`": ours,
        "`default`, sizes do not count": replace(ours, proportional=False),
        "`default`, 2 : 1 pruned": replace(ours, merge_prune=(2, 1)),
        "`default`, K = 2": replace(ours, K=2),
        "EViT": resolve_reducer("evit", fixed),
        "ToMe": resolve_reducer("tome", fixed),
    }


@torch.no_grad()
def right(vlm: VLM, batches: list[Tensor], config: Condensation, found: dict[str, Any]) -> float:
    """Accuracy in percent."""
    features = torch.cat([encode(vlm.vision, pixels.to(vlm.device), config).feature.cpu() for pixels in batches])
    answers = (features @ torch.tensor(found["text"]).T).argmax(dim=1).numpy()
    return 100 * float((answers == found["labels"]).mean())


def measure(model: str, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One row per data set, R and variant: share of the plain cost, and points over R = 1 under each condition."""
    vlm = lessmore.load(model).to(args.device)
    args.model = model
    for name in args.dataset:
        label, found, batches = (world_set if name == "world" else data_set)(vlm, name, args)
        rows = {(R, v): dict[str, float]() for R in args.R for v in variants(R)}
        for condition in tqdm(args.corruption, desc=label):
            pixels = list(batches(condition))
            whole = right(vlm, pixels, PLAIN, found)
            for (R, v), row in rows.items():
                row[condition] = right(vlm, pixels, variants(R)[v], found) - whole
        plain = costs(vlm.vision.shape, PLAIN).macs
        for (R, v), row in rows.items():
            share = costs(vlm.vision.shape, variants(R)[v]).macs / plain
            yield {"set": label, "images": len(found["labels"]), "R": R, "variant": v, "cost": share, "points": row}


def tables(rows: list[dict[str, Any]]) -> str:
    """Markdown: a table per R; mean over conditions (worst), and the share of the plain cost."""
    lines = []
    sets = list(dict.fromkeys(row["set"] for row in rows))
    for R in dict.fromkeys(row["R"] for row in rows):
        lines += [f"\n| R = {R} | {' | '.join(f'{s} | cost' for s in sets)} |", "|---|" + "---|" * 2 * len(sets)]
        for v in dict.fromkeys(row["variant"] for row in rows):
            mine = [next(r for r in rows if (r["set"], r["R"], r["variant"]) == (s, R, v)) for s in sets]
            points = [list(r["points"].values()) for r in mine]
            cells = [
                f"{signed(float(np.mean(p)))} ({signed(min(p))}) | {r['cost']:.2f}"
                for r, p in zip(mine, points, strict=True)
            ]
            lines.append(f"| {v} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, or print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=["tiny", "tiny-siglip"])
    parser.add_argument("--root")
    parser.add_argument("--dataset", nargs="+", default=["world"])
    parser.add_argument("--corruption", nargs="+", default=SHIFTS)
    parser.add_argument("--limit", type=int, default=500)
    parser.add_argument("--R", nargs="+", type=float, default=[0.9, 0.7])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--tables", action="store_true")
    args = parser.parse_args()
    args.other = False
    if not args.tables:
        rows = [row for model in args.model for row in measure(model, args)]
        write_json(args.output, {"schema": "lessmore.condensing/1", "rows": rows})
    print(tables(json.loads(args.output.read_text())["rows"]))


if __name__ == "__main__":
    main()
