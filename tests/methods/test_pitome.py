"""PiToMe against a slow float64 reference, and what its energies are for."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from lessmore.config import Condensation
from lessmore.core.condense.pitome import energy, merge_alike
from lessmore.core.condense.registry import resolve_reducer
from lessmore.core.condense.schedule import Stage, schedule
from lessmore.core.condense.source import source_map
from lessmore.core.costs import costs
from lessmore.core.encoder import encode
from lessmore.errors import ConfigError
from lessmore.models.shapes import SHAPES as REAL
from tests.methods.slow_pairs import Array, Choose, Groups, slow_encode
from tests.random_towers import SHAPES, make_images, make_vit
from tests.reference import cosine

LAYERS = (1, 2, 3)


def slow_energies(metric: Array, margin: float) -> list[float]:
    """By the formula, one pair at a time."""
    found = []
    for i, one in enumerate(metric):
        total = 0.0
        for j, other in enumerate(metric):
            x = cosine(one, other)
            total += 0.0 if i == j else x if x >= margin else math.exp(x - margin) - 1
        found.append(total / len(metric))
    return found


def slow_choice(r: int, depth: int, class_token: bool) -> Choose:
    """Protected patches, then those others go into; the class token first."""
    first = int(class_token)

    def choose(block: int, metric: Array) -> Groups:
        patches = metric[first:]
        energies = slow_energies(patches, 0.9 - 0.9 * block / depth)
        order = sorted(range(len(patches)), key=lambda i: -energies[i])
        sides, safe = order[: 2 * r], order[2 * r :]
        away, home = sides[::2], sides[1::2]
        nearest = {a: max(home, key=lambda b: cosine(patches[a], patches[b])) for a in away}
        groups = [[i] for i in safe] + [[b, *(a for a in away if nearest[a] == b)] for b in home]
        return [[0]] * first + [[i + first for i in group] for group in groups]

    return choose


@pytest.mark.parametrize("shape", list(SHAPES))
@pytest.mark.parametrize("R", [0.9, 0.6])
def test_equals_the_reference(shape: str, R: float) -> None:
    vit, images = make_vit(SHAPES[shape]), make_images(4)
    config = resolve_reducer("pitome", Condensation(R=R, layers=LAYERS))
    plan = schedule(36, 5, config)
    choose = {i: slow_choice(one.ambiguous, 5, vit.shape.class_token) for i, one in enumerate(plan) if one is not None}
    assert set(choose) == set(range(5))
    fast = encode(vit, images, config)
    where = source_map(fast.steps).token
    for b, image in enumerate(images):
        slow = slow_encode(vit, image.numpy(), choose)
        assert where[b].tolist() == slow.homes
        assert sum(slow.sizes) == 36 + vit.shape.first
        np.testing.assert_allclose(fast.feature[b], slow.feature, rtol=0, atol=1e-10)
        np.testing.assert_allclose(fast.tokens[b], slow.tokens, rtol=0, atol=1e-10)


@pytest.mark.parametrize("margin", [0.9, 0.3, 0.0])
def test_energies_equal_the_formula(margin: float) -> None:
    metric = torch.randn(3, 17, 5, generator=torch.Generator().manual_seed(0)).double()
    unit = F.normalize(metric, dim=-1)
    found = energy(unit @ unit.transpose(1, 2), margin)
    for b in range(3):
        np.testing.assert_allclose(found[b], slow_energies(metric[b].numpy(), margin), rtol=0, atol=1e-14)


def test_a_small_object_before_a_large_background_is_protected() -> None:
    """Twenty tokens of one kind and four that are each alone: what is merged is background, wherever it stands."""
    generator = torch.Generator().manual_seed(0)
    x = torch.cat([torch.eye(8)[0].repeat(20, 1), torch.eye(8)[1:5]]).double()
    x = x + 1e-3 * torch.randn(24, 8, generator=generator, dtype=torch.float64)
    order = torch.randperm(24, generator=generator)
    stage = Stage(patches=24, keep=14, ambiguous=10, pruned=0, centres=0, fused=0, margin=0.9)
    done = merge_alike(x[order][None], x[order][None], None, stage, class_token=False)
    alone = [int((order == i).nonzero()) for i in range(20, 24)]
    for place in alone:
        home = int(done.target[0, place])
        assert (done.target[0] == home).sum() == 1
        assert torch.equal(done.tokens[0, home], x[order][place])


@pytest.mark.parametrize("class_token", [True, False])
@pytest.mark.parametrize("r", [0, 1, 4])
def test_sizes_add_up_and_the_class_token_stays(r: int, class_token: bool) -> None:
    generator = torch.Generator().manual_seed(r)
    x = torch.randn(2, 9 + class_token, 6, generator=generator).double()
    size = torch.randint(1, 5, x.shape[:2], generator=generator).double()
    stage = Stage(patches=9, keep=9 - r, ambiguous=r, pruned=0, centres=0, fused=0, margin=0.5)
    done = merge_alike(x, x, size, stage, class_token)
    assert done.size is not None
    assert done.tokens.shape[1] == 9 - r + class_token
    torch.testing.assert_close(done.size.sum(dim=1), size.sum(dim=1))
    before, after = ((t * s.unsqueeze(2)).sum(dim=1) for t, s in ((x, size), (done.tokens, done.size)))
    torch.testing.assert_close(after, before)
    if class_token:
        torch.testing.assert_close(done.tokens[:, 0], x[:, 0])


@pytest.mark.parametrize("R", [0.95, 0.9, 0.8, 0.7])
def test_R_buys_the_same_cost_as_for_tome_and_the_same_share_everywhere(R: float) -> None:
    vision = REAL["ViT-B-16"][0]
    pitome, tome = (resolve_reducer(name, Condensation(R=R)) for name in ("pitome", "tome"))
    assert costs(vision, pitome).gmacs == pytest.approx(costs(vision, tome).gmacs, rel=0.04)
    stages = [one for one in schedule(196, 12, pitome) if one is not None]
    shares = [one.ambiguous / one.patches for one in stages]
    assert max(shares) - min(shares) < 1 / 90
    assert [one.margin for one in stages] == pytest.approx([0.9 - 0.9 * i / 12 for i in range(12)])


def test_r_is_not_its_option() -> None:
    with pytest.raises(ConfigError, match="no use for r=3"):
        resolve_reducer("pitome", Condensation(r=3))
    with pytest.raises(ConfigError, match="use 'mean'"):
        resolve_reducer("pitome", Condensation(summary="attn_pool"))
