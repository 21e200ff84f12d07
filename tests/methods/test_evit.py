"""EViT against a slow float64 reference, and as the special case of condensation that it is."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from lessmore.config import LATE, Condensation
from lessmore.core.condense.registry import resolve_reducer
from lessmore.core.condense.source import source_map
from lessmore.core.costs import costs
from lessmore.core.encoder import encode
from lessmore.core.vit import ViT, ViTShape
from lessmore.methods.resolve import resolve
from lessmore.models.shapes import SHAPES as REAL
from tests.random_towers import CLASS, SHAPES, make_images, make_vit
from tests.reference import Tower, mean_place

Array = NDArray[np.float64]
LAYERS = (1, 2, 3)
B16, L14 = REAL["ViT-B-16"][0], REAL["ViT-L-14"][0]


def slow_encode(vit: ViT, pixels: Array, R: float) -> tuple[Array, list[list[int]]]:
    """Feature, and the input patches that were kept as they are up to every condensing block, best first."""
    tower, first = Tower(vit), vit.shape.first
    x = tower.embed(pixels)
    places = tower.places(len(x))
    names: list[int | None] = list(range(len(x) - first))
    kept = []
    for i in range(vit.shape.blocks.depth):
        update, maps = tower.attend(i, x, None, False, None, places)
        x = x + update
        if i in LAYERS:
            row = (maps[:, 0] if first else maps.mean(axis=1)).mean(axis=0)[first:]
            order = sorted(range(len(row)), key=lambda j: -row[j])
            left = math.ceil(round(R * len(row), 9))
            top, rest = order[:left], order[left:]
            fused = sum(row[j] * x[first + j] for j in rest)
            x = np.stack([*x[:first], *(x[first + j] for j in top), fused])
            lie = places[first:]
            places = [*places[:first], *(lie[j] for j in top), mean_place([lie[j] for j in rest], None)]
            names = [*(names[j] for j in top), None]
            kept.append([name for name in names if name is not None])
        x = tower.add_mlp(i, x)
    feature = tower.pool(x)
    return feature / np.linalg.norm(feature), kept


@pytest.mark.parametrize("shape", list(SHAPES))
@pytest.mark.parametrize("R", [0.9, 0.7])
def test_equals_the_reference(shape: str, R: float) -> None:
    vit, images = make_vit(SHAPES[shape]), make_images(4)
    fast = encode(vit, images, resolve_reducer("evit", Condensation(R=R, layers=LAYERS)))
    where = source_map(fast.steps).token
    for b, image in enumerate(images):
        feature, kept = slow_encode(vit, image.numpy(), R)
        for s, patches in enumerate(kept):
            alive = sorted((int(t), p) for p, t in enumerate(where[b, s]) if t >= 0)
            assert [p for _, p in alive] == patches
        np.testing.assert_allclose(fast.feature[b], feature, rtol=0, atol=1e-10)


def test_is_condensation_without_centres_by_head_mean() -> None:
    own = Condensation(R=0.8, layers=LAYERS, counts="keep", K=0, merge_prune=(0, 1), pruned="fuse", score="mean")
    assert resolve_reducer("evit", Condensation(R=0.8, layers=LAYERS)) == own
    vit, images = make_vit(CLASS), make_images(3)
    assert torch.equal(encode(vit, images, own).feature, encode(vit, images, resolve_reducer("evit", own)).feature)


@pytest.mark.parametrize(
    ("vision", "R", "printed", "counts"),
    [
        (B16, 0.94, "16.31", (187, 177, 168)),  # the table's .95 row drops 0.06
        (B16, 0.9, "15.41", (179, 163, 148)),
        (B16, 0.7, "11.62", (140, 100, 72)),
        (L14, 0.9, "65.19", (233, 211, 191)),
        (L14, 0.7, "40.78", (182, 129, 92)),
    ],
)
def test_costs_of_the_papers_table(vision: ViTShape, R: float, printed: str, counts: tuple[int, ...]) -> None:
    cost = costs(vision, resolve_reducer("evit", Condensation(R=R)), accounting="paper")
    assert f"{cost.gmacs:.2f}" == printed
    assert (cost.tokens[3], cost.tokens[6], cost.tokens[9]) == counts


def test_it_keeps_its_blocks_unless_others_are_asked_for() -> None:
    for name, options, layers in (
        ("default", {}, (3, 6, 9)),
        ("default", {"layers": LATE}, LATE),
        ("default", {"layers": LAYERS}, LAYERS),
        ("fixed", {}, (3, 6, 9)),
    ):
        assert resolve("zeroshot", name, reducer="evit", options=options).preset.condensation.layers == layers
    assert resolve("tca").preset.condensation.layers == LATE
