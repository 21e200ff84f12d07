"""The embedded models: what they are, that transformers reads them too, and that they recognise their world."""

from __future__ import annotations

import json

import pytest
import torch

import lessmore
from lessmore.assets import MODELS, model_folder, shifts, world


@pytest.mark.parametrize("name", MODELS)
def test_transformers_reads_the_same_model(name: str) -> None:
    from transformers import AutoModel, AutoTokenizer

    ours = lessmore.load(name)
    host = AutoModel.from_pretrained(model_folder(name), dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(model_folder(name))
    texts = ["a photo of a red striped star", "a drawing of an outlined brown key"]
    ids = ours.tokenize(texts)
    theirs = tokenizer(texts, padding="max_length", max_length=16, return_tensors="pt")["input_ids"]
    assert torch.equal(ids, theirs)
    pixels = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0)) * 2 - 1
    with torch.no_grad():
        out = host(input_ids=ids, pixel_values=pixels)
    torch.testing.assert_close(ours.encode_image(pixels, normalize=True), out.image_embeds, rtol=0, atol=1e-5)
    torch.testing.assert_close(ours.encode_text(ids, normalize=True), out.text_embeds, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_the_folder_itself_loads_as_any_other(name: str) -> None:
    assert lessmore.load(model_folder(name)).fingerprint() == lessmore.load(name).fingerprint()


@pytest.mark.parametrize("name", MODELS)
def test_it_recognises_what_its_results_say(name: str) -> None:
    vlm = lessmore.load(name)
    results = json.loads((model_folder(name) / "results.json").read_text())
    classes = world.test_classes(48)
    text = vlm.classifier(world.world_class_names(classes))
    for kind, severity, claimed in (("clean", 0, results["clean"]), ("contrast", 3, results["shifted"]["contrast"][2])):
        scene = world.world_sample(300, 12_345, classes)
        pixels = (shifts.draw_shifted(scene, kind, severity)[0] - 0.5) / 0.5
        answers = (vlm.encode_image(pixels, normalize=True) @ text.T).argmax(dim=1)
        accuracy = 100 * float((answers == scene.index).float().mean())
        assert accuracy == pytest.approx(claimed, abs=9)  # three standard errors of 300 images


def test_files_are_small_and_few() -> None:
    for name in MODELS:
        files = list(model_folder(name).iterdir())
        assert sum(f.stat().st_size for f in files) < 7_000_000
        assert len(files) <= 7
