"""What becomes of a trained tiny model: its folder in transformers' format, its accuracies, a sheet of its images."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from PIL import Image
from torch import Tensor

from lessmore.assets import shifts, world
from lessmore.assets.words import Words

MEAN = STD = 0.5
EVAL_SEED = 90_001


def normalise(images: Tensor) -> Tensor:
    """[B, 3, S, S] in [0, 1] → what the towers read."""
    return (images - MEAN) / STD


def _features(output: Any) -> Tensor:
    """Unit features [B, E]: transformers 5 wraps in an output object what 4 gave as a tensor."""
    return F.normalize(output if isinstance(output, Tensor) else output.pooler_output, dim=-1)


@torch.inference_mode()
def class_weights(model: Any, classes: list[world.Combination], words: Words) -> Tensor:
    """Text features [C, E] of the full captions."""
    tokens = words([world.caption(*c) for c in classes]).to(model.device)
    return _features(model.get_text_features(input_ids=tokens))


@torch.inference_mode()
def correct(
    model: Any, weights: Tensor, scene: world.Scene, kind: str, strength: int | float, chunk: int = 400
) -> Tensor:
    """[n] bool, whether each image's nearest class is its own; `strength` is a severity (int) or a raw strength."""
    draw = shifts.draw_shifted if isinstance(strength, int) else shifts.draw_at
    hits = []
    for start in range(0, len(scene), chunk):
        part = scene[start : start + chunk]
        images, _ = draw(part, kind, strength, model.device)  # type: ignore[arg-type]
        features = _features(model.get_image_features(pixel_values=normalise(images)))
        hits.append((features @ weights.T).argmax(1).cpu() == part.index)
    return torch.cat(hits)


def evaluate(model: Any, words: Words, n: int, seed: int = EVAL_SEED) -> dict[str, Any]:
    """Accuracies in percent on the 48 test classes, clean and under every shift at every severity."""
    model.eval()
    classes = world.test_classes()
    weights = class_weights(model, classes, words)
    scene = world.world_sample(n, seed, classes)
    clean = correct(model, weights, scene, "clean", 0)
    unseen = scene.index % 2 == 0  # test_classes alternates unseen and trained combinations
    table = {
        kind: [_percent(correct(model, weights, scene, kind, severity)) for severity in range(1, 6)]
        for kind in shifts.KINDS
    }
    every = [value for row in table.values() for value in row]
    return {
        "images": n,
        "seed": seed,
        "classes": len(classes),
        "clean": _percent(clean),
        "clean_trained_combinations": _percent(clean[~unseen]),
        "clean_unseen_combinations": _percent(clean[unseen]),
        "shifted": table,
        "shifted_mean": round(sum(every) / len(every), 2),
    }


# From mild to drastic, in the units of shifts.STRENGTHS: where `calibrate` looks.
_SWEEPS = {
    "background": (0.1, 1.0),
    "contrast": (0.8, 0.02),
    "snow": (0.02, 0.8),
    "brightness": (0.05, 0.8),
    "noise": (0.02, 0.6),
    "blur": (0.4, 4.0),
    "sketch": (0.1, 1.0),
}
_TARGETS = (0.9, 0.77, 0.64, 0.51, 0.38)  # accuracy at severities 1 to 5 as a share of the clean one


def calibrate(model: Any, words: Words, n: int, seed: int = EVAL_SEED + 2) -> dict[str, Any]:
    """Accuracy along a sweep of every shift, and the strengths at which it would come nearest to the targets."""
    classes = world.test_classes()
    weights, scene = class_weights(model, classes, words), world.world_sample(n, seed, classes)
    clean = _percent(correct(model, weights, scene, "clean", 0))
    answer: dict[str, Any] = {"clean": clean}
    for kind, (mild, drastic) in _SWEEPS.items():
        at = [mild + (drastic - mild) * (i / 15) ** 1.5 for i in range(16)]
        accuracy = [_percent(correct(model, weights, scene, kind, strength)) for strength in at]
        nearest = [min(range(16), key=lambda i: abs(accuracy[i] - clean * t)) for t in _TARGETS]
        answer[kind] = {"sweep": dict(zip((f"{x:.3g}" for x in at), accuracy, strict=True))}
        answer[kind]["suggested"] = [round(at[i], 3) for i in nearest]
    return answer


def _percent(hits: Tensor) -> float:
    return round(100 * hits.float().mean().item(), 2)


def table(results: Mapping[str, Any]) -> str:
    """The results as lines of text."""
    lines = [
        f"{'clean':<12}{results['clean']:>7.2f}   ({results['classes']} classes, {results['images']} images; trained"
    ]
    lines[0] += f" {results['clean_trained_combinations']:.2f}, unseen {results['clean_unseen_combinations']:.2f})"
    lines.append(f"{'shift':<12}" + "".join(f"{s:>7}" for s in range(1, 6)) + f"{'mean':>8}")
    for kind, row in results["shifted"].items():
        lines.append(f"{kind:<12}" + "".join(f"{v:>7.2f}" for v in row) + f"{sum(row) / len(row):>8.2f}")
    return "\n".join([*lines, f"{'shifted mean':<12}{results['shifted_mean']:>7.2f}"])


def provenance() -> dict[str, str]:
    """Versions and device that made a result."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    return {"torch": torch.__version__, "transformers": transformers.__version__, "device": device}


def preprocessor_config(name: str) -> dict[str, Any]:
    """preprocessor_config.json: 64 pixels, values to [-1, 1]."""
    kind = "SiglipImageProcessor" if "siglip" in name else "CLIPImageProcessor"
    size: dict[str, int] = {"height": world.SIZE, "width": world.SIZE}
    crop = {} if "siglip" in name else {"do_center_crop": True, "crop_size": size}
    return {
        "image_processor_type": kind,
        "do_resize": True,
        "size": size if "siglip" in name else {"shortest_edge": world.SIZE},
        "resample": 3,
        **crop,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [MEAN] * 3,
        "image_std": [STD] * 3,
        "do_convert_rgb": True,
    }


def write_json(path: Path, value: Any) -> None:
    """Write whole or not at all."""
    partial = path.with_name(path.name + ".part")
    partial.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    os.replace(partial, path)


def export(model: Any, name: str, words: Words, folder: Path) -> None:
    """Write the float16 folder; a reader sees the old files or the new ones, never half of one."""
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder.with_name(folder.name + ".part")
    shutil.rmtree(fresh, ignore_errors=True)
    half = type(model)(model.config)
    half.load_state_dict(model.state_dict())
    half.half().save_pretrained(fresh)
    files = {**words.tokenizer_files(), "preprocessor_config.json": preprocessor_config(name)}
    for file, content in files.items():
        write_json(fresh / file, content)
    for path in fresh.iterdir():
        os.replace(path, folder / path.name)
    fresh.rmdir()


def sheet(path: Path, seed: int = EVAL_SEED) -> None:
    """A contact sheet: 40 clean images, then one row per shift (two images, clean and severities 1 to 5)."""
    scene = world.world_sample(40, seed, world.test_classes())
    tiles = [world.draw_scene(scene)[0]]
    for kind in shifts.KINDS:
        for i in (0, 1):
            one = scene[i : i + 1]
            tiles += [shifts.draw_shifted(one, kind, s)[0] if s else world.draw_scene(one)[0] for s in range(6)]
    rows = [
        images.view(-1, columns, *images.shape[1:]) for images, columns in ((tiles[0], 10), (torch.cat(tiles[1:]), 12))
    ]
    width = 12 * world.SIZE
    strips = [
        F.pad(r.permute(0, 3, 1, 4, 2).flatten(0, 1).flatten(1, 2), (0, 0, 0, width - r.shape[1] * world.SIZE))
        for r in rows
    ]
    pixels = (torch.cat(strips) * 255).round().to(torch.uint8).numpy()
    Image.fromarray(pixels).resize((2 * width, 2 * len(pixels)), Image.Resampling.NEAREST).save(path)
