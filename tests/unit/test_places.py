"""Rotary positions: who is turned, where a condensed token lies, and which engines may run such towers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lessmore.config import Condensation
from lessmore.core.condense.coreset import Condensed
from lessmore.core.condense.registry import list_reducers, resolve_reducer
from lessmore.core.condense.schedule import Stage, schedule
from lessmore.core.encoder import encode, pass_block
from lessmore.core.rope import Places, Rope
from lessmore.core.vit import ViTShape
from lessmore.engines import fused_tower
from tests.random_towers import AFTER, BLOCKS, CLASS, PLACED, make_images, make_vit

ROPE = Rope(start=1.0, step=0.5)
STAGE = Stage(patches=4, keep=1, ambiguous=2, pruned=1, centres=1, fused=0)
AT = torch.tensor([[[0.0, 0.0], [1.0, 1.0], [1.0, 2.0], [2.0, 1.0], [9.0, 9.0]]])
"""A class token and four patches: one is kept, the next two become one around the second of them, the last is lost."""
DONE = Condensed(torch.zeros(1, 3, 4), torch.tensor([[0, 1, 1, -1]]), STAGE, None, torch.tensor([[0, 2]]))


def lies(place: str, size: torch.Tensor | None = None) -> list[list[float]]:
    places = Places.of(ROPE, AT, 8).condensed(DONE, 1, size, Condensation(place=place))
    assert places.cos.shape == (1, 1, 3, 4)
    return places.at[0].tolist()


def test_the_three_choices() -> None:
    assert lies("mean") == [[0, 0], [1, 1], [1.5, 1.5]]
    assert lies("mean", torch.tensor([[1.0, 1, 3, 1, 1]])) == [[0, 0], [1, 1], [1.25, 1.75]]
    assert lies("centre") == [[0, 0], [1, 1], [2, 1]]
    assert lies("first") == [[0, 0], [1, 1], [1, 2]]


def test_the_grid_starts_after_the_tokens_that_are_no_patches() -> None:
    at = ROPE.grid(2, 3, torch.zeros(()))
    assert at[0].tolist() == [[0, 0]] * 3 + [[1, 1], [1, 1.5], [1.5, 1], [1.5, 1.5]]
    across = replace(ROPE, columns_first=True).grid(2, 0, torch.zeros(()))
    assert across[0].tolist() == [[1, 1], [1.5, 1], [1, 1.5], [1.5, 1.5]]


def test_what_lies_at_the_origin_is_not_turned_and_no_length_changes() -> None:
    x = torch.randn(2, 3, 7, 8, generator=torch.Generator().manual_seed(0)).double()
    places = Places.of(ROPE, ROPE.grid(2, 3, x), 8)
    turned = places.rotate(x)
    assert torch.equal(turned[:, :, :3], x[:, :, :3])
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    assert not torch.allclose(turned[:, :, 3:], x[:, :, 3:])


def test_only_the_distance_of_two_places_counts() -> None:
    q, k = torch.randn(2, 1, 1, 1, 8, generator=torch.Generator().manual_seed(1)).double()
    near = [Places.of(ROPE, torch.tensor([[[a, b]]]).double(), 8) for a, b in ((1, 2), (4, 7), (11, 22), (14, 27))]
    products = [float((near[i].rotate(q) * near[j].rotate(k)).sum()) for i, j in ((0, 1), (2, 3), (0, 3))]
    assert products[0] == pytest.approx(products[1])
    assert products[0] != pytest.approx(products[2])


@pytest.mark.parametrize("name", [name for name in list_reducers() if name != "none"])
def test_the_choice_matters_exactly_where_tokens_are_merged(name: str) -> None:
    vit, images = make_vit(AFTER), make_images(2)
    base = resolve_reducer(name, Condensation(R=0.6, layers=(1, 2, 3)))
    found = {place: encode(vit, images, replace(base, place=place)).feature for place in ("mean", "centre", "first")}
    merges = name != "ats"
    assert torch.equal(found["mean"], found["centre"]) == (not merges)
    assert torch.equal(found["mean"], found["first"]) == (not merges)
    plain = make_vit(CLASS)
    assert torch.equal(*(encode(plain, images, replace(base, place=place)).feature for place in ("mean", "first")))


@pytest.mark.parametrize("name", [name for name in list_reducers() if name != "none"])
def test_class_token_and_registers_are_never_condensed(name: str) -> None:
    vit, config = make_vit(PLACED), resolve_reducer(name, Condensation(R=0.6, layers=(1, 2, 3)))
    for weight, value in vit.named_parameters():
        if ".attn.out." in weight or ".mlp.down." in weight:
            value.zero_()  # every block leaves tokens as they are, so that only condensing can change them
    first, x, places, size = PLACED.first, vit.embed(make_images(2)), vit.places(), None
    before = x[:, :first]
    for block, stage in zip(vit.blocks, schedule(PLACED.patches, len(vit.blocks), config), strict=True):
        behind = pass_block(block, x, first, config, size, stage, None, places)
        x, size, places = behind.x, behind.size, behind.places
        torch.testing.assert_close(x[:, :first], before, rtol=0, atol=1e-12)
        assert size is None or bool(torch.eq(size[:, :first], 1).all())
        assert places is not None
        assert not bool(places.at[:, :first].any())
    assert x.shape[1] < PLACED.tokens


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        (replace(CLASS, rope=ROPE), "it turns queries and keys by places"),
        (replace(CLASS, registers=4), "it has register tokens"),
        (replace(CLASS, blocks=replace(BLOCKS, gated=True)), "it has gated MLPs"),
        (replace(CLASS, blocks=replace(BLOCKS, inner_norm=True)), "it has norms inside its blocks' halves"),
        (replace(CLASS, blocks=replace(BLOCKS, post_norm=True)), "it has norms after its blocks' halves"),
        (PLACED, "it does not pool by a class token"),
    ],
)
def test_kernels_refuse_by_name_what_they_do_not_know(shape: ViTShape, reason: str) -> None:
    def refused(one: ViTShape) -> str | None:
        wide = replace(one, blocks=replace(one.blocks, width=64))
        return fused_tower.cannot_fuse(make_vit(wide, dtype=torch.float32), Condensation())

    assert refused(shape) == reason
    assert refused(CLASS) is None
