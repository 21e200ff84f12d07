"""ATS against a slow float64 reference, its invariants, and batches of images that keep different numbers of tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from lessmore.config import Condensation
from lessmore.core.condense.ats import LEAST, hit, hit_tokens
from lessmore.core.condense.registry import resolve_reducer
from lessmore.core.condense.schedule import schedule
from lessmore.core.condense.source import GONE, KEPT, PRUNED, source_map
from lessmore.core.costs import costs, taken_steps
from lessmore.core.encoder import encode
from lessmore.core.vit import ViT
from lessmore.errors import ConfigError
from lessmore.models.shapes import SHAPES as REAL
from tests.random_towers import CLASS, SHAPES, make_images, make_vit
from tests.reference import Tower

Array = NDArray[np.float64]
LAYERS = (1, 2, 3)


def slow_choice(score: list[float], points: int, least: int) -> list[int]:
    """Positions kept: every point takes the token whose height is nearest, the lower one on ties."""
    ascending = sorted(range(len(score)), key=lambda i: score[i])
    heights, height = [], 0.0
    for i in ascending:
        height += score[i] / sum(score)
        heights.append(height)
    start = min(h for h in heights if h > 0)
    kept = set()
    for i in range(points):
        y = start + (1 - start) * i / (points - 1)
        kept.add(ascending[min(range(len(score)), key=lambda j: (abs(y - heights[j]), j))])
    return sorted(kept if len(kept) >= least else ascending[-least:])


def slow_encode(vit: ViT, pixels: Array, caps: dict[int, int]) -> tuple[Array, Array, list[list[int]]]:
    """Feature, summaries, and the input patches alive after every sampling block; one image, no padding."""
    tower, first = Tower(vit), vit.shape.first
    x = tower.embed(pixels)
    places = tower.places(len(x))
    alive, traces, summaries = list(range(len(x) - first)), [], []
    for i in range(vit.shape.blocks.depth):
        update, maps = tower.attend(i, x, None, False, None, places)
        v = tower.project(i, x)[2]
        x = x + update
        if i in caps:
            row = maps[:, 0] if first else maps.mean(axis=1)
            score = [float(row[:, j].sum() * np.linalg.norm(v[j])) for j in range(first, len(x))]
            kept = slow_choice(score, caps[i], min(LEAST - first, caps[i], len(score)))
            stay = [*range(first), *(first + j for j in kept)]
            x, places = x[stay], [places[j] for j in stay]
            alive = [alive[j] for j in kept]
            traces.append(alive)
        x = tower.add_mlp(i, x)
        summaries.append(x[0] if first else x.mean(axis=0))
    feature = tower.pool(x)
    return feature / np.linalg.norm(feature), np.stack(summaries), traces


@pytest.mark.parametrize("shape", list(SHAPES))
@pytest.mark.parametrize("R", [0.999, 0.9, 0.6])
@pytest.mark.parametrize("layers", [LAYERS, (0, 1, 2, 3, 4)])
def test_a_batch_equals_the_reference_image_by_image(shape: str, R: float, layers: tuple[int, ...]) -> None:
    vit, images = make_vit(SHAPES[shape]), make_images(5)
    config = resolve_reducer("ats", Condensation(R=R, layers=layers))
    caps = {i: one.keep for i, one in enumerate(schedule(36, 5, config)) if one is not None}
    fast = encode(vit, images, config)
    sources = source_map(fast.steps)
    assert len(set(sources.left[:, 0].tolist())) > 1, "images that keep equally many tokens test no padding"
    for b, image in enumerate(images):
        feature, summaries, traces = slow_encode(vit, image.numpy(), caps)
        for s, alive in enumerate(traces):
            assert (sources.fate[b, s] == KEPT).nonzero().flatten().tolist() == alive
            assert int(sources.left[b, s]) == len(alive) <= caps[fast.steps[s].block]
        np.testing.assert_allclose(fast.feature[b], feature, rtol=0, atol=1e-10)
        np.testing.assert_allclose(fast.tokens[b], summaries, rtol=0, atol=1e-10)
    assert set(sources.fate.unique().tolist()) <= {KEPT, PRUNED, GONE}


def test_sampling_equals_loops() -> None:
    generator = torch.Generator().manual_seed(0)
    for trial in range(60):
        n, points = 9 + trial, 5 + trial * 7 % 60
        score = (torch.randn(2, n, generator=generator).double() * (0.5 + trial % 4)).exp()
        keep = hit_tokens(score, points, 7)
        for b in range(2):
            assert keep[b].nonzero().flatten().tolist() == slow_choice(score[b].tolist(), points, 7)


def test_equal_scores_keep_everything_and_a_dominant_one_keeps_few() -> None:
    assert hit(torch.ones(1, 50), 50).all()
    peaked = torch.full((1, 50), 1e-4)
    peaked[0, 17] = 1.0
    keep = hit(peaked, 50)
    assert keep[0, 17]
    assert 1 < int(keep.sum()) <= 3
    least = hit_tokens(peaked, 50, 7)
    assert least[0, 17]
    assert int(least.sum()) == 7


def test_never_more_than_the_cap_and_never_what_nobody_looks_at() -> None:
    generator = torch.Generator().manual_seed(1)
    score = torch.rand(20, 40, generator=generator)
    score[:, ::4] = 0
    for points in (1, 5, 20, 80):
        keep = hit(score, points)
        assert int(keep.sum(dim=1).max()) <= points
        assert not keep[:, ::4].any()
    top = score.argmax(dim=1)
    assert hit(score, 1)[torch.arange(20), top].all()
    assert hit_tokens(torch.zeros(1, 12), 10, 7).sum() == 7  # no score at all: as many as must stay


@pytest.mark.parametrize("shape", list(SHAPES))
def test_at_least_eight_tokens_stay(shape: str) -> None:
    vit = make_vit(SHAPES[shape], spread=1.0)  # sharp attention
    config = resolve_reducer("ats", Condensation(R=0.5, layers=(0, 1, 2, 3, 4)))
    steps = encode(vit, make_images(6), config).steps
    caps = [one.keep for one in schedule(36, 5, config) if one is not None]
    first = vit.shape.first
    left = source_map(steps).left
    assert (left >= torch.tensor([min(cap, LEAST - first) for cap in caps])).all()
    assert (left <= torch.tensor(caps)).all()


def test_the_class_token_stays_in_front() -> None:
    vit = make_vit(CLASS)
    config = resolve_reducer(
        "ats", Condensation(R=0.7, layers=(4,))
    )  # the last block, so that nothing follows but pooling
    plain, sampled = encode(vit, make_images(4)), encode(vit, make_images(4), config)
    torch.testing.assert_close(plain.feature, sampled.feature, rtol=0, atol=1e-12)


def test_the_schedule_is_a_bound_and_the_steps_say_what_was_spent() -> None:
    config = resolve_reducer("ats", Condensation(R=0.9, layers=LAYERS))
    steps = encode(make_vit(CLASS), make_images(1), config).steps
    spent = costs(CLASS, config, plan=taken_steps(steps, 5))
    left = [step.stage.out + 1 for step in steps]
    assert spent.tokens == (37, *left, left[-1])
    assert spent.macs < costs(CLASS, config).macs
    cost = costs(REAL["ViT-B-16"][0], resolve_reducer("ats", Condensation(R=0.9)))
    assert cost.tokens[-1] == 1 + 144  # of the paper's ATS figures, averages over images, nothing can be recomputed


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="counts by keep"):
        Condensation(rule="sampling")
    with pytest.raises(ConfigError, match="looks at anchors"):
        Condensation(rule="sampling", counts="keep", anchor_kv=True)
    with pytest.raises(ConfigError, match="merges nothing"):
        Condensation(rule="sampling", counts="keep", proportional=True)
