"""Hand-computed checks of tests/reference.py itself, before anything is compared with it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from lessmore.config import Adaptation, Condensation
from lessmore.core.vit import BlockShape, ViT, ViTShape
from tests.random_towers import HEADED
from tests.reference import (
    Cluster,
    Condensed,
    Entry,
    Reference,
    Reservoir,
    Split,
    Tower,
    condense,
    coreset,
    layer_weights,
    merged_value,
    order_patches,
    regroup,
    schedule,
    score_rows,
    table_rate,
    token_classifier,
)
from tests.unit.test_schedule import PAPER_COUNTS

BLOCKS = BlockShape(width=16, depth=4, heads=2, mlp=24, activation="quick_gelu")
SHAPE = ViTShape(BLOCKS, image_size=24, patch=4, embed=8)
NO_CLASS = replace(SHAPE, class_token=False, pre_norm=False, patch_bias=True)


def make_vit(shape: ViTShape, seed: int = 0) -> ViT:
    """A random tower in float64 in which no parameter keeps its neutral start."""
    generator = torch.Generator().manual_seed(seed)
    vit = ViT(shape).double().eval()
    with torch.no_grad():
        for name, parameter in vit.named_parameters():
            gain = 1.0 if "scale" in name or (parameter.ndim == 1 and name.endswith("weight")) else 0.0
            parameter.copy_(gain + 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return vit


def make_images(count: int, size: int = 24, seed: int = 1) -> torch.Tensor:
    """Random images [count, 3, size, size]."""
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make_reference(condensation: Condensation, adaptation: Adaptation, shape: ViTShape = SHAPE) -> Reference:
    """A small tower with four classes."""
    text = torch.randn(4, shape.embed, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return Reference(make_vit(shape), text / text.norm(dim=1, keepdim=True), 5.0, condensation, adaptation)


def entry(vector: tuple[float, ...], key: float, id: int) -> Entry:
    """An entry of two layers that both hold the vector."""
    return Entry(np.array([vector, vector]), np.zeros(1), key, id)


@pytest.mark.parametrize(("patches", "R", "expected"), PAPER_COUNTS)
def test_schedule_gives_the_rows_of_the_check_table(patches: int, R: float, expected: list[int]) -> None:
    counts = [patches]
    for _ in range(3):
        counts.append(schedule(counts[-1], Condensation(pruned="fuse", anchor_kv=True, R=R)).leaving)
    assert [n + 1 for n in counts] == expected


def test_schedule_by_rate_and_exact() -> None:
    assert schedule(196, Condensation(pruned="fuse", anchor_kv=True, counts="rate", rate=0.035, K=4)) == Split(
        176, 14, 6, 4, 1
    )
    assert schedule(196, Condensation(counts="exact", pruned="drop")) == Split(174, 15, 7, 2, 0)
    assert schedule(196, Condensation(pruned="fuse", anchor_kv=True, counts="exact")) == Split(173, 15, 8, 2, 1)
    assert schedule(100, Condensation(pruned="fuse", anchor_kv=True, counts="exact", merge_prune=(0, 1), K=0)) == Split(
        89, 0, 11, 0, 1
    )
    assert schedule(100, Condensation(pruned="fuse", anchor_kv=True, counts="exact", merge_prune=(1, 0))) == Split(
        88, 12, 0, 2, 0
    )
    with pytest.raises(ValueError, match="none would be kept"):
        schedule(9, Condensation(R=0.3, counts="exact"))


def test_table_is_prolonged_below_its_end() -> None:
    assert table_rate(0.85) == pytest.approx(0.0525)
    assert table_rate(0.65) == pytest.approx(0.12)
    assert table_rate(0.5) == pytest.approx(0.18)


def test_coreset_on_a_line() -> None:
    points = [np.array([value]) for value in (2.0, 0.0, 10.0, 9.0, 4.0)]
    assert coreset(points, 1) == [Cluster(0, [0, 1, 2, 3, 4])]
    assert coreset(points, 2) == [Cluster(0, [0, 1, 4]), Cluster(2, [2, 3])]
    # 0 and 4 lie equally far from their nearest centre 2: the earlier one is chosen
    assert coreset(points, 3) == [Cluster(0, [0, 4]), Cluster(2, [2, 3]), Cluster(1, [1])]
    assert merged_value(points, Cluster(0, [0, 1, 4]), "mean") == pytest.approx([2.0])
    assert merged_value(points, Cluster(2, [2, 3, 4]), "inverse_distance") == pytest.approx(
        [(10 + 9 + 4 / 6) / (2 + 1 / 6)]
    )


def test_coreset_of_equal_points_never_chooses_one_twice() -> None:
    points = [np.array([1.0, 1.0])] * 3
    assert coreset(points, 2) == [Cluster(0, [0, 2]), Cluster(1, [1])]
    assert merged_value(points, Cluster(0, [0, 2]), "inverse_distance") == pytest.approx([1.0, 1.0])


def test_condense_keeps_merges_and_fuses_in_order() -> None:
    x = np.array([[1.0], [2.0], [4.0], [8.0], [9.0], [16.0]])
    s = np.array([0.05, 0.1, 0.3, 0.2, 0.15, 0.25])
    tokens, clusters = condense(x, s, [2, 5, 3, 0, 4, 1], Split(2, 3, 1, 2, 1), "mean")
    assert tokens == pytest.approx(np.array([[4.0], [16.0], [8.5], [1.0], [0.2]]))
    assert clusters == [Cluster(3, [3, 4]), Cluster(0, [0])]


def test_nearest_class_by_the_layer_before() -> None:
    reference = make_reference(Condensation(pruned="fuse", anchor_kv=True), Adaptation())
    summary = [np.array([1.0, 0.0]), np.array([0.0, 1.0])]
    assert reference.nearest(1, summary) is None
    for c, tokens in enumerate(([[0, 1], [0, 3]], [[2, 0], [1, 1]], [[1, 1], [0, 1]])):
        reference.reservoir.update(c, Entry(np.array(tokens, dtype=float), np.zeros(1), 0.0, c))
    assert [reference.nearest(i, summary) for i in (0, 1, 2)] == [None, 1, 0]  # 0 and 2 tie at layer 1


def test_order_by_rank_and_by_mean() -> None:
    rows = np.array([[0.90, 0.05, 0.04, 0.01], [0.1, 0.3, 0.2, 0.4], [0.1, 0.3, 0.2, 0.4]])
    assert order_patches(rows, "mean") == [0, 3, 1, 2]
    # rank sums 0+3+3, 1+1+1, 2+2+2, 3+0+0: 1 and 3 tie and 3 has the larger mean, 0 and 2 tie likewise
    assert order_patches(rows, "rank") == [3, 1, 0, 2]
    assert order_patches(np.full((2, 3), 0.25), "rank") == [0, 1, 2]


def test_rows_of_class_and_anchor() -> None:
    maps = np.arange(1.0, 17.0).reshape(1, 4, 4) / 100  # class, two patches, anchor
    assert score_rows(maps, 1, 3, True, "class") == pytest.approx(np.array([[0.02, 0.03]]))
    assert score_rows(maps, 1, 3, True, "anchor") == pytest.approx(np.array([[0.14, 0.15]]))
    assert score_rows(maps, 1, 3, True, "both") == pytest.approx(np.array([[0.08, 0.09]]))
    assert score_rows(maps[:, :3, :3], 1, 3, False, "anchor") == pytest.approx(np.array([[0.02, 0.03]]))
    assert score_rows(maps, 0, 3, True, "class") == pytest.approx(np.array([[0.05, 0.06, 0.07]]))


def test_received_attention_is_regrouped() -> None:
    record = Condensed(0, None, [3], [Cluster(0, [0, 2])], [1, 4], True)
    weights = np.array([0.1, 0.2, 0.3, 0.15, 0.25])
    assert regroup(weights, record) == pytest.approx([0.15, 0.4, 0.45])
    assert regroup(weights, record._replace(fused=False)) == pytest.approx([0.15, 0.4])


@pytest.mark.parametrize(
    ("strategy", "ids"),
    [
        ("fifo", [2, 1]),
        ("uncertainty", [0, 2]),
        ("diversity", [0, 1]),
        ("similarity", [0, 2]),
    ],
)
def test_eviction(strategy: str, ids: list[int]) -> None:
    """Mean cosines to the others of slot 0, slot 1 and the newcomer: .5, 0, .5; keys: .2, .5, .4.

    fifo 0, -1, -2 evicts slot 0; uncertainty .2, .5, .4 and similarity -.3, .5, -.1 evict slot 1; diversity .7, .5, .9
    turns the newcomer away.
    """
    reservoir = Reservoir(2, 2, strategy)
    for sample in (entry((1, 0), 0.2, 0), entry((0, 3), 0.5, 1), entry((2, 0), 0.4, 2)):
        reservoir.update(1, sample)
    assert [e.id for e in reservoir.slots[1]] == ids
    assert reservoir.slots[0] == []


@pytest.mark.parametrize("strategy", ["uncertainty", "diversity", "similarity"])
def test_on_ties_the_newcomer_goes(strategy: str) -> None:
    reservoir = Reservoir(1, 2, strategy)
    for id in range(4):
        reservoir.update(0, entry((1, 1), 0.3, id))
    assert [e.id for e in reservoir.slots[0]] == [0, 1]


def test_then_the_lowest_slot_goes_and_readiness() -> None:
    reservoir = Reservoir(2, 2, "uncertainty")
    for id, key in enumerate((0.5, 0.5, 0.1)):
        reservoir.update(0, entry((id + 1.0, 0), key, id))
    assert [e.id for e in reservoir.slots[0]] == [2, 1]
    assert reservoir.mean(0) == pytest.approx(np.array([[2.5, 0], [2.5, 0]]))
    assert (reservoir.ready("class"), reservoir.ready("all")) == ([0], [])
    reservoir.update(1, entry((0, 1), 0.1, 3))
    assert (reservoir.ready("class"), reservoir.ready("all")) == ([0, 1], [])
    reservoir.update(1, entry((0, 1), 0.1, 4))
    assert reservoir.ready("all") == [0, 1]


def test_layer_weights() -> None:
    assert layer_weights(12, 0.01, "linspace")[-1] == pytest.approx(1 / (1 + math.exp(-100 / 11)), abs=1e-7)
    assert layer_weights(12, 0.1, "linspace")[-1] == pytest.approx(0.597, abs=5e-4)
    assert layer_weights(12, 0.01, "index") == pytest.approx([0.0] * 11 + [1.0])
    assert layer_weights(2, 1.0, "index") == pytest.approx([1 / (1 + math.e), math.e / (1 + math.e)])
    assert layer_weights(1, 0.01, "linspace") == pytest.approx([1.0])


def test_token_classifier() -> None:
    slots = [[entry((1, 0), 0, 0), entry((0, 1), 0, 1)], [], [entry((-2, 0), 0, 2)]]
    tokens = np.array([[2.0, 0.0], [5.0, 0.0]])
    linear = Adaptation(kernel="linear")
    assert token_classifier(tokens, slots, linear) == pytest.approx([0.5, 0, -1])
    assert token_classifier(tokens, slots, linear, skip=0) == pytest.approx([0, 0, -1])
    total = Adaptation(over="sum", sharpness=2.0)
    assert token_classifier(tokens, slots, total) == pytest.approx([1 + math.exp(-2), 0, math.exp(-4)])


@pytest.mark.parametrize(
    "shape",
    [
        SHAPE,
        replace(SHAPE, blocks=replace(BLOCKS, activation="gelu", layer_scale=True), norm_then_pool=True),
        replace(SHAPE, pool="mean", projection_bias=True, blocks=replace(BLOCKS, activation="relu")),
        replace(NO_CLASS, pool="map", norm_then_pool=True, projection=False, embed=16),
        replace(NO_CLASS, pool="map", blocks=replace(BLOCKS, activation="gelu_tanh", eps=1e-6)),
        replace(NO_CLASS, pool="mean"),
        HEADED,
    ],
    ids=["class", "class-scaled", "mean-with-class", "map", "map-tanh", "mean", "headed"],
)
def test_nothing_condensed_is_the_plain_tower(shape: ViTShape) -> None:
    reference = make_reference(Condensation(R=1.0), Adaptation(), shape)
    vit, images = make_vit(shape), make_images(2)
    with torch.no_grad():
        expected = vit(images).numpy()
        first = vit.blocks[0](vit.embed(images), places=vit.places()).numpy()
    for image, pooled, tokens in zip(images, expected, first, strict=True):
        encoding = reference.encode(image)
        assert encoding.pooled == pytest.approx(pooled, rel=1e-12, abs=1e-12)
        assert encoding.feature == pytest.approx(pooled / np.linalg.norm(pooled), rel=1e-12, abs=1e-12)
        summary = tokens[0] if shape.class_token else tokens.mean(axis=0)
        assert encoding.summary[0] == pytest.approx(summary, rel=1e-12, abs=1e-12)
        assert encoding.condensed == [] and encoding.tokens == [shape.tokens] * shape.blocks.depth


@pytest.mark.parametrize("shape", [SHAPE, replace(NO_CLASS, pool="map")], ids=["class", "map"])
def test_condensing_blocks_divide_their_patches(shape: ViTShape) -> None:
    config = Condensation(
        pruned="fuse", anchor_kv=True, R=0.7, layers=(0, 2), rows="both", summary="attn_pool", merge="inverse_distance"
    )
    reference = make_reference(config, Adaptation(ready="class"), shape)
    for number, image in enumerate(make_images(3)):
        result = reference.step(image)
        patches, first = 36, int(shape.class_token)
        for record in result.condensed:
            split = schedule(patches, config)
            merged = [j for cluster in record.merged for j in cluster.members]
            assert sorted(record.kept + merged + record.pruned) == list(range(patches))
            assert (len(record.kept), len(merged), len(record.pruned)) == split[:3]
            assert len(record.merged) == split.centres == 2
            assert all(cluster.centre in cluster.members for cluster in record.merged)
            patches = split.leaving
            assert result.tokens[record.block] == patches + first
        assert result.condensed[0].anchor is None
        assert (result.condensed[1].anchor is None) == (number == 0)


def test_one_block_by_hand() -> None:
    """Condensing without a coreset is EViT: the best patches, then the sum of s_j x_j over the others."""
    shape = replace(SHAPE, blocks=replace(BLOCKS, depth=1))
    config = Condensation(
        pruned="fuse", anchor_kv=True, R=0.5, counts="exact", layers=(0,), score="mean", merge_prune=(0, 1), K=0
    )
    encoding = make_reference(config, Adaptation(), shape).encode(make_images(1)[0])
    vit = make_vit(shape)
    block = vit.blocks[0]
    with torch.no_grad():
        x = vit.embed(make_images(1))
        q, k, _ = block.attn.project(block.norm1(x))
        s = (q @ k.transpose(-1, -2) / math.sqrt(8)).softmax(-1)[0, :, 0, 1:].mean(0)
        x = block.add_attention(x, block.attn(block.norm1(x)))[0]
        order = s.argsort(descending=True, stable=True)
        kept, pruned = order[:17], order[17:]
        x = torch.cat([x[:1], x[1:][kept], (s[pruned, None] * x[1:][pruned]).sum(0, keepdim=True)])
        expected = vit.pool(block.add_mlp(x[None]))[0].numpy()
    assert encoding.condensed == [Condensed(0, None, kept.tolist(), [], pruned.tolist(), True)]
    assert encoding.pooled == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_attention_pooled_summary_by_hand() -> None:
    shape = replace(NO_CLASS, pool="mean", blocks=replace(BLOCKS, depth=1))
    encoding = make_reference(Condensation(R=1.0, summary="attn_pool"), Adaptation(), shape).encode(make_images(1)[0])
    vit = make_vit(shape)
    block = vit.blocks[0]
    with torch.no_grad():
        x = vit.embed(make_images(1))
        q, k, _ = block.attn.project(block.norm1(x))
        received = (q @ k.transpose(-1, -2) / math.sqrt(8)).softmax(-1).mean(dim=(0, 1, 2))
        expected = (received @ block(x)[0]).numpy()
    assert encoding.summary[0] == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_anchor_joins_as_key_value_and_query() -> None:
    tower = Tower(make_vit(SHAPE))
    x = tower.embed(make_images(1)[0].numpy())
    plain, maps = tower.attend(1, x, None, True)
    silent, seen = tower.attend(1, x, x[3], False)
    assert silent == pytest.approx(plain, abs=1e-14) and seen.shape == (2, 38, 37)
    assert seen[:, 37] == pytest.approx(maps[:, 3])
    joined, both = tower.attend(1, x, x[3], True)
    assert both.shape == (2, 38, 38) and np.abs(joined - plain).max() > 1e-6
    assert both[:, :, 37] == pytest.approx(both[:, :, 3])
    # one more key only rescales a row, so no head changes its ranking
    for h in range(2):
        assert order_patches(both[h : h + 1, 0, 1:37], "rank") == order_patches(maps[h : h + 1, 0, 1:37], "rank")


def test_steps_correct_before_or_after_the_update() -> None:
    image, other = make_images(2)
    plain = Condensation(R=1.0)
    reference = make_reference(plain, Adaptation(lam=3.0, order="predict_first"))
    first = reference.step(image)
    c = int(first.logits.argmax())
    assert first.corrected == pytest.approx(first.logits, abs=0) and first.index == c
    assert first.ids == [[0] if k == c else [] for k in range(4)]
    again = reference.step(image)  # now it meets itself: affinity 1, kernel 1
    assert again.corrected - again.logits == pytest.approx(3.0 * np.eye(4)[c], abs=1e-12)
    assert again.ids[c] == [0, 1]
    own = make_reference(plain, Adaptation(lam=2.0, order="update_first", domain="probabilities", kernel="linear"))
    p = np.exp(first.logits) / np.exp(first.logits).sum()
    assert own.step(image).corrected == pytest.approx(p + 2.0 * np.eye(4)[c], abs=1e-12)
    without = make_reference(plain, Adaptation(lam=3.0, order="update_first", exclude_own=True))
    alone = without.step(image)
    assert alone.corrected == pytest.approx(alone.logits, abs=0)
    second = without.step(other)
    earlier = [[Entry(alone.summary, alone.feature, alone.key, 0)] if k == c else [] for k in range(4)]
    expected = second.logits + 3.0 * token_classifier(second.summary, earlier, Adaptation())
    assert second.corrected == pytest.approx(expected, rel=1e-14)


def test_keys() -> None:
    image = make_images(1)[0]
    entropy = make_reference(Condensation(R=1.0), Adaptation(key="entropy")).step(image)
    term = make_reference(Condensation(R=1.0), Adaptation(key="class_term")).step(image)
    p = torch.from_numpy(entropy.logits).softmax(0)
    assert entropy.key == pytest.approx(float(torch.distributions.Categorical(probs=p).entropy()))
    assert term.key == pytest.approx(float(-p.max() * p.max().log()))
