"""ToMe against a slow float64 reference, its invariants, and what R means for it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lessmore.config import Condensation
from lessmore.core.condense.coreset import gather_tokens
from lessmore.core.condense.registry import resolve_reducer
from lessmore.core.condense.schedule import schedule, stage
from lessmore.core.condense.source import source_map
from lessmore.core.condense.tome import match, merge, merge_pairs, targets
from lessmore.core.costs import costs
from lessmore.core.encoder import encode
from lessmore.core.vit import ViTShape
from lessmore.errors import ConfigError
from lessmore.models.shapes import SHAPES as REAL
from tests.methods.slow_pairs import Choose, slow_encode, slow_match
from tests.random_towers import CLASS, SHAPES, make_images, make_vit

LAYERS = (1, 2, 3)
B16, L14 = REAL["ViT-B-16"][0], REAL["ViT-L-14"][0]


def _pairs(r: int, class_token: bool) -> Choose:
    return lambda block, metric: slow_match(metric, r, class_token)[0]


@pytest.mark.parametrize("shape", list(SHAPES))
@pytest.mark.parametrize(("name", "R"), [("tome", 0.9), ("tome", 0.7), ("tome-table", 0.9), ("tome-table", 0.7)])
def test_equals_the_reference(shape: str, name: str, R: float) -> None:
    vit, images = make_vit(SHAPES[shape]), make_images(4)
    config = resolve_reducer(name, Condensation(R=R, layers=LAYERS))
    plan = schedule(36, 5, config)
    merges = {i: one.ambiguous for i, one in enumerate(plan) if one is not None}
    assert set(merges) == (set(range(5)) if name == "tome" else set(LAYERS))
    fast = encode(vit, images, config)
    where = source_map(fast.steps).token
    for b, image in enumerate(images):
        choose = {i: _pairs(r, vit.shape.class_token) for i, r in merges.items()}
        slow = slow_encode(vit, image.numpy(), choose, config.metric, config.proportional)
        assert where[b].tolist() == slow.homes
        assert sum(slow.sizes) == 36 + vit.shape.first
        np.testing.assert_allclose(fast.feature[b], slow.feature, rtol=0, atol=1e-10)
        np.testing.assert_allclose(fast.tokens[b], slow.tokens, rtol=0, atol=1e-10)


@pytest.mark.parametrize("class_token", [True, False])
@pytest.mark.parametrize("N", [2, 3, 8, 37])
def test_matching_equals_loops(N: int, class_token: bool) -> None:
    generator = torch.Generator().manual_seed(N)
    for r in range(1, (N - class_token) // 2 + 1):
        metric = torch.randn(1, N, 6, generator=generator, dtype=torch.float64)
        groups, _ = slow_match(metric[0].numpy(), r, class_token)
        target = targets(match(metric, r, class_token), N)[0].tolist()
        assert target == [next(t for t, group in enumerate(groups) if i in group) for i in range(N)]
        assert not class_token or (target[0], target.count(0)) == (0, 1)


def test_sums_follow_the_targets() -> None:
    metric, x = (torch.randn(3, 11, d, generator=torch.Generator().manual_seed(d)).double() for d in (4, 5))
    matching = match(metric, 4, True)
    expected = torch.zeros(3, 7, 5).double()
    for b, row in enumerate(targets(matching, 11).tolist()):
        for i, t in enumerate(row):
            expected[b, t] += x[b, i]
    torch.testing.assert_close(merge(x, matching), expected)
    assert torch.equal(gather_tokens(x[:, ::2], matching.stay)[:, 0], x[:, 0])


@pytest.mark.parametrize("class_token", [True, False])
def test_sizes_add_up_and_the_class_token_stands_for_itself(class_token: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x, size = torch.randn(2, 30 + class_token, 8, generator=generator).double(), None
    start = x
    for n in (30, 24, 15, 8):
        one = stage(n, Condensation(rule="matching", counts="merge", R=0.6))
        done = merge_pairs(x[:, : n + class_token], x[:, : n + class_token], None, one, class_token)
        assert done.size is not None
        torch.testing.assert_close(done.size.sum(dim=1), torch.full((2,), n + class_token).double())
        assert done.tokens.shape[1] == one.out + class_token
        if class_token:
            assert torch.equal(done.tokens[:, 0], start[:, 0])
            assert (done.size[:, 0] == 1).all()
    # Sizes carry on: the weighted mean of all tokens never changes.
    for n in (30, 24):
        one = stage(n, Condensation(rule="matching", counts="merge", R=0.8))
        done = merge_pairs(x, x, size, one, class_token)
        x, size = done.tokens, done.size
        assert size is not None
        torch.testing.assert_close((x * size.unsqueeze(2)).sum(dim=1), start.sum(dim=1))


@pytest.mark.parametrize("shape", [name for name, shape in SHAPES.items() if shape.rope is None])
def test_merging_equal_tokens_changes_nothing(shape: str) -> None:
    """A constant image without positions has equal patches; counted by their sizes, merging them loses nothing."""
    vit = make_vit(SHAPES[shape])
    vit.positions[int(vit.shape.class_token) :] = 0.0
    image = torch.ones(1, 3, 24, 24).double() * torch.randn(1, 3, 1, 1, generator=torch.Generator().manual_seed(0))
    plain = encode(vit, image)
    merged = encode(vit, image, resolve_reducer("tome", Condensation(R=0.7, layers=LAYERS)))
    torch.testing.assert_close(merged.feature, plain.feature, rtol=0, atol=1e-10)
    torch.testing.assert_close(merged.tokens, plain.tokens, rtol=0, atol=1e-10)
    if shape == "class":  # elsewhere no query but those of equal patches would notice
        unseen = encode(vit, image, resolve_reducer("tome-table", Condensation(R=0.7, layers=LAYERS)))
        assert not torch.allclose(unseen.feature, plain.feature, atol=1e-6)


@pytest.mark.parametrize("r", [1, 9, 100])
def test_r_given_and_clipped_at_half(r: int) -> None:
    config = resolve_reducer("tome", Condensation(r=r, layers=LAYERS))
    left, expected = 36, []
    for _ in range(5):
        left -= min(r, left // 2)
        expected.append(left)
    assert [one.out for one in schedule(36, 5, config) if one is not None] == expected
    assert source_map(encode(make_vit(CLASS), make_images(1), config).steps).left.tolist() == [expected]


def test_r_belongs_to_tome() -> None:
    with pytest.raises(ConfigError, match="reducer 'tome'"):
        resolve_reducer("evit", Condensation(r=3))
    with pytest.raises(ConfigError, match="at least 1"):
        Condensation(r=0)
    with pytest.raises(ConfigError, match="use 'mean'"):
        resolve_reducer("tome", Condensation(summary="attn_pool"))
    with pytest.raises(ConfigError, match="counts by merge or even"):
        Condensation(rule="matching")


@pytest.mark.parametrize(
    ("vision", "R", "printed", "counts"),
    [
        (B16, 0.94, "16.21", (186, 175, 165)),  # the table's .95 row drops 0.06
        (B16, 0.9, "15.30", (178, 161, 145)),  # printed: 15.31
        (B16, 0.7, "11.45", (138, 97, 68)),
        (L14, 0.9, "64.74", (232, 209, 189)),
        (L14, 0.7, "40.05", (180, 126, 89)),
    ],
)
def test_costs_of_the_papers_table(vision: ViTShape, R: float, printed: str, counts: tuple[int, ...]) -> None:
    cost = costs(vision, resolve_reducer("tome-table", Condensation(R=R)), accounting="paper")
    assert f"{cost.gmacs:.2f}" == printed
    assert (cost.tokens[3], cost.tokens[6], cost.tokens[9]) == counts


@pytest.mark.parametrize(("R", "r"), [(0.95, 2), (0.9, 4), (0.8, 8), (0.7, 11)])
def test_R_buys_the_same_cost_as_for_evit(R: float, r: int) -> None:
    tome, evit = resolve_reducer("tome", Condensation(R=R)), resolve_reducer("evit", Condensation(R=R))
    assert {one.ambiguous for one in schedule(196, 12, tome) if one is not None} == {r}
    for vision in (B16, L14):
        assert costs(vision, tome).gmacs == pytest.approx(costs(vision, evit).gmacs, rel=0.04)
