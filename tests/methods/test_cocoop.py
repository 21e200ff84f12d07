"""CoCoOp: its network against plain loops, its size and cost, and training that goes on exactly."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.utils.flop_counter import FlopCounterMode

import lessmore
from lessmore.config import preset
from lessmore.core.encoder import encode
from lessmore.core.text import TextShape, TextTower
from lessmore.core.vit import BlockShape, ViT, ViTShape
from lessmore.lab.train_prompt import Training, train_prompt
from lessmore.methods import Setup, make_method
from lessmore.methods.cocoop import CoCoOp, conditioned_context, new_network
from lessmore.methods.context import embed_classes, frame_prompts, write_context
from lessmore.models.preprocess import Preprocess
from lessmore.models.vlm import VLM
from tests.methods.test_coop import drawn, given, stopper


def test_the_context_moves_by_the_networks_answer() -> None:
    generator = torch.Generator().manual_seed(3)
    learned = {k: v.double() for k, v in new_network(32, 6, generator).items()}
    learned["context"] = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    features = torch.randn(2, 32, generator=generator, dtype=torch.float64)
    out = conditioned_context(learned, features)
    assert out.shape == (2, 4, 6)
    for b in range(2):
        f = features[b].tolist()
        W, c = learned["down.weight"].tolist(), learned["down.bias"].tolist()
        inner = [max(0.0, sum(w * x for w, x in zip(W[j], f, strict=True)) + c[j]) for j in range(2)]
        U, d = learned["up.weight"].tolist(), learned["up.bias"].tolist()
        for i in range(4):
            for k in range(6):
                shift = sum(u * x for u, x in zip(U[k], inner, strict=True)) + d[k]
                assert float(out[b, i, k]) == pytest.approx(float(learned["context"][i, k]) + shift, abs=1e-12)


def test_prompts_of_several_images_at_once_are_those_of_each() -> None:
    setup = given("tiny-siglip")
    framed = frame_prompts(setup.model, setup.classes)
    contexts = framed.start + 0.01 * torch.randn(3, 1, 128, generator=torch.Generator().manual_seed(0))
    together = embed_classes(framed, contexts)
    for one, context in zip(together, contexts, strict=True):
        assert torch.allclose(one, embed_classes(framed, context), atol=1e-6)


def test_training_goes_on_exactly_and_the_answer_depends_on_the_image(tmp_path: Path) -> None:
    vlm, data = lessmore.load("tiny"), drawn(20, 1)
    training = Training("cocoop", shots=1, epochs=2, batch=2, crops=False, lr=0.02)
    whole, parts = tmp_path / "whole.safetensors", tmp_path / "parts.safetensors"
    train_prompt(vlm, data, whole, training, quiet=True)
    stop = stopper(3)
    assert not train_prompt(vlm, data, parts, training, quiet=True, stop=lambda: next(stop))
    train_prompt(vlm, data, parts, training, quiet=True)
    first, second = load_file(whole), load_file(parts)
    assert first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)
    method = make_method("cocoop", given(context=str(whole)))
    assert isinstance(method, CoCoOp)
    features = encode(vlm.vision, torch.stack([vlm.preprocess(data.image(i)) for i in range(2)])).feature
    assert not torch.allclose(method.embeddings(features[0]), method.embeddings(features[1]), atol=1e-6)


def test_cost_is_counted_with_the_text_tower_for_every_image(tmp_path: Path) -> None:
    file = tmp_path / "c.safetensors"
    vlm, data = lessmore.load("tiny"), drawn(20, 1)
    train_prompt(vlm, data, file, Training("cocoop", shots=1, epochs=1, batch=8, crops=False), quiet=True)
    method = make_method("cocoop", given(context=str(file)))
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        method.predict(torch.zeros(1, 3, 64, 64))
    network = 8 * 128 + 128 * 8  # products of a matrix with a single vector, which the counter passes over
    assert counter.get_total_flops() in (2 * method.macs(), 2 * (method.macs() - network))


def test_as_many_parameters_as_published(tmp_path: Path) -> None:
    """At the widths of ViT-B/16; the count does not depend on the depth."""
    vision = ViT(ViTShape(BlockShape(768, 1, 12, 3072), 32, 16, 512)).requires_grad_(False)
    text = TextTower(TextShape(BlockShape(512, 1, 8, 2048), 100, 16, 512)).requires_grad_(False)
    vlm = VLM(vision, text, 100.0, 0.0, lessmore.load("tiny").tokenizer, Preprocess(32), "clip", "b16")
    learned = {"context": torch.zeros(4, 512), **new_network(512, 512, torch.Generator())}
    file = tmp_path / "c.safetensors"
    write_context(file, vlm, learned, {"method": "cocoop", "words": "a photo of a"})
    setup = Setup(
        vision, torch.zeros(2, 512), 100.0, preset("default", R=1.0), vlm, ("star", "ring"), (), {"context": str(file)}
    )
    assert make_method("cocoop", setup).facts.learnable_parameters == 34_816
    assert sum(v.numel() for v in learned.values()) == 35_360
