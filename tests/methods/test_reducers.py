"""What every reducer owes: it runs with every kind of tower and method, alone or in batches, and can be pictured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import lessmore
from lessmore import list_reducers
from lessmore.assets import world
from lessmore.config import Condensation
from lessmore.core.condense.registry import resolve_reducer
from lessmore.core.condense.schedule import schedule
from lessmore.core.condense.source import GONE, MERGED, source_map
from lessmore.core.costs import costs, taken_steps
from lessmore.core.encoder import encode
from lessmore.core.rope import Rope
from lessmore.core.vit import BlockShape, ViTShape
from lessmore.lab.report import tokens as pictures
from tests.random_towers import HEADED, SHAPES, make_images, make_vit

LAYERS = (1, 2, 3)
REDUCERS = [name for name in list_reducers() if name != "none"]


def small(name: str, R: float = 0.7) -> Condensation:
    return resolve_reducer(name, Condensation(R=R, layers=LAYERS))


@pytest.mark.parametrize("shape", list(SHAPES))
@pytest.mark.parametrize("name", REDUCERS)
def test_a_batch_equals_its_images_and_the_source_map_is_a_partition(shape: str, name: str) -> None:
    vit, images, config = make_vit(SHAPES[shape]), make_images(4), small(name)
    batch = encode(vit, images, config)
    alone = torch.cat([encode(vit, image[None], config).feature for image in images])
    torch.testing.assert_close(batch.feature, alone, rtol=0, atol=1e-12)
    plan = [one for one in schedule(36, len(vit.blocks), config) if one is not None]
    sources = source_map(batch.steps)
    for s, step in enumerate(batch.steps):
        assert step.stage.out <= plan[s].out if name == "ats" else step.stage == plan[s]
        for b, target in enumerate(step.target):
            left = int(sources.left[b, s])
            assert left <= step.stage.out if name == "ats" else left == step.stage.out
            assert set(range(left)) <= set(target.tolist()) <= {-1, *range(left)}
    assert ((sources.token >= 0) == (sources.fate <= MERGED)).all()
    gone = sources.fate == GONE
    assert (gone[:, 1:] >= gone[:, :-1]).all()
    if name.startswith("tome") or name == "pitome":
        assert (sources.fate <= MERGED).all()  # merging loses no patch


@pytest.mark.parametrize("shape", list(SHAPES))
@pytest.mark.parametrize("name", list_reducers())
def test_R_1_is_the_plain_tower(shape: str, name: str) -> None:
    vit, images = make_vit(SHAPES[shape], dtype=torch.float32, spread=0.2), make_images(3, dtype=torch.float32)
    torch.testing.assert_close(
        encode(vit, images, small(name, R=1.0)).feature, F.normalize(vit(images), dim=-1), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", ["class", "map"])
@pytest.mark.parametrize("name", REDUCERS)
def test_half_precision_differs_only_where_a_decision_does(name: str, shape: str, dtype: torch.dtype) -> None:
    images = make_images(12, dtype=torch.float32)
    wide = encode(make_vit(SHAPES[shape], dtype=torch.float32, spread=0.15), images, small(name))
    half = encode(make_vit(SHAPES[shape], dtype=dtype, spread=0.15), images.to(dtype), small(name))
    assert half.feature.dtype == torch.float32
    same = (source_map(wide.steps).token == source_map(half.steps).token).flatten(1).all(dim=1)
    assert half.feature.isfinite().all()
    assert (F.cosine_similarity(half.feature, wide.feature)[same] > 0.999).all()
    if dtype == torch.float16:  # bfloat16 settles most near-ties of random towers the other way
        assert int(same.sum()) >= 4


COUNTED = {
    "class": ViTShape(BlockShape(64, 12, 4, 256), 112, 8, embed=32),
    "mean": ViTShape(BlockShape(64, 12, 4, 256), 112, 8, embed=32, class_token=False, pool="mean"),
    "gated": ViTShape(
        BlockShape(64, 12, 4, 168, "silu", gated=True, inner_norm=True), 112, 8, 32, rope=Rope(1.0, 1.0), registers=4
    ),
    "own-head": ViTShape(
        BlockShape(64, 12, 4, 350), 112, 8, 32, rope=Rope(0.0, 0.5), pool="map", pool_heads=8, pool_mlp=256
    ),
    "headed": replace(
        HEADED,
        blocks=BlockShape(64, 12, 4, 256),
        image_size=112,
        patch=8,
        embed=64,
        rope=Rope(0.0, 0.5),
        head=BlockShape(64, 2, 4, 168, "silu", gated=True, turned=False),
    ),
}


@pytest.mark.parametrize("shape", list(COUNTED))
@pytest.mark.parametrize("name", REDUCERS)
def test_costs_agree_with_torchs_counter(name: str, shape: str) -> None:
    vision = COUNTED[shape]
    vit, config = make_vit(vision, dtype=torch.float32, spread=0.1), resolve_reducer(name, Condensation(R=0.8))
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        steps = encode(vit, torch.randn(1, 3, 112, 112, generator=torch.Generator().manual_seed(0)), config).steps
    expected = costs(vision, config, classes=0, plan=taken_steps(steps, 12))
    assert counter.get_total_flops() == pytest.approx(2 * expected.macs, rel=0.005)


@pytest.mark.parametrize("model", ["tiny", "tiny-siglip"])
@pytest.mark.parametrize("name", REDUCERS)
def test_a_stream_with_correction_and_its_picture(name: str, model: str) -> None:
    scene = world.world_sample(4, seed=5)
    images = [pictures.as_picture(image) for image in world.draw_scene(scene)[0]]
    adapter = lessmore.adapt(model, ["a circle", "a square", "a cross"], reducer=name, R=0.7, cache=False)
    for image in images:
        prediction = adapter(image, trace=True)
    assert adapter.health().stored > 0
    assert prediction.trace is not None
    strip = pictures.prediction_strip(adapter, images[-1], prediction)
    assert strip.width >= min(6, 1 + len(prediction.trace.blocks)) * 192
    left = prediction.trace.left[0].tolist()
    assert left == sorted(left, reverse=True)
    panel = pictures.token_panels(pictures.as_seen(images[-1], adapter.vlm), prediction.trace)[-1]
    assert isinstance(panel, Image.Image)
    black = (np.asarray(panel) == 0).all(axis=2).mean() / 0.83  # a sixth of a hatched patch is grey
    pruned = float((prediction.trace.fate[0, -1] > MERGED).float().mean())
    assert black == pytest.approx(pruned, abs=0.02)


@pytest.mark.parametrize("shape", list(SHAPES))
@pytest.mark.parametrize("name", REDUCERS)
def test_gradients_reach_the_norms_of_every_block(name: str, shape: str) -> None:
    vit = make_vit(SHAPES[shape])
    norms = {n: p.requires_grad_() for n, p in vit.named_parameters() if "norm1" in n or "norm2" in n}
    with torch.enable_grad():
        encode(vit, make_images(2), small(name)).feature[:, 0].sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.any() for p in norms.values())
