"""A CLIP trained on real photos: the same features and the published accuracy through every way of loading it."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lessmore.data.images import load_image
from lessmore.models.load import load
from lessmore.models.vlm import VLM

pytest.importorskip("transformers")

TEXTS = ["a photo of a dog.", "a satellite photo of a river", "goldfish"]
# Of every 100th Tiny-ImageNet image (100 of them) this model recognises 57 with this prompt; of every 10th, as its
# README says, 613. The long way is for `make soak`.
EVERY, EXPECTED = (10, 613) if os.environ.get("LESSMORE_SOAK") else (100, 57)


@pytest.fixture(scope="module")
def vlm(shared: Path) -> VLM:
    return load(shared / "models" / "photo-s8")


@pytest.fixture(scope="module")
def rows(shared: Path) -> list[dict[str, str]]:
    manifest = shared / "data" / "tiny-imagenet-val" / "manifest.csv"
    if not manifest.is_file():
        pytest.skip(f"Tiny-ImageNet is not under {manifest.parent}")
    with manifest.open(newline="") as file:
        return [{**row, "path": str(manifest.parent / row["path"])} for row in csv.DictReader(file)]


def _features(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output.pooler_output


def _pixels(vlm: VLM, rows: list[dict[str, str]]) -> Tensor:
    return torch.stack([vlm.preprocess(load_image(row["path"])) for row in rows])


def test_features_equal_transformers(vlm: VLM, shared: Path, rows: list[dict[str, str]]) -> None:
    from transformers import CLIPModel, CLIPTokenizer

    folder = shared / "models" / "photo-s8"
    host = CLIPModel.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = CLIPTokenizer.from_pretrained(folder)(TEXTS, padding=True, return_tensors="pt")
    pixels = _pixels(vlm, rows[:4])
    with torch.no_grad():
        image, text = host.get_image_features(pixel_values=pixels), host.get_text_features(**tokens)
    ours = vlm.encode_image(pixels, normalize=True), vlm.encode_text(vlm.tokenize(TEXTS), normalize=True)
    for mine, theirs in zip(ours, (image, text), strict=True):
        torch.testing.assert_close(mine, F.normalize(_features(theirs), dim=-1), atol=1e-5, rtol=0)


def test_open_clip_gives_the_same_features(vlm: VLM, shared: Path, rows: list[dict[str, str]], tmp_path: Path) -> None:
    pytest.importorskip("open_clip")
    folder = tmp_path / "photo-s8"
    shutil.copytree(shared / "models" / "photo-s8", folder, copy_function=shutil.copyfile)
    folder.chmod(0o755)
    command = [
        sys.executable,
        str(folder / "to_open_clip.py"),
        str(folder),
        str(folder / "open_clip_model.safetensors"),
    ]
    subprocess.run(command, check=True, capture_output=True)
    (folder / "model.safetensors").unlink()
    other = load(f"open_clip:local-dir:{folder}")
    pixels = _pixels(vlm, rows[:4])
    assert other.family == "clip"
    assert other.logit_scale == pytest.approx(vlm.logit_scale, rel=1e-3)
    # The converted file holds the weights in float16, as the original does, so nothing is lost on the way.
    torch.testing.assert_close(other.encode_image(pixels), vlm.encode_image(pixels), atol=2e-5, rtol=0)
    mine, theirs = (m.classifier(["dog", "goldfish"], "simple7", cache=False) for m in (vlm, other))
    torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=0)


def test_zero_shot_accuracy(vlm: VLM, rows: list[dict[str, str]]) -> None:
    names = {int(row["label"]): row["classname"] for row in rows}
    classes = vlm.classifier([names[i] for i in range(len(names))], "photo", cache=False)
    chosen = rows[::EVERY]
    labels = torch.tensor([int(row["label"]) for row in chosen])
    features = torch.cat([vlm.encode_image(_pixels(vlm, chosen[i : i + 20])) for i in range(0, len(chosen), 20)])
    right = int((features @ classes.T).argmax(dim=1).eq(labels).sum())
    # Other processors may flip a close call; a wrong token, crop or normalisation costs far more than three.
    assert abs(right - EXPECTED) <= 3
