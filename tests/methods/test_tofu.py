"""ToFu against a slow float64 reference, and what it does to the length of tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lessmore.config import Condensation
from lessmore.core.condense.registry import resolve_reducer
from lessmore.core.condense.schedule import Stage, schedule
from lessmore.core.condense.source import source_map
from lessmore.core.condense.tofu import fuse_pairs
from lessmore.core.costs import costs
from lessmore.core.encoder import encode
from lessmore.errors import ConfigError
from lessmore.models.shapes import SHAPES as REAL
from tests.methods.slow_pairs import Array, Choose, Groups, mean, slow_encode, slow_match
from tests.random_towers import SHAPES, make_images, make_vit

LAYERS = (1, 2, 3)


def slow_choice(stage: Stage, class_token: bool) -> Choose:
    """ToMe's groups; of a group from which tokens are dropped, its first member."""

    def choose(block: int, metric: Array) -> Groups:
        groups, _ = slow_match(metric, stage.ambiguous + stage.pruned, class_token)
        return [group[:1] for group in groups] if stage.pruned else groups

    return choose


def stretched(tokens: Array, sizes: list[int]) -> Array:
    """The mean, made as long as the longest."""
    middle = mean(tokens, sizes)
    longest = max(float(np.sqrt((token**2).sum())) for token in tokens)
    return middle * longest / np.sqrt((middle**2).sum())


@pytest.mark.parametrize("shape", list(SHAPES))
@pytest.mark.parametrize(("R", "drop_first"), [(0.9, 0.5), (0.6, 0.5), (0.7, 0.0), (0.7, 1.0)])
def test_equals_the_reference(shape: str, R: float, drop_first: float) -> None:
    vit, images = make_vit(SHAPES[shape]), make_images(4)
    config = resolve_reducer("tofu", Condensation(R=R, layers=LAYERS, drop_first=drop_first))
    plan = schedule(36, 5, config)
    choose = {i: slow_choice(one, vit.shape.class_token) for i, one in enumerate(plan) if one is not None}
    assert set(choose) == set(range(5))
    fast = encode(vit, images, config)
    where = source_map(fast.steps).token
    for b, image in enumerate(images):
        slow = slow_encode(vit, image.numpy(), choose, join=stretched)
        assert where[b].tolist() == slow.homes
        np.testing.assert_allclose(fast.feature[b], slow.feature, rtol=0, atol=1e-10)
        np.testing.assert_allclose(fast.tokens[b], slow.tokens, rtol=0, atol=1e-10)


def test_early_blocks_drop_and_later_ones_merge() -> None:
    config = resolve_reducer("tofu", Condensation(R=0.8))
    stages = [one for one in schedule(196, 12, config) if one is not None]
    assert [(one.pruned > 0, one.ambiguous > 0) for one in stages] == [(True, False)] * 6 + [(False, True)] * 6
    tome = resolve_reducer("tome", Condensation(R=0.8))
    assert [one.out for one in stages] == [one.out for one in schedule(196, 12, tome) if one is not None]


def test_costs_are_those_of_tome_but_for_the_sums_of_blocks_that_drop() -> None:
    vision = REAL["ViT-B-16"][0]
    tofu, tome = (costs(vision, resolve_reducer(name, Condensation(R=0.8))).parts for name in ("tofu", "tome"))
    assert tofu["merging"] < tome["merging"]
    assert {k: v for k, v in tofu.items() if k != "merging"} == {k: v for k, v in tome.items() if k != "merging"}


@pytest.mark.parametrize("class_token", [True, False])
def test_a_merged_token_is_as_long_as_the_longest_and_others_stay(class_token: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 12 + class_token, 6, generator=generator).double()
    size = torch.randint(1, 5, x.shape[:2], generator=generator).double()
    stage = Stage(patches=12, keep=8, ambiguous=4, pruned=0, centres=0, fused=0)
    done = fuse_pairs(x, x, size, stage, class_token)
    assert done.size is not None
    torch.testing.assert_close(done.size.sum(dim=1), size.sum(dim=1))
    for b in range(2):
        for place, token in enumerate(done.tokens[b, int(class_token) :]):
            members = x[b, int(class_token) :][done.target[b] == place]
            assert token.norm().item() == pytest.approx(members.norm(dim=1).max().item())
            if len(members) == 1:
                torch.testing.assert_close(token, members[0])


def test_opposite_tokens_have_no_middle_and_stay_finite() -> None:
    x = torch.tensor([[[1.0, 0.0], [-1.0, 0.0]]], dtype=torch.float64)
    metric = torch.ones(1, 2, 1, dtype=torch.float64)
    stage = Stage(patches=2, keep=1, ambiguous=1, pruned=0, centres=0, fused=0)
    assert fuse_pairs(x, metric, None, stage, False).tokens.isfinite().all()


def test_its_options() -> None:
    config = resolve_reducer("tofu", Condensation(r=3, layers=LAYERS))
    assert [one.pruned for one in schedule(36, 5, config) if one is not None] == [3, 3, 3, 0, 0]
    with pytest.raises(ConfigError, match="drop_first"):
        Condensation(drop_first=1.5)
    with pytest.raises(ConfigError, match="use 'mean'"):
        resolve_reducer("tofu", Condensation(summary="attn_pool"))
