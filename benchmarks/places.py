"""Where a condensed token should lie in a tower with rotary positions: what each choice costs.

    python benchmarks/places.py --train 120 --tower tower.safetensors --output benchmarks/results/places.json
    python benchmarks/places.py --table benchmarks/results/places.json

Nobody publishes a small tower with rotary positions, so one is made: the embedded `tiny` loses the positions of its
patches, gets rotary ones, and learns on the embedded world to give the features of the model it was. Everything is
seeded; `--tower` keeps the weights, and training goes on where they end. Measured on images that training did not draw:
the share of zero-shot answers that stay as they are without condensation, and the cosine with the plain feature.
Besides, the same cosine for towers of random weights in the shapes of EVA02-CLIP and PE-Core.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor
from tqdm import tqdm

import lessmore
from lessmore.assets import world
from lessmore.config import Condensation
from lessmore.core.condense.registry import resolve_reducer
from lessmore.core.encoder import PLAIN, encode
from lessmore.core.rope import Rope
from lessmore.core.vit import BlockShape, ViT, ViTShape
from lessmore.models.vlm import VLM
from lessmore.storage.files import replacing, write_json

PLACES = ("mean", "centre", "first")
TRAINING, TESTS, BATCH = 50_000_000, 90_000_000, 32
RANDOM = {
    "EVA02-B/16, random weights": ViTShape(
        BlockShape(768, 12, 12, 2048, "silu", 1e-6, gated=True, inner_norm=True),
        224, 16, 512, rope=Rope(0.0, 16 / 14), pre_norm=False, patch_bias=True,
    ),
    "PE-Core-S/16, random weights": ViTShape(
        BlockShape(384, 12, 6, 1536), 224, 16, 512, rope=Rope(1.0, 1.0, True), pool="map", pool_heads=8,
        norm_then_pool=True, projection_bias=True,
    ),
}  # fmt: skip


def reducers(R: float) -> dict[str, Condensation]:
    """What is compared, all at the same R."""
    ours = replace(lessmore.config.preset("default").condensation, R=R)
    base = Condensation(R=R)
    return {
        "default": ours,
        "fixed": base,
        "evit": resolve_reducer("evit", base),
        "tome": resolve_reducer("tome", base),
    }


def student(vlm: VLM) -> ViT:
    """The vision tower of `tiny` with rotary positions instead of its own; the class token keeps its."""
    old = vlm.vision
    vit = ViT(replace(old.shape, rope=Rope(0.0, 1.0, base=100.0)))
    vit.load_state_dict(old.state_dict())
    with torch.no_grad():
        vit.positions[1:] = 0
    return vit


def pictures(vlm: VLM, seed: int, images: int, classes: list[world.Combination]) -> tuple[Tensor, Tensor]:
    """Pixels [B, 3, S, S] as the model takes them, and labels [B]."""
    scene = world.world_sample(images, seed, classes)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (vlm.preprocess.mean, vlm.preprocess.std))
    return (world.draw_scene(scene)[0] - mean) / std, scene.index


def train(vlm: VLM, vit: ViT, steps: int, start: int) -> float:
    """Teach the tower the features of the model it was; returns the mean cosine of the last steps."""
    classes = world.trained_combinations()
    vit.requires_grad_(True)
    vit.positions.requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in vit.parameters() if p.requires_grad], lr=5e-4, weight_decay=0.0)
    told, bar = 0.0, tqdm(range(start, start + steps), desc="training")
    for step in bar:
        for group in optimizer.param_groups:
            group["lr"] = 5e-4 * min(1.0, (step - start + 1) / 20, (start + steps - step) / steps * 2)
        pixels, _ = pictures(vlm, TRAINING + step, BATCH, classes)
        with torch.no_grad():
            wanted = F.normalize(vlm.vision(pixels), dim=-1)
        cosine = (F.normalize(vit(pixels), dim=-1) * wanted).sum(dim=-1).mean()
        (1 - cosine).backward()
        torch.nn.utils.clip_grad_norm_(vit.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        told = 0.95 * told + 0.05 * float(cosine.detach())
        bar.set_postfix(cosine=f"{told:.3f}")
    vit.requires_grad_(False)
    return told


@torch.no_grad()
def compare(vit: ViT, batches: list[Tensor], text: Tensor | None, ratios: list[float]) -> list[dict[str, Any]]:
    """One row per R, reducer and place; text: class embeddings [C, E], where answers mean anything."""
    plain = torch.cat([encode(vit, pixels, PLAIN).feature for pixels in batches])
    rows = []
    for R in ratios:
        for name, config in reducers(R).items():
            for place in PLACES:
                chosen = replace(config, place=place)
                found = torch.cat([encode(vit, pixels, chosen).feature for pixels in batches])
                row = {"R": R, "reducer": name, "place": place, "loss": float((1 - (found * plain).sum(-1)).mean())}
                if text is not None:
                    same = (found @ text.T).argmax(-1) == (plain @ text.T).argmax(-1)
                    row |= {"same": float(same.float().mean()), "kept": same.tolist()}
                rows.append(row)
    return rows


@torch.no_grad()
def answers(vit: ViT, batches: list[Tensor], text: Tensor) -> Tensor:
    """Zero-shot answers [n] of a tower that condenses nothing."""
    return torch.cat([(vit(pixels) @ text.T).argmax(-1) for pixels in batches])


def paired(rows: list[dict[str, Any]]) -> None:
    """Each place's agreement against `mean`'s on the same images: points with a 95 % interval by resampling images."""
    dice = torch.Generator().manual_seed(0)
    for row in rows:
        if "kept" not in row:
            continue
        base = next(r for r in rows if (r["R"], r["reducer"], r["place"]) == (row["R"], row["reducer"], "mean"))
        gap = 100 * (torch.tensor(row["kept"], dtype=torch.float64) - torch.tensor(base["kept"], dtype=torch.float64))
        draws = gap[torch.randint(len(gap), (2000, len(gap)), generator=dice)].mean(dim=1)
        row["against_mean"] = [float(gap.mean()), *(float(draws.quantile(q)) for q in (0.025, 0.975))]
    for row in rows:
        row.pop("kept", None)


def random_tower(shape: ViTShape, seed: int = 0) -> ViT:
    """A tower whose attention is neither flat nor a single peak."""
    dice, vit = torch.Generator().manual_seed(seed), ViT(shape).eval().requires_grad_(False)
    for name, parameter in vit.named_parameters():
        noise = torch.randn(parameter.shape, generator=dice)
        if parameter.ndim > 1:
            parameter.copy_(noise * (2.0 if "qkv" in name else 1.0) * parameter[0].numel() ** -0.5)
        else:
            parameter.copy_(float(name.endswith("weight")) + 0.1 * noise)
    return vit


def measure(args: argparse.Namespace) -> None:
    """Train, measure, write."""
    torch.manual_seed(0)
    vlm = lessmore.load("tiny")
    vit, done, cosine = student(vlm), 0, 0.0
    if args.tower.is_file():
        stored = load_file(args.tower)
        done, cosine = int(stored.pop("steps")), float(stored.pop("cosine"))
        vit.load_state_dict(stored)
    if args.train > done:
        cosine = train(vlm, vit, args.train - done, done)
        facts = {"steps": torch.tensor(args.train), "cosine": torch.tensor(cosine)}
        with replacing(args.tower) as new:
            save_file({**vit.state_dict(), **facts}, new)
    classes = world.test_classes()
    text = vlm.classifier(world.world_class_names(classes), cache=False)
    sets = [pictures(vlm, TESTS + i, 50, classes) for i in range(args.images // 50)]
    batches, labels = [pixels for pixels, _ in sets], torch.cat([label for _, label in sets])
    right = [float((answers(tower, batches, text) == labels).float().mean()) for tower in (vlm.vision, vit)]
    rows = compare(vit, batches, text, args.R)
    paired(rows)
    found: dict[str, Any] = {
        "training": {"steps": max(args.train, done), "batch": BATCH, "cosine": cosine},
        "images": args.images,
        "accuracy": {"tiny": right[0], "with rotary positions": right[1]},
        "rows": {"tiny with rotary positions": rows},
    }
    for name, shape in RANDOM.items():
        noise = torch.randn(args.random, 3, 224, 224, generator=torch.Generator().manual_seed(1))
        smooth = F.interpolate(F.avg_pool2d(noise, 32), size=224, mode="bicubic") * 16 + 0.3 * noise
        found["rows"][name] = compare(random_tower(shape), [smooth], None, args.R)
    write_json(args.output, found)
    table(args.output)


def table(path: Path) -> None:
    """Markdown: agreement with the uncondensed tower where there are answers, else lost cosine in thousandths."""
    found = json.loads(path.read_text(encoding="utf-8"))
    print(f"accuracy: {found['accuracy']}, {found['images']} images, training: {found['training']}\n")
    print("| tower | reducer, R | " + " | ".join(f"`{place}`" for place in PLACES) + " |\n|---|---|---|---|---|")
    for tower, rows in found["rows"].items():
        for first in rows[:: len(PLACES)]:
            key = (first["R"], first["reducer"])
            cells = [_cell(row) for row in rows if (row["R"], row["reducer"]) == key]
            print(f"| {tower} | `{key[1]}`, {key[0]:g} | " + " | ".join(cells) + " |")


def _cell(row: dict[str, Any]) -> str:
    lost = f"{1000 * row['loss']:.2f}"
    if "same" not in row:
        return lost
    gap, low, high = row["against_mean"]
    against = "" if row["place"] == "mean" else f", {gap:+.1f} [{low:+.1f}, {high:+.1f}]"
    return f"{100 * row['same']:.1f} %{against} ({lost})"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=int, default=120, help="steps of training in all")
    parser.add_argument("--tower", type=Path, default=Path("tower.safetensors"), help="where the weights are kept")
    parser.add_argument("--images", type=int, default=500, help="test images")
    parser.add_argument("--random", type=int, default=4, help="images for the towers of random weights")
    parser.add_argument("--R", type=float, nargs="+", default=[0.9, 0.7])
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/places.json"))
    parser.add_argument("--table", type=Path, help="only print the table of a result file")
    args = parser.parse_args()
    table(args.table) if args.table else measure(args)


if __name__ == "__main__":
    main()
