"""Costs: the paper's printed digits, and torch's own counter."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from lessmore import adapt, list_methods, list_reducers, load
from lessmore.cli import main
from lessmore.config import Condensation, Preset, TokenSummary, preset
from lessmore.core.condense.registry import resolve_reducer
from lessmore.core.costs import costs, taken_steps
from lessmore.core.encoder import encode
from lessmore.core.text import TextTower
from lessmore.core.vit import BlockShape, ViT, ViTShape
from lessmore.methods import Setup, make_method
from lessmore.methods.resolve import fit_to_tower
from lessmore.models.shapes import DINOTXT, SHAPES
from tests.methods.test_registry import small_options
from tests.random_towers import SHAPES as SMALL
from tests.random_towers import make_text, make_vit

B16, L14 = SHAPES["ViT-B-16"], SHAPES["ViT-L-14"]
ADAPTATION = preset("default").adaptation
FUSED: dict[str, Any] = {"pruned": "fuse", "anchor_kv": True}


@pytest.mark.parametrize(
    ("vision", "condensation", "anchored", "printed"),
    [
        (B16[0], Condensation(R=1), False, "17.58"),
        (B16[0], resolve_reducer("evit", Condensation(R=0.9)), False, "15.41"),
        (B16[0], resolve_reducer("evit", Condensation(R=0.7)), False, "11.62"),
        (L14[0], resolve_reducer("evit", Condensation(R=0.9)), False, "65.19"),
        (L14[0], resolve_reducer("evit", Condensation(R=0.7)), False, "40.78"),
        (B16[0], Condensation(R=0.95, **FUSED), False, "16.55"),
        (B16[0], Condensation(R=0.9, **FUSED), False, "15.45"),
        (B16[0], Condensation(R=0.7, **FUSED), False, "11.68"),
        (B16[0], Condensation(R=0.7, **FUSED), True, "11.69"),
        (B16[0], Condensation(R=0.6, **FUSED), False, "9.91"),
        (L14[0], Condensation(R=0.7, **FUSED), True, "41.44"),
    ],
)
def test_printed_digits_of_the_paper(
    vision: ViTShape, condensation: Condensation, anchored: bool, printed: str
) -> None:
    cost = costs(vision, condensation, ADAPTATION, accounting="paper", anchored=anchored)
    assert f"{cost.gmacs:.2f}" == printed


def test_prompts_cost_what_the_paper_counts() -> None:
    cost = costs(B16[0], Condensation(R=1), text=B16[1], prompts=1, accounting="paper")
    assert cost.text / 1e9 == pytest.approx(2.9847, abs=5e-5)


@pytest.mark.parametrize("shape", ["class", "map"])
@pytest.mark.parametrize("name", ["default", "paper", "released"])
@pytest.mark.parametrize("method", ["tca", "zeroshot"])
def test_matmul_agrees_with_torchs_counter(shape: str, name: str, method: str) -> None:
    blocks = BlockShape(width=64, depth=12, heads=4, mlp=256)
    vision = ViTShape(blocks, image_size=112, patch=8, embed=32)
    if shape == "map":
        vision = ViTShape(
            blocks,
            image_size=112,
            patch=8,
            embed=64,
            class_token=False,
            pre_norm=False,
            pool="map",
            norm_then_pool=True,
            projection=False,
        )
    vit = make_vit(vision, dtype=torch.float32, spread=0.1)
    chosen: Preset = preset(name, ready="class")
    C = 7
    one = make_method(method, Setup(vit, make_text(C, vision.embed, dtype=torch.float32), 10.0, chosen))
    images = torch.randn(3, 1, 3, 112, 112)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        for image in images[:2]:
            one.predict(image)
        with FlopCounterMode(display=False) as counter:
            one.predict(images[2])
    expected = costs(vision, chosen.condensation, chosen.adaptation if method == "tca" else None, C)
    assert counter.get_total_flops() == pytest.approx(2 * expected.macs, rel=0.005)


def test_text_agrees_with_torchs_counter() -> None:
    shape = SHAPES["ViT-B-32"][1]
    with torch.device("meta"):
        text = TextTower(shape)
        tokens = torch.zeros(3, shape.context, dtype=torch.int64)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        text(tokens)
    expected = costs(SHAPES["ViT-B-32"][0], Condensation(R=1), text=shape, prompts=3).text
    assert counter.get_total_flops() == pytest.approx(2 * expected, rel=0.005)


def test_tokens_equal_the_schedule_and_savings_grow() -> None:
    tokens = costs(B16[0], Condensation(R=0.7, **FUSED)).tokens
    assert tokens == (197, 197, 197, 141, 141, 141, 100, 100, 100, 74, 74, 74)
    gmacs = [costs(B16[0], Condensation(R=R), ADAPTATION).gmacs for R in (1, 0.95, 0.9, 0.8, 0.7, 0.6)]
    assert gmacs == sorted(gmacs, reverse=True)
    assert costs(B16[0], Condensation()).gflops == 2 * costs(B16[0], Condensation()).gmacs


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert main(["flops", *map(str, arguments), "--json"]) == 0
    values: dict[str, Any] = json.loads(capsys.readouterr().out)
    return values


@pytest.mark.parametrize("model", ["tiny", "tiny-siglip"])
@pytest.mark.parametrize("method", list_methods())
def test_the_command_knows_what_every_method_spends(
    method: str, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vlm, names = load(model), ["red fish", "blue striped bird with a long name", "fox"]
    options = small_options(method, vlm, tmp_path)
    settings: dict[str, Any] = {"reducer": "evit", "R": 0.7, "engine": "eager"}
    real = adapt(vlm, names, method=method, cache=False, **settings, **options)._answerer.method
    asked = ["--method", method, "--reducer", "evit", "--R", 0.7, "--options", json.dumps(options)]
    values = printed(capsys, model, *asked, "--classes", ",".join(names))
    assert values["views"] == real.facts.views
    assert values["learnable_parameters"] == real.facts.learnable_parameters
    assert values["matmul"]["gmacs"] == pytest.approx(real.macs("matmul") / 1e9, rel=1e-12)
    assert values["paper"]["gmacs"] == pytest.approx(real.macs("paper") / 1e9, rel=1e-12)


@pytest.mark.parametrize("shape", ["ViT-B-16", "ViT-B-16-SigLIP"])
@pytest.mark.parametrize("method", list_methods())
def test_the_command_needs_neither_weights_nor_files(
    method: str, shape: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in list_reducers():
        values = printed(capsys, shape, "--method", method, "--reducer", name, "--classes", 10)
        for way in (values["paper"], values["matmul"]):
            parts = values["views"] * sum(way["parts"].values()) + way["rest"]
            assert way["gmacs"] == pytest.approx(parts / 1e9)
            assert way["gmacs"] > 0.999 * values["views"] * way["pass_gmacs"]


def test_the_commands_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["flops", "ViT-B-16", "--R", "0.7"]) == 0
    shown = capsys.readouterr().out
    assert "block 6: 196 patches -> 133 kept" in shown
    assert "one pass" not in shown  # there is only one
    assert "% fewer multiply-accumulates than the plain model (17.5640 GMACs, matmul)" in shown
    assert main(["flops", "ViT-B-16", "--method", "zero"]) == 0
    assert "64 views             1125.27" in (shown := capsys.readouterr().out)
    assert "64 times the multiply-accumulates of the plain model" in shown
    assert main(["flops", "ViT-B-16", "--method", "zeroshot"]) == 0
    assert "As many multiply-accumulates as the plain model" in capsys.readouterr().out


def test_every_known_shape_has_its_cost_at_three_budgets(capsys: pytest.CaptureFixture[str]) -> None:
    known = printed(capsys, "all")
    assert set(known) == set(SHAPES)
    for name, row in known.items():
        assert row["1"] > row["0.9"] > row["0.7"]
        assert row["1"] == costs(SHAPES[name][0], Condensation(R=1), classes=0).gmacs
    assert main(["flops", "all"]) == 0
    assert "PE-Core-L-14-336" in capsys.readouterr().out
    assert main(["ls", "models"]) == 0
    listed = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())
    for name, row in known.items():
        assert f"{row['0.7']:.2f} at R = 0.7" in listed[name]
    assert "any shape, 256 patches" in listed["ViT-B-16-SigLIP2-naflex"]


@pytest.mark.parametrize("name", ["EVA02-B-16", "PE-Core-B-16", "ViT-SO400M-14-SigLIP2", DINOTXT])
@pytest.mark.parametrize("method", ["tca", "zeroshot"])
def test_real_shapes_agree_with_torchs_counter(name: str, method: str) -> None:
    """Seven blocks and 81 patches of the real width; more would say the same again."""
    vision = SHAPES[name][0]
    vision = replace(vision, blocks=replace(vision.blocks, depth=7), image_size=vision.patch * 9)
    chosen = preset("paper", layers=(2, 4), R=0.8)
    vit = make_vit(vision, dtype=torch.float32, spread=0.02)
    one = make_method(method, Setup(vit, make_text(3, vision.embed, dtype=torch.float32), 10.0, chosen))
    images = torch.randn(2, 1, 3, *[vision.image_size] * 2)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        one.predict(images[0])
        with FlopCounterMode(display=False) as counter:
            one.predict(images[1])
    expected = costs(vision, chosen.condensation, chosen.adaptation if method == "tca" else None, 3)
    assert counter.get_total_flops() == pytest.approx(2 * expected.macs, rel=0.001)


LARGE = ["ViT-B-16-SigLIP-512", "ViT-SO400M-14-SigLIP-384", "ViT-gopt-16-SigLIP2-256", "ViT-B-16-SigLIP2-naflex"]
"""All shapes by name take half a minute, so they are counted with LESSMORE_SOAK=1."""


@pytest.mark.parametrize("R", [1.0, 0.7])
def test_shapes_in_full_size_are_counted_exactly(R: float) -> None:
    for name in SHAPES if os.environ.get("LESSMORE_SOAK") else LARGE:
        vision = SHAPES[name][0]
        with torch.device("meta"):
            vit, pixels = ViT(vision).requires_grad_(False), torch.zeros(1, 3, *[vision.image_size] * 2)
        condensation = fit_to_tower(preset("default", R=R), vision).condensation
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            encode(vit, pixels, condensation)
        assert counter.get_total_flops() == 2 * costs(vision, condensation, classes=0).macs, name


@pytest.mark.parametrize(
    ("reducer", "summary"), [*((name, "mean") for name in list_reducers()), ("tca", "attn_pool"), ("ats", "attn_pool")]
)
@pytest.mark.parametrize("shape", [name for name, shape in SMALL.items() if not shape.first])
def test_towers_without_a_class_token_are_counted_exactly(shape: str, reducer: str, summary: TokenSummary) -> None:
    vit = make_vit(SMALL[shape], dtype=torch.float32)
    config = resolve_reducer(reducer, Condensation(R=0.7, layers=(1, 3), summary=summary))
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        steps = encode(vit, torch.randn(1, 3, *[vit.shape.image_size] * 2), config).steps
    expected = costs(vit.shape, config, classes=0, plan=taken_steps(steps, len(vit.blocks)))
    assert counter.get_total_flops() == 2 * expected.macs
