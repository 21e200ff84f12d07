"""photo-s14, a CLIP in open_clip's format: one call loads its folder, and it scores what its card says."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import lessmore
from lessmore.data.registry import open_dataset
from lessmore.models.load import load
from lessmore.models.vlm import VLM

pytest.importorskip("open_clip")
CARD = {"eurosat": 94.0, "caltech101": 88.5}
"""Percent of the first 200 images of a seeded sample, as the model's card has it."""
IMAGES = 200 if os.environ.get("LESSMORE_SOAK") else 40


@pytest.fixture(scope="module")
def folder() -> Path:
    place = Path(__file__).resolve().parents[3] / "shared" / "models" / "photo-s14"
    if not (place / "model.safetensors").is_file():
        pytest.skip(f"the shared model photo-s14 is not under {place}")
    return place


@pytest.fixture(scope="module")
def vlm(folder: Path) -> VLM:
    return load(folder)


def test_the_folder_says_all_there_is_to_know(vlm: VLM) -> None:
    shape = vlm.vision.shape
    assert (shape.image_size, shape.patch, shape.patches, shape.embed) == (224, 14, 256, 256)
    assert shape.blocks.layer_scale and not shape.pre_norm and shape.blocks.eps == 1e-6
    assert vlm.preprocess.mean == (0.485, 0.456, 0.406)  # type: ignore[attr-defined]
    assert vlm.dtype == torch.float32
    assert vlm.tokenize(["a dog"]).shape == (1, 77)


def test_its_weights_alone_and_in_half_precision_say_the_same(vlm: VLM, folder: Path) -> None:
    half = load(folder, dtype="bfloat16", device="auto")
    assert half.dtype == torch.bfloat16
    pixels = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    ours, theirs = vlm.encode_image(pixels, True), half.encode_image(pixels, True).float().cpu()
    assert (ours * theirs).sum(dim=-1).min() > 0.99


@pytest.mark.parametrize("name", CARD)
def test_accuracy_is_that_of_the_card(
    vlm: VLM, folder: Path, name: str, record_property: Callable[[str, float], None]
) -> None:
    root = folder.parents[1] / "data"
    try:
        data = open_dataset(name, root)
    except lessmore.LessmoreError as error:
        pytest.skip(f"{name} is not under {root}: {error}")
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0)).tolist()
    classes = vlm.classifier(data.classes, data.templates["coop"], cache=False)
    right = 0
    for start in range(0, IMAGES, 20):
        seen = order[start : start + 20]
        pixels = torch.stack([vlm.preprocess(data.image(i)) for i in seen])
        found = (vlm.encode_image(pixels) @ classes.T).argmax(dim=1)
        right += sum(int(answer) == data.labels[i] for answer, i in zip(found, seen, strict=True))
    accuracy, share = 100 * right / IMAGES, CARD[name] / 100
    record_property("accuracy", accuracy)
    print(f"\n{name}: {accuracy:.1f} % of {IMAGES}, card {CARD[name]}")
    # Three standard errors of the difference between two samples, ours and the card's.
    assert abs(accuracy - CARD[name]) <= 300 * (share * (1 - share) * (1 / IMAGES + 1 / 200)) ** 0.5
