"""Every Triton kernel against the plain functions it stands for; without a GPU in Triton's interpreter."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="triton is not installed")

from lessmore.config import Condensation, preset
from lessmore.core import debias, reservoir, stream
from lessmore.core.class_texts import ClassTexts
from lessmore.core.condense.coreset import condense as plain_condense
from lessmore.core.condense.schedule import stage
from lessmore.core.correction import affinities as plain_affinities
from lessmore.core.correction import layer_weights
from lessmore.core.encoder import Encoded, encode
from lessmore.core.novelty import RING
from lessmore.core.reservoir import ready_anchors
from lessmore.core.scoring import (
    Anchors,
    Candidates,
    anchor_cosines,
    attention_rows,
    blend_rows,
    head_mean,
    nearest_anchor,
    rank_sum,
    token_order,
)
from lessmore.core.stream import StreamState
from lessmore.core.vit import ACTIVATIONS, BlockShape, ViT, ViTShape
from lessmore.engines import graph
from lessmore.engines.chunk_debias import ChunkDebiased, follow_all, observe_all
from lessmore.engines.chunk_replay import admit_on_host, chunk_inputs, store_all_
from lessmore.engines.fused_encoder import Batched
from lessmore.engines.graph import Fused
from lessmore.engines.kernels.admission import fused_admit
from lessmore.engines.kernels.attention import attention
from lessmore.engines.kernels.attention import scores as scores_alone
from lessmore.engines.kernels.condense import MANY, fused_condense
from lessmore.engines.kernels.debias import scan
from lessmore.engines.kernels.elementwise import activation, add_norm, embed, logits, unfold
from lessmore.engines.kernels.linear import linear, pack_weights, parts
from lessmore.engines.kernels.nearest_anchor import Search, fused_look_up, fused_nearest
from lessmore.engines.kernels.reservoir import fused_affinities, own_sums
from lessmore.engines.kernels.token_mean import follow
from lessmore.engines.packed_mean import PackedMean
from lessmore.methods import Setup, make_method

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Without a GPU, kernels run in an interpreter that takes minutes for what a GPU does at once.
SLOW = [pytest.mark.soak] if DEVICE == "cpu" else []
SHAPE = ViTShape(BlockShape(32, 3, 2, 64, "quick_gelu", layer_scale=True), image_size=20, patch=4, embed=16)


@pytest.fixture
def random() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def normal(random: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=random).to(DEVICE)


def tower(random: torch.Generator) -> ViT:
    vit = ViT(SHAPE).eval().requires_grad_(False)
    for parameter in vit.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=random) * 0.3 + (parameter == 1))
    return vit.to(DEVICE)


def close(ours: torch.Tensor, theirs: torch.Tensor, tolerance: float = 2e-5) -> None:
    torch.testing.assert_close(ours.double(), theirs.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["quick_gelu", "gelu", "gelu_tanh", "relu"])
def test_linear_with_all_that_surrounds_it(name: str, random: torch.Generator) -> None:
    K, N, rows = 40, 24, 19
    layer, norm = torch.nn.Linear(K, N), torch.nn.LayerNorm(K)
    with torch.no_grad():
        for parameter in (*layer.parameters(), *norm.parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=random))
    layer, norm = layer.to(DEVICE).requires_grad_(False), norm.to(DEVICE).requires_grad_(False)
    x, residual, scale = normal(random, rows, K) + 3, normal(random, rows, N), normal(random, N)
    sums = torch.stack([x, x * x]).view(2, rows, 2, K // 2).sum(dim=-1)
    emitted = torch.zeros(2, rows, parts(rows, N, K), device=DEVICE)
    y = torch.full((rows, N), torch.nan, device=DEVICE)
    linear(x, pack_weights(layer, norm), y, name, residual, sums, emitted)
    close(y, ACTIVATIONS[name](layer(norm(x))) + residual, 1e-4)
    close(emitted.sum(dim=-1), torch.stack([y.sum(dim=1), (y * y).sum(dim=1)]), 1e-4)
    close(linear(x, pack_weights(layer, scale=scale), y.fill_(torch.nan)), layer(x) * scale, 1e-4)


@pytest.mark.parametrize("sized", [False, True])
@pytest.mark.parametrize(
    ("rows", "anchor_kv", "labels"),
    [("class", False, None), ("both", True, [3, -1]), ("anchor", False, [-1, 0])],
)
def test_attention_scores_and_ranks(
    rows: str, anchor_kv: bool, labels: list[int] | None, sized: bool, random: torch.Generator
) -> None:
    B, H, d, slot = 2, 2, 16, int(labels is not None)
    N = 21 + slot
    qkv = normal(random, B, N, 3 * H * d)
    out = torch.full((B, N, H * d), torch.nan, device=DEVICE)
    n = N - 1 - slot
    scores = torch.full((B, H, n), torch.nan, device=DEVICE)
    ranks = torch.full((B, H, n), -1, dtype=torch.int32, device=DEVICE)
    label = None if labels is None else torch.tensor(labels, dtype=torch.int32, device=DEVICE)
    size = torch.randint(1, 40, (B, n), generator=random).float().log().to(DEVICE) if sized else None
    how = bool(slot), label, rows, anchor_kv, size
    attention(qkv, out, H, how[0], scores, ranks, *how[1:])  # type: ignore[arg-type]
    alone = scores_alone(qkv, H, True, *how)  # type: ignore[arg-type]
    assert torch.equal(alone[0], scores) and alone[1] is not None and torch.equal(alone[1], ranks)
    q, k, v = qkv.view(B, N, 3, H, d).permute(2, 0, 3, 1, 4).unbind(0)
    bias = torch.zeros(B, 1, 1, N, device=DEVICE)
    if size is not None:
        bias[..., slot + 1 :] = size[:, None, None]
    if labels is not None:
        hidden = torch.tensor([label < 0 or not anchor_kv for label in labels], device=DEVICE)
        bias[hidden, ..., 0] = -torch.inf
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2)
    close(out[:, slot:], expected[:, slot:])
    row = attention_rows(q, k, bias)
    wanted = row[:, :, slot, slot + 1 :]
    if label is not None:
        wanted = blend_rows(rows, wanted, row[:, :, 0, slot + 1 :], label >= 0)  # type: ignore[arg-type]
    close(scores, wanted)
    assert torch.equal(ranks.sum(dim=1), rank_sum(scores))


MERGED = Condensation(R=0.6, merge_prune=(1, 0), proportional=True)
MANIFOLD = Condensation(R=0.5, counts="exact", K=3, pruned="fuse", merge="inverse_distance", score="mean")


@pytest.mark.parametrize(
    ("config", "sized"),
    [
        (Condensation(R=0.6), False),
        (MANIFOLD, False),
        (Condensation(R=0.7, counts="keep", merge_prune=(0, 1), K=0, pruned="fuse", score="mean"), False),
        (MERGED, False),
        (MERGED, True),
        (replace(MANIFOLD, proportional=True), True),
        (replace(MANIFOLD, merge_prune=(1, 0), proportional=True), True),
    ],
)
@pytest.mark.parametrize("n", [30, 150])
@pytest.mark.parametrize(("B", "added"), [(2, False), (2, True), (MANY, True)])
def test_condense(config: Condensation, sized: bool, n: int, B: int, added: bool, random: torch.Generator) -> None:
    """Of 150 tokens some cases merge more than `PRODUCTS`."""
    H, D = 3, 40
    x, rows = normal(random, B, 1 + n, D), normal(random, B, H, n).softmax(dim=-1)
    rows[:, :, 5] = rows[:, :, 9]  # ties
    plan = stage(n, config)
    ranks = torch.stack([rank_sum(rows[:, h : h + 1]) for h in range(H)], dim=1).int()
    y = torch.full((B, 1 + plan.out, D), torch.nan, device=DEVICE)
    sums = torch.full((2, B * (1 + plan.out), 1), torch.nan, device=DEVICE)
    order = torch.full((B, n), -1, dtype=torch.int32, device=DEVICE)
    target, ticket = torch.full((B, n), -9, device=DEVICE), torch.zeros(B, dtype=torch.int32, device=DEVICE)
    ranked = ranks if config.score == "rank" else None
    # Added on the way, as a part of something larger.
    delta = normal(random, B, 2 + n, D)[:, 1:] if added else None
    size = torch.randint(1, 40, (B, n), generator=random).float().log().to(DEVICE) if sized else None
    carried = torch.full((B, plan.out), torch.nan, device=DEVICE) if config.proportional else None
    fused_condense(x, y, sums, rows, ranked, order, target, ticket, plan, config, delta, size, carried)
    x = x if delta is None else x + delta
    before = (torch.zeros_like(rows[:, 0]) if size is None else size).exp() if config.proportional else None
    expected = plain_condense(x[:, 1:], token_order(rows, config.score), head_mean(rows), plan, config, before)
    assert torch.equal(target, expected.target)
    if carried is not None and expected.size is not None:
        close(carried, expected.size.log())
    close(y, torch.cat([x[:, :1], expected.tokens], dim=1))
    close(sums[0].view(B, -1), y.sum(dim=2), 1e-4)
    close(sums[1].view(B, -1), (y * y).sum(dim=2), 1e-4)
    assert not ticket.any()


def test_small_kernels(random: torch.Generator) -> None:
    vit = tower(random)
    pixels = normal(random, 2, 3, 20, 20)
    patches = unfold(pixels, torch.full((2 * 25, 48), torch.nan, device=DEVICE), 4)
    close(patches, F.unfold(pixels, 4, stride=4).transpose(1, 2).flatten(0, 1))
    embedded = F.linear(patches, vit.patch_embed.weight.flatten(1))
    tokens, sums = torch.full((2, 27, 32), torch.nan, device=DEVICE), torch.zeros(2, 2 * 27, 1, device=DEVICE)
    embed(embedded, vit.class_embed, vit.positions, vit.norm_pre, tokens, sums)
    close(tokens[:, 1:], vit.embed(pixels))
    assert tokens.isfinite().all()
    x, delta = normal(random, 7, 32), normal(random, 7, 32)
    block = vit.blocks[0]
    total, normed = add_norm(x, delta, block.norm1)  # type: ignore[union-attr, arg-type]
    close(total, x + delta)
    close(normed, block.norm1(x + delta))  # type: ignore[union-attr, operator]
    images, lead = x[:6].view(2, 3, 32), normal(random, 2, 1, 32)
    for added in (delta[:6].view(2, 3, 32), None):
        total, normed = add_norm(images, added, block.norm1, lead)  # type: ignore[union-attr, arg-type]
        close(total, images if added is None else images + added)
        close(normed, block.norm1(torch.cat([lead, total], dim=1)))  # type: ignore[union-attr, operator]
    close(activation(x.clone(), "quick_gelu"), ACTIVATIONS["quick_gelu"](x))
    pooled, text = normal(random, 1, 16), F.normalize(normal(random, 11, 16), dim=-1)
    feature, found = torch.zeros(1, 16, device=DEVICE), torch.zeros(1, 11, device=DEVICE)
    logits(pooled, text, 20.0, feature, found)
    close(feature, F.normalize(pooled, dim=-1))
    close(found, 20 * feature @ text.T)


@pytest.mark.parametrize(("everyone", "M"), [(False, 2), (True, 2), pytest.param(False, 110, marks=SLOW)])
def test_nearest_and_affinities(everyone: bool, M: int, random: torch.Generator) -> None:
    """With few entries, and with more than a thousand, for which programs are smaller."""
    C, L, D = 10, 3, 32
    state = reservoir.empty_reservoir(C, M, L, D, torch.float32, DEVICE)
    state.means.copy_(normal(random, C, L, D))
    state.anchors.copy_(normal(random, C, M, L, D))
    space, label = Search.of(1, C, torch.device(DEVICE)), torch.zeros(1, dtype=torch.int32, device=DEVICE)
    for filled in ([], [3, 8], list(range(C))):
        state.counts.zero_()[filled] = 2
        state.ids.fill_(-1)[filled] = 1
        x, sums = normal(random, 1, 5, D), torch.zeros(2, 5, 3, device=DEVICE)
        ready = "all" if everyone else "class"
        expected = nearest_anchor(x[:, 1], ready_anchors(state, ready).at(1, x[:, 1]))  # type: ignore[arg-type]
        fused_nearest(x, sums, state, 1, everyone, label, space)
        assert int(label) == int(expected.label)
        if int(label) >= 0:
            close(x[:, 0], expected.token[:, 0])
            close(sums[:, 0].sum(dim=-1), torch.stack([x[0, 0].sum(), (x[0, 0] ** 2).sum()]))
    tokens, weights = normal(random, L, 2 * D)[:, :D], layer_weights(L, 0.5, "linspace", state.keys)
    found = fused_affinities(tokens, weights, state.anchors, torch.full((C, M), torch.nan, device=DEVICE))
    close(found, plain_affinities(tokens, state.anchors, weights))
    several, stored = normal(random, 2, L, D), normal(random, 2, C, M, L, D)
    stored[1, 3, 1] = 0  # no entry
    found = fused_affinities(several, weights, stored, torch.full((2, C, M), torch.nan, device=DEVICE))
    close(found, torch.stack([plain_affinities(*pair, weights) for pair in zip(several, stored, strict=True)]))
    mean = 0.1 * normal(random, 2, L, D)
    out = torch.full((2, C, M), torch.nan, device=DEVICE)
    found = fused_affinities(several, weights, stored, out, mean, own_sums(several, mean))
    for ours, tokens, entries, own in zip(found, several, stored, mean, strict=True):
        close(ours, plain_affinities(tokens, entries, weights, own))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_token_mean(dtype: torch.dtype, random: torch.Generator) -> None:
    """Of many images, two of them bad and the last not real; of one, in place."""
    P, L, D = 9, 3, 20
    state = stream.empty(2, 1, L, D, 5, dtype, DEVICE)
    tokens, feature = normal(random, P, L, 2 * D).to(dtype)[..., :D], normal(random, P, 5).to(dtype)
    tokens[2], feature[2], feature[5, 1] = torch.nan, torch.nan, torch.inf
    state.reservoir.step.fill_(290)
    state.token_mean.copy_(0.1 * normal(random, L, D))
    images = torch.tensor(P - 1, device=DEVICE)
    expected = follow_all(state, Encoded(feature, tokens, []), images)
    sums = expected.new_empty(P, 3, L)
    found = follow(tokens, feature, images, state.reservoir.step, state.token_mean, torch.empty_like(expected), sums)
    close(found, expected)
    good = feature.isfinite().all(dim=1)
    close(sums[good], own_sums(tokens, expected)[good])
    for i in (2, 5, P - 1):
        assert torch.equal(found[i], found[i - 1])
    follow(tokens[:1], feature[:1], images, state.reservoir.step, state.token_mean, state.token_mean, sums)
    close(state.token_mean, expected[0])


@pytest.mark.parametrize("own", [False, True])
def test_looking_up(own: bool, random: torch.Generator) -> None:
    """With candidates for all, and with some of one's own; images without any, with one, and with two alike."""
    B, C, A, D = 5, 11, 20, 24
    summary, means = normal(random, B, 3, D)[:, 1], normal(random, A, 2, D)[:, 1]
    ready, rows = torch.rand(B, C, generator=random).to(DEVICE) < 0.7, torch.randint(A, (B, C), generator=random)
    ready[0], ready[1], rows[2] = False, torch.arange(C, device=DEVICE) == 9, 7
    anchors = Candidates(means, ready, rows.to(DEVICE)) if own else Candidates(means[:C], ready[3])
    label, token, lead = fused_look_up(summary, anchors)
    expected = nearest_anchor(summary, anchors)
    found = label >= 0
    assert torch.equal(label, expected.label) and (int(found.sum()) == B - own)
    assert torch.equal(token[found], expected.token[found, 0])
    top = anchor_cosines(summary, anchors)[found].topk(2, dim=1).values
    close(lead[found], top[:, 0] - top[:, 1])
    summary[3] = torch.nan
    assert int(fused_look_up(summary, anchors)[0][3]) == -1


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("default", {}),
        ("paper", {"strategy": "similarity"}),
        ("released", {"rate": 0.1, "ready": "class", "M": 2, "order": "predict_first", "debias": "bold"}),
        pytest.param(
            "default",
            {"strategy": "fifo", "key": "class_term", "exclude_own": True, "K": 3, "rows": "anchor"},
            marks=SLOW,
        ),
        pytest.param("default", {"merge_prune": (1, 0), "proportional": True}, marks=SLOW),
        ("paper", {"merge": "inverse_distance", "pruned": "fuse", "proportional": True, "R": 0.7}),
    ],
)
@torch.no_grad()
def test_a_whole_step(name: str, options: dict[str, object], random: torch.Generator) -> None:
    """The fused step and the plain one, image by image: same sets, same reservoir, same answers."""
    text = F.normalize(normal(random, 3, 16), dim=-1)
    setup = Setup(tower(random), text, 20.0, preset(name, layers=(1, 2), **options))
    plain, ours = make_method("tca", setup), make_method("tca", setup)
    # Both have seen something already: a stream begins without a mean.
    past = F.normalize(normal(random, 40, 16) + normal(random, 16), dim=-1)
    start, forty = stream.empty(3, 1, 1, 1, 16, torch.float32, DEVICE), torch.tensor(40, device=DEVICE)
    bold = replace(setup, preset=preset("bold"))
    mean = observe_all(start, past, setup.class_texts.logits(past), forty, bold).stream_mean
    for method in (plain, ours):
        method.restore({**method.state(), **mean._asdict()})
    fused = Fused(ours)  # type: ignore[arg-type]
    for i in range(6):
        pixels = normal(random, 1, 3, 20, 20)
        if i == 4:
            pixels[0, 0, 0, 0] = torch.nan  # never stored
        expected = plain.predict(pixels)
        fused(pixels)
        found = fused.outcome()
        assert torch.equal(plain.state()["ids"], ours.state()["ids"])
        if i == 4:
            continue
        for mine, theirs in zip(found.steps, expected.steps, strict=True):
            assert torch.equal(mine.target, theirs.target)
            assert theirs.anchor is None or torch.equal(mine.anchor, theirs.anchor)  # type: ignore[arg-type]
        close(found.scores, expected.scores, 1e-4)
        close(found.zero_shot, expected.zero_shot, 1e-4)
        assert bool(found.stored) == bool(expected.stored)
    for key, value in plain.state().items():
        close(ours.state()[key], value, 1e-4)
    assert plain.state()["strength"] > 0.1
    assert setup.preset.adaptation.debias != "off" or torch.equal(ours.state()["feature_sum"], mean.feature_sum)


@pytest.mark.parametrize(
    ("name", "proportional"),
    [
        ("default", True),
        ("paper", False),
        pytest.param("default", False, marks=SLOW),
        pytest.param("paper", True, marks=SLOW),
        pytest.param("released", False, marks=SLOW),
        pytest.param("released", True, marks=SLOW),
    ],
)
@torch.no_grad()
def test_a_batch(name: str, proportional: bool, random: torch.Generator) -> None:
    """The fused tower for batches and the plain encoder, with anchors and without."""
    vit, config = tower(random), preset(name, R=0.7, layers=(0, 1, 2), proportional=proportional).condensation
    anchors = Anchors(normal(random, 4, 3, 32), torch.tensor([True, False, True, True], device=DEVICE))
    pixels = normal(random, 3, 3, 20, 20)
    fused = Batched(vit, config)
    begun = fused.begin(pixels)
    for guide in (None, anchors, Anchors(anchors.means, torch.zeros_like(anchors.ready))):
        expected, found = encode(vit, pixels, config, guide), fused.resume(begun, guide)
        close(found.feature, expected.feature, 1e-4)
        close(found.tokens, expected.tokens, 1e-4)
        for mine, theirs in zip(found.steps, expected.steps, strict=True):
            assert torch.equal(mine.target, theirs.target)
            assert theirs.anchor is None or torch.equal(mine.anchor, theirs.anchor)  # type: ignore[arg-type]


@pytest.mark.parametrize("M", [1, 3])
@pytest.mark.parametrize("strategy", ["fifo", "uncertainty", "similarity", "diversity"])
def test_admission(strategy: str, M: int, random: torch.Generator) -> None:
    C, P, L, D, E = 5, 40, 2, 8, 6
    config = preset("default", strategy=strategy, M=M).adaptation
    state = reservoir.empty_reservoir(C, M, L, D, torch.float32, DEVICE)
    for images in (P, P - 3, P):
        tokens, features = normal(random, P, L, D), F.normalize(normal(random, P, E), dim=-1)
        tokens[5] = torch.nan
        tokens[12] = tokens[11]
        scores, keys = normal(random, P, C), torch.rand(P, generator=random).to(DEVICE)
        scores[:, 3] -= 3  # rarely predicted, so that not all classes have two at once
        encoded, count = Encoded(features, tokens, []), torch.tensor(images, device=DEVICE)
        found = chunk_inputs(state, encoded, scores, keys, count, config)
        expected = admit_on_host(state, found, config)
        slot, counts, held, ready = fused_admit(state, config.strategy, *found)
        assert torch.equal(slot, expected.slot) and torch.equal(counts, expected.counts)
        assert torch.equal(held, expected.held)
        assert int(ready.amax()) == int(expected.all_ready)
        assert not expected.stored[5] and not expected.stored[images:].any()
        store_all_(state, expected, encoded, keys, count)


def debiasing(name: str, texts: ClassTexts) -> Setup:
    """As much of a setup as debiasing looks at."""
    return SimpleNamespace(preset=preset(name), class_texts=texts)  # type: ignore[return-value]


def buffers(state: StreamState, P: int, C: int) -> tuple[PackedMean, torch.Tensor, torch.Tensor]:
    """Where a kernel leaves the stream mean, the answers and the trust; filled with what must not stay."""
    like = state.stream_mean.images
    packed, rows = PackedMean.of(state.stream_mean), like.new_full((2, P, C), 7)
    return PackedMean(*(torch.full_like(t, 7) for t in packed[:3]), *packed[3:]), rows[0], rows[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("C", "P"), [(1, 4), (2, 1), (5, 24), (40, 24)])
@pytest.mark.parametrize("name", ["default", "bold", "camera"])
def test_debiasing(name: str, C: int, P: int, dtype: torch.dtype, random: torch.Generator) -> None:
    """Chunk after chunk, one of them filled up, some with an image that is not finite; the last in place."""
    state = stream.empty(C, 1, 1, 4, 8, dtype, DEVICE)
    texts = ClassTexts.of(F.normalize(normal(random, C, 8).to(dtype) + 1, dim=-1), 30.0)
    setup, rule = debiasing(name, texts), debias.RULES[preset(name).adaptation.debias]
    shift, tolerance = normal(random, 8).to(dtype), 1e-10 if dtype == torch.float64 else 1e-4
    for images, bad in ((P, 0.0), (max(P - 3, 1), 0.0), (P, torch.nan), (P, torch.inf), (P, 0.0)):
        feature = F.normalize(normal(random, P, 8).to(dtype) + shift, dim=-1)
        logits = texts.logits(feature)
        logits[P // 2, 0] += bad
        count, before = torch.tensor(images, device=DEVICE), PackedMean.of(state.stream_mean)
        expected = observe_all(state, feature, logits, count, setup)
        after, answers, trust = buffers(state, P, C)
        after = after._replace(distances=torch.full_like(after.distances, 7)) if rule.new else after
        frames = scan(logits, feature, count, texts, before, after, answers, trust, rule)
        found = (answers, trust, *after._replace(last_frames=frames).view())
        for ours, theirs in zip(found, (expected.logits, expected.trust, *expected.stream_mean), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance, equal_nan=True)
        assert torch.equal(answers[images:], logits[images:])
        state = state._replace(stream_mean=expected.stream_mean)
    again = scan(logits, feature, count, texts, before, before, answers, torch.empty_like(logits), rule)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(before, after, strict=True))
    assert torch.equal(again, frames)
    assert P < 24 or state.stream_mean.strength > 0.1  # something was removed
    assert not rule.new or (frames.any(dim=1).sum() == min(RING, 5 * P - 2 - min(3, P - 1)))


@pytest.mark.parametrize(("name", "how"), [("default", "careful"), ("camera", "camera")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_debiasing_that_restarts(dtype: torch.dtype, name: str, how: str, random: torch.Generator) -> None:
    """Past the limit of what is remembered, with a frequent class, a change of domain, and gaps; in place."""
    C, P = 12, 30
    state, text = stream.empty(C, 1, 1, 4, C, dtype, DEVICE), F.normalize(normal(random, C, 8).to(dtype) + 1, dim=-1)
    # The logits are the features themselves, so that a test can choose them.
    texts = ClassTexts.of(text, 1.0)._replace(text=torch.eye(C, dtype=dtype, device=DEVICE))
    setup, rule = debiasing(name, texts), debias.RULES[how]
    offsets, tolerance = 2.5 * normal(random, 2, C), 1e-9 if dtype == torch.float64 else 1e-3
    ours, full = PackedMean.of(state.stream_mean), False
    for k in range(9):
        labels = torch.where(torch.rand(P, generator=random) < 0.3, 3, torch.randint(0, C, (P,), generator=random))
        logits = 6 * F.one_hot(labels, C).to(DEVICE) + 1.5 * normal(random, P, C) + offsets[k // 7]
        logits[4, k] = torch.nan
        if how == "camera":
            logits[9] = logits[8]  # a repeat, which is no news
        logits, count = logits.to(dtype), torch.tensor(P - k % 3, device=DEVICE)
        expected = observe_all(state, logits, logits, count, setup)
        answers, trust = torch.empty_like(logits), torch.empty_like(logits)
        frames = scan(logits, logits, count, texts, ours, ours, answers, trust, rule)
        ours = ours._replace(last_frames=frames)
        wanted = (expected.logits, expected.trust, *expected.stream_mean)
        for found, theirs in zip((answers, trust, *ours.view()), wanted, strict=True):
            torch.testing.assert_close(found, theirs, rtol=tolerance, atol=tolerance, equal_nan=True)
        assert torch.equal(answers[int(count) :], logits[int(count) :])
        mean = ours.view()
        assert k >= 7 or int(mean.domain_changes) == 0
        state = state._replace(stream_mean=expected.stream_mean)
        full |= float(mean.effective_samples) > 0.999 * debias.MEMORY
        lifted = float(mean.standout_counts.max() / mean.standout_counts.sum()) > debias.OFTEN / C
    assert full and (lifted or how == "camera") and int(mean.domain_changes) >= 1


def test_debiasing_is_captured_as_it_is_where_there_is_no_kernel() -> None:
    """Tensors without values cannot be read on the host."""
    state = stream.empty(5, 1, 1, 4, 8, torch.float32, "meta")
    count, texts = torch.ones((), device="meta"), ClassTexts.of(torch.zeros(5, 8, device="meta"), 1.0)
    feature, logits = torch.zeros(3, 8, device="meta"), torch.zeros(3, 5, device="meta")
    found = observe_all(state, feature, logits, count, debiasing("default", texts))
    assert isinstance(found, ChunkDebiased) and found.trust is not None
    assert [t.shape for t in (found.logits, found.trust)] == [(3, 5), (3, 5)]
    assert [t.shape for t in found.stream_mean] == [t.shape for t in state.stream_mean]


def test_more_classes_than_a_program_holds_are_left_to_plain_functions(
    monkeypatch: pytest.MonkeyPatch, random: torch.Generator
) -> None:
    monkeypatch.setattr(graph, "LARGEST", 3)
    vit, text = tower(random), F.normalize(normal(random, 4, 16), dim=-1)
    for name, method, fused in (("default", "tca", False), ("fixed", "tca", True), ("default", "zeroshot", True)):
        made = make_method(method, Setup(vit, text, 20.0, preset(name, layers=(1, 2))))
        assert (graph._fused(made) is not None) == fused  # type: ignore[arg-type]
