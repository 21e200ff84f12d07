"""Choose λ, β and b of the `fixed` preset: on the embedded models, on shifts and seeds kept apart for choosing.

    python tools/choose_default.py

The reservoir and the encoder do not depend on λ, β, b, the kernel or the order, so every stream is encoded once, with
the cosines of each sample to every entry and layer, and the grid is evaluated on those. The demo and the documents
report on other shifts and other seeds.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from lessmore import load
from lessmore.assets import shifts, world
from lessmore.config import LayerWeights, preset
from lessmore.core import reservoir
from lessmore.core.correction import layer_weights
from lessmore.core.encoder import encode
from lessmore.methods.zeroshot import zero_shot_logits

SHIFTS = (("clean", 0), ("contrast", 3), ("snow", 2), ("brightness", 3), ("snow", 3))
MODELS = ("tiny", "tiny-siglip")
SEED = 31_000
LAMBDAS = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0)
BETAS = (0.1, 0.3, 1.0, 5.0)
SHARPNESS = (2.0, 5.0, 8.0, 12.0)


class Recording(NamedTuple):
    """One stream of T images, encoded at R = 0.9."""

    name: str
    labels: Tensor
    """[T]"""
    plain: Tensor
    """Answers of matched zero-shot, R = 1, [T]."""
    logits: Tensor
    """[T, C]"""
    cosines: dict[str, Tensor]
    """By order of predicting and updating: to every entry and layer, [T, L, C, M]; NaN where a slot is empty."""


def cosines(tokens: Tensor, state: reservoir.Reservoir) -> Tensor:
    """cos(v^l, A_i^l) of a sample's tokens [L, D] with every entry, [L, C, M]; NaN where a slot is empty."""
    near = torch.einsum("ld,cmld->lcm", F.normalize(tokens, dim=-1), F.normalize(state.anchors, dim=-1))
    return near.masked_fill(state.ids < 0, torch.nan)


@torch.no_grad()
def record(model: str, kind: str, severity: int, seed: int, images: int, options: dict[str, Any]) -> Recording:
    """Stream one shift through the encoder and the reservoir."""
    vlm = load(model)
    classes = world.test_classes(48)
    text = vlm.classifier(world.world_class_names(classes))
    scene = world.world_sample(images, seed, classes)
    pixels = (shifts.draw_shifted(scene, kind, severity)[0] - 0.5) / 0.5
    chosen = preset("fixed", **options)
    condensation, adaptation = chosen.condensation, chosen.adaptation
    shape = vlm.vision.shape
    state = reservoir.empty_reservoir(
        len(text), adaptation.M, shape.blocks.depth, shape.blocks.width, vlm.dtype, vlm.device
    )
    plain = torch.cat([encode(vlm.vision, batch).feature @ text.T for batch in pixels.split(100)]).argmax(dim=1)
    logits, before, after = [], [], []
    for image in tqdm(pixels, desc=f"{model} {kind} {severity}", leave=False):
        encoded = encode(vlm.vision, image[None], condensation, reservoir.ready_anchors(state, adaptation.ready))
        logits.append(zero_shot_logits(encoded, text, vlm.logit_scale)[0])
        tokens = encoded.tokens[0]
        before.append(cosines(tokens, state))
        reservoir.store_(state, reservoir.propose(state, tokens, encoded.feature[0], logits[-1], adaptation))
        after.append(cosines(tokens, state))
    seen = {"predict_first": torch.stack(before), "update_first": torch.stack(after)}
    return Recording(f"{model} {kind} {severity}", scene.index, plain, torch.stack(logits), seen)


def gain(recording: Recording, order: str, over: str, rule: LayerWeights, lam: float, beta: float, b: float) -> float:
    """Accuracy after correction less that of matched zero-shot, in points."""
    near = recording.cosines[order]
    weights = layer_weights(near.shape[1], beta, rule, near)
    affinity = torch.einsum("l,tlcm->tcm", weights, near)
    score = torch.exp(-b * (1 - affinity)).nan_to_num(0)
    total = score.sum(dim=-1)
    if over == "mean":
        total = total / (~affinity.isnan()).sum(dim=-1).clamp_min(1)
    answers = (recording.logits + lam * total).argmax(dim=1)
    return 100 * float(
        (answers == recording.labels).float().mean() - (recording.plain == recording.labels).float().mean()
    )


def main() -> None:
    """Encode, sweep, print the best settings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--orders", type=int, default=3)
    parser.add_argument("--output", default="choose_default.json")
    parser.add_argument("--options", default="{}", help="fields of the preset to replace, as JSON")
    args = parser.parse_args()
    options = json.loads(args.options)
    torch.set_num_threads(1)
    plan = [
        (m, k, s, SEED + 100 * i + j) for m in MODELS for i, (k, s) in enumerate(SHIFTS) for j in range(args.orders)
    ]
    recordings = [record(m, k, s, seed, args.images, options) for m, k, s, seed in tqdm(plan, desc="streams")]
    rows: list[dict[str, Any]] = []
    grid = list(itertools.product(("predict_first", "update_first"), ("mean", "sum"), LAMBDAS, BETAS, SHARPNESS))
    for order, over, lam, beta, b in tqdm(grid, desc="grid"):
        gains = [gain(r, order, over, "linspace", lam, beta, b) for r in recordings]
        rows.append(
            {
                "order": order,
                "over": over,
                "lam": lam,
                "beta": beta,
                "sharpness": b,
                "mean": sum(gains) / len(gains),
                "worst": min(gains),
                "by_stream": {r.name: 0.0 for r in recordings},
            }
        )
        for r, g in zip(recordings, gains, strict=True):
            rows[-1]["by_stream"][r.name] += g / args.orders
    rows.sort(key=lambda row: -row["mean"])
    none = [gain(r, "predict_first", "mean", "linspace", 0.0, 1.0, 1.0) for r in recordings]
    print(f"condensation alone (lambda 0): mean {sum(none) / len(none):+.2f}, worst {min(none):+.2f}")
    for order in ("predict_first", "update_first"):
        for over in ("mean", "sum"):
            best = [row for row in rows if (row["order"], row["over"]) == (order, over)][:4]
            for row in best:
                print({k: v for k, v in row.items() if k != "by_stream"})
    Path(args.output).parent.mkdir(parents=True, exist_ok=True)
    facts = {
        "options": options,
        "images": args.images,
        "orders": args.orders,
        "seed": SEED,
        "condensation_alone": sum(none) / len(none),
    }
    Path(args.output).write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
