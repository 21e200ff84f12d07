"""Half precision against float32 on a rendered stream; real photographs and CUDA are in benchmarks/precision.py."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import lessmore
from lessmore.assets import MODELS, shifts, world
from lessmore.models.vlm import VLM

CLASSES = world.test_classes(48)
NAMES = world.world_class_names(CLASSES)


def pixels(count: int) -> tuple[Tensor, Tensor]:
    scene = world.world_sample(count, 88_000, CLASSES)
    return (shifts.draw_shifted(scene, "contrast", 2)[0] - 0.5) / 0.5, scene.index


def zero_shot(vlm: VLM, images: Tensor) -> Tensor:
    text = vlm.classifier(NAMES).float()
    return (vlm.encode_image(images, normalize=True).float() @ text.T).argmax(dim=1)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("dtype", "least"), [(torch.float16, 0.99), (torch.bfloat16, 0.98)])
def test_zero_shot_answers_agree(name: str, dtype: torch.dtype, least: float) -> None:
    vlm = lessmore.load(name)
    images, _ = pixels(400)
    same = zero_shot(vlm, images) == zero_shot(vlm.to(dtype=dtype), images)
    assert float(same.float().mean()) >= least


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_adapted_accuracy_differs_by_no_more_than_chance(dtype: torch.dtype) -> None:
    vlm = lessmore.load("tiny")
    images, labels = pixels(120)
    right = []
    for one in (vlm, vlm.to(dtype=dtype)):
        adapter = lessmore.adapt(one, NAMES)
        right.append(np.array([adapter(image).index for image in images]) == labels.numpy())
    gap = right[1].astype(float) - right[0]
    draws = np.random.default_rng(0).integers(0, len(gap), (2000, len(gap)))
    low, high = np.quantile(gap[draws].mean(axis=1), [0.025, 0.975])
    assert low <= 0 <= high
