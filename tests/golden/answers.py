"""Answers on the embedded model, as they were when `core.algorithm` got its versions.

python -m tests.golden.answers    records them again; do so whenever a version is raised
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

import lessmore
from lessmore.assets import shifts, world
from lessmore.core.algorithm import algorithm
from lessmore.core.encoder import encode
from lessmore.lab.report.tokens import as_picture
from lessmore.methods.resolve import resolve

FILE = Path(__file__).with_name("answers.json")
CLASSES = world.test_classes(6, seed=3)
NAMES = world.world_class_names(CLASSES)
NUMBERS = 8
"""How many numbers of an embedding are recorded."""

ENCODINGS: dict[str, dict[str, Any]] = {
    "none": {"reducer": "none"},
    "tca": {},
    "tca fixed": {"preset_name": "fixed"},
    "tca released": {"preset_name": "released"},
    "evit": {"reducer": "evit"},
    "tome": {"reducer": "tome"},
    "ats": {"reducer": "ats"},
}
ANSWERS: dict[str, dict[str, Any]] = {
    "tca default, long stream": {},
    "tca bold, long stream": {"preset": "bold"},
    **{f"tca {preset}": {"preset": preset} for preset in ("default", "bold", "fixed", "paper", "released")},
    **{method: {"method": method} for method in ("zeroshot", "tda", "tent", "sar", "zero", "mta", "tpt")},
}
CONFIDENCES: dict[str, dict[str, Any]] = {"tca": {}, "tda": {"method": "tda"}}


def stream(images: int) -> list[torch.Tensor]:
    """Preprocessed images before backgrounds that the model has not seen, `[3, S, S]` each."""
    return _drawn(images)[0]


def long_stream() -> list[torch.Tensor]:
    """Images of all classes, then of one class, then of all classes in another light."""
    images, labels = _drawn(96)
    often = [image for image, label in zip(images, labels, strict=True) if label == labels[0]]
    return [*images[:16], *often[:8], *often[:8], *(0.3 * image + 0.5 for image in images[:40])]


def _drawn(images: int) -> tuple[list[torch.Tensor], list[int]]:
    scene = world.world_sample(images, 5, CLASSES)
    pixels, _ = shifts.draw_shifted(scene, "background", 5)
    preprocess = lessmore.load("tiny").preprocess
    return [preprocess(as_picture(image)) for image in pixels], scene.index.tolist()


def class_embedding(templates: str) -> list[list[float]]:
    """The first numbers of every class's embedding."""
    return _rounded(lessmore.load("tiny").classifier(NAMES, templates, cache=False)[:, :NUMBERS])


def encoding(name: str) -> list[list[float]]:
    """The first numbers of a few features."""
    vlm = lessmore.load("tiny")
    asked = ENCODINGS[name]
    condensation = resolve("tca", shape=vlm.vision.shape, **asked).preset.condensation
    features = [encode(vlm.vision, image[None], condensation).feature[0, :NUMBERS] for image in stream(3)]
    return _rounded(torch.stack(features))


def answers(name: str) -> list[list[float]]:
    """Probabilities of all classes, image by image."""
    views = ANSWERS[name].get("method") in ("zero", "mta", "tpt")
    adapter = lessmore.adapt("tiny", NAMES, engine="eager", cache=False, **ANSWERS[name])
    images = long_stream() if name.endswith("long stream") else stream(3 if views else 16)
    return _rounded(torch.stack([adapter(image).raw_scores for image in images]))


def confidence(name: str) -> list[list[float]]:
    """How sure the answers are said to be, image by image."""
    adapter = lessmore.adapt("tiny", NAMES, engine="eager", cache=False, **CONFIDENCES[name])
    return _rounded(torch.tensor([[adapter(image).confidence] for image in long_stream()]))


def record() -> dict[str, Any]:
    """Everything, with the versions it belongs to."""
    return {
        "algorithm": algorithm(),
        "class_embedding": {name: class_embedding(name) for name in ("photo", "imagenet80")},
        "encoding": {name: encoding(name) for name in ENCODINGS},
        "answer": {name: answers(name) for name in ANSWERS},
        "confidence": {name: confidence(name) for name in CONFIDENCES},
    }


def _rounded(values: torch.Tensor) -> list[list[float]]:
    return [[round(float(value), 5) for value in row] for row in values]


if __name__ == "__main__":
    torch.set_num_threads(1)
    FILE.write_text(json.dumps(record(), separators=(",", ":")) + "\n", encoding="utf-8")
    print(f"{FILE.name}: {FILE.stat().st_size} bytes")
