"""What must hold whatever the options: counts, partitions, baselines, permutations."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lessmore.config import Adaptation, Condensation, Preset, preset
from lessmore.core import reservoir, stream
from lessmore.core.class_texts import ClassTexts
from lessmore.core.condense.registry import resolve_reducer
from lessmore.core.condense.schedule import schedule
from lessmore.core.condense.source import GONE, KEPT, MERGED, PRUNED, source_map
from lessmore.core.encoder import encode
from lessmore.core.scoring import Anchors
from lessmore.core.step import Sample, plain_operations, settle
from lessmore.methods import Setup, make_method
from lessmore.methods.tca import TCA
from tests.random_towers import CLASS, MAP, SHAPES, make_images, make_text, make_vit

LAYERS = (1, 2, 3)
PRESETS = ["labelfree", "paper", "released"]


def small(name: str, **options: object) -> Preset:
    return preset(name, layers=LAYERS, **options)


def run(shape: str, chosen: Preset, images: Tensor, classes: int = 4, order: Tensor | None = None) -> list[Tensor]:
    """Final probabilities of every image; `order` permutes the classes."""
    vit = make_vit(SHAPES[shape])
    text = make_text(classes, vit.shape.embed)
    method = make_method("tca", Setup(vit, text if order is None else text[order], 6.0, chosen))
    return [method.predict(image[None]).scores for image in images]


@pytest.mark.parametrize("shape", list(SHAPES))
@pytest.mark.parametrize("R", [0.95, 0.9, 0.7])
@pytest.mark.parametrize("name", PRESETS)
def test_tokens_follow_the_schedule_and_the_source_map_is_a_partition(shape: str, R: float, name: str) -> None:
    vit = make_vit(SHAPES[shape])
    config = small(name, R=R).condensation
    images = make_images(3)
    patches = (images.shape[-1] // vit.shape.patch) ** 2  # a flexible tower has as many as the image
    plan = [s for s in schedule(patches, len(vit.blocks), config) if s is not None]
    steps = encode(vit, images, config).steps
    assert [s.stage for s in steps] == plan
    for step in steps:
        for target in step.target:
            # Every outgoing token has at least one patch behind it, every patch goes to one place.
            assert set(target.tolist()) - {-1} == set(range(step.stage.out))
            assert int((target == -1).sum()) == (0 if step.stage.fused else step.stage.pruned)
    sources = source_map(steps)
    assert sources.fate.shape == (3, len(steps), patches)
    fates = sources.fate[:, 0]
    for fate, count in ((KEPT, plan[0].keep), (MERGED, plan[0].ambiguous), (PRUNED, plan[0].pruned)):
        assert ((fates == fate).sum(dim=1) == count).all()
    gone = sources.fate == GONE
    assert (gone[:, 1:] >= gone[:, :-1]).all()  # once gone, gone
    assert ((sources.fate == PRUNED)[:, 0] == gone[:, 1]).all()
    assert ((sources.token >= 0) == (sources.fate <= MERGED)).all()
    assert ((sources.centre >= 0) == (sources.fate == MERGED)).all()


@pytest.mark.parametrize("name", PRESETS)
def test_the_class_token_is_never_dropped(name: str) -> None:
    """Were the class token condensed, the plain continuation of the first block's output could not contain it."""
    vit = make_vit(CLASS)
    config = replace(small(name).condensation, layers=(4,))  # the last block, so that nothing follows but pooling
    plain, condensed = encode(vit, make_images(4)), encode(vit, make_images(4), config)
    torch.testing.assert_close(plain.feature, condensed.feature, rtol=0, atol=1e-12)
    torch.testing.assert_close(plain.tokens, condensed.tokens, rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", list(SHAPES))
@pytest.mark.parametrize("domain", ["logits", "probabilities"])
def test_R_1_without_correction_is_plain_zero_shot(shape: str, domain: str) -> None:
    vit = make_vit(SHAPES[shape], dtype=torch.float32, spread=0.2)
    text = make_text(5, vit.shape.embed, dtype=torch.float32)
    method = make_method("tca", Setup(vit, text, 6.0, small("fixed", R=1.0, lam=0.0, domain=domain)))
    for image in make_images(6, dtype=torch.float32):
        outcome = method.predict(image[None])
        plain = (6.0 * F.normalize(vit(image[None]), dim=-1) @ text.T)[0].softmax(dim=-1)
        torch.testing.assert_close(outcome.scores, plain, rtol=0, atol=1e-6)
        torch.testing.assert_close(outcome.zero_shot, plain, rtol=0, atol=1e-6)


@pytest.mark.parametrize("shape", list(SHAPES))
@pytest.mark.parametrize("name", PRESETS)
def test_permuting_classes_permutes_the_answer(shape: str, name: str) -> None:
    images = make_images(12)
    order = torch.tensor([2, 0, 3, 1])
    straight = run(shape, small(name), images)
    permuted = run(shape, small(name), images, order=order)
    for a, b in zip(straight, permuted, strict=True):
        torch.testing.assert_close(a[order], b, rtol=0, atol=1e-10)


def evit_by_hand(images: Tensor, R: float) -> Tensor:
    """EViT written down once more, block by block: top ceil(R·n) by head-mean class attention, one fused token."""
    vit = make_vit(CLASS)
    x = vit.embed(images)
    for i, block in enumerate(vit.blocks):
        q, k, v = block.attn.project(block.norm1(x))  # type: ignore[operator,union-attr]
        attention = ((q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5).softmax(dim=-1)
        x = x + block.attn.combine(attention @ v)  # type: ignore[operator,union-attr]
        if i in LAYERS:
            score = attention[:, :, 0, 1:].mean(dim=1)
            kept = -(-round(R * score.shape[1] * 1000) // 1000)
            top = score.topk(kept, dim=1).indices
            rest = torch.ones_like(score).scatter(1, top, 0.0)
            fused = ((score * rest).unsqueeze(-1) * x[:, 1:]).sum(dim=1, keepdim=True)
            x = torch.cat([x[:, :1], x[:, 1:].gather(1, top.unsqueeze(-1).expand(-1, -1, x.shape[-1])), fused], dim=1)
        x = block.add_mlp(x)  # type: ignore[operator]
    return F.normalize(vit.pool(x), dim=-1)


@pytest.mark.parametrize("R", [0.9, 0.7])
def test_evit_is_condensation_with_nothing_ambiguous_head_mean_and_a_fused_token(R: float) -> None:
    images = make_images(5)
    config = resolve_reducer("evit", Condensation(R=R, layers=LAYERS))
    assert (config.merge_prune, config.score, config.pruned) == ((0, 1), "mean", "fuse")
    torch.testing.assert_close(encode(make_vit(CLASS), images, config).feature, evit_by_hand(images, R))


@pytest.mark.parametrize("name", PRESETS)
def test_an_empty_reservoir_corrects_nothing(name: str) -> None:
    vit, text = make_vit(CLASS), make_text(4)
    chosen = small(name, order="predict_first", lam=8.0)
    outcome = make_method("tca", Setup(vit, text, 6.0, chosen)).predict(make_images(1))
    torch.testing.assert_close(outcome.scores, outcome.zero_shot)


def test_a_sample_alone_in_the_reservoir_gives_its_class_exactly_lambda() -> None:
    vit, text = make_vit(CLASS), make_text(4)
    chosen = small("released", over="sum", lam=2.5)
    method = TCA(Setup(vit, text, 6.0, chosen))
    outcome = method.predict(make_images(1))
    shifted = outcome.logits.clone()
    shifted[outcome.logits.argmax()] += 2.5
    torch.testing.assert_close(outcome.scores, shifted.softmax(dim=-1))


@pytest.mark.parametrize("shape", ["class", "map"])
def test_an_anchor_that_is_hidden_changes_nothing(shape: str) -> None:
    """The anchor's key is masked, not absent, while no class is ready: the result must be the same to rounding."""
    vit = make_vit(SHAPES[shape])
    images, config = make_images(3), Condensation(layers=LAYERS, rows="both", anchor_kv=True)
    blocks = vit.shape.blocks
    hidden = Anchors(torch.randn(4, blocks.depth, blocks.width).double(), torch.zeros(4, dtype=torch.bool))
    with_hidden, without = encode(vit, images, config, hidden), encode(vit, images, config)
    torch.testing.assert_close(with_hidden.feature, without.feature, rtol=0, atol=1e-12)
    assert all(int(s.anchor.max()) == -1 for s in with_hidden.steps if s.anchor is not None)


def test_as_a_key_the_anchor_cannot_change_a_rank() -> None:
    """One more key rescales each head's row as a whole, so the rank score's choice at the first block is unmoved.

    Only equal rank sums fall back to the mean over heads, which the anchor does move; hence fixed anchors.
    """
    vit = make_vit(CLASS)
    images, config = make_images(6), Condensation(layers=(1,), score="rank", rows="class", anchor_kv=True)
    blocks, random = vit.shape.blocks, torch.Generator().manual_seed(1)
    means = torch.randn(4, blocks.depth, blocks.width, generator=random).double()
    anchors = Anchors(means, torch.ones(4, dtype=torch.bool))
    kept = [
        encode(vit, images, config, a).steps[0].target < encode(vit, images, config, a).steps[0].stage.keep
        for a in (None, anchors)
    ]
    assert torch.equal(kept[0], kept[1])
    # …but its value does reach the tokens.
    assert not torch.allclose(encode(vit, images, config).feature, encode(vit, images, config, anchors).feature)


@pytest.mark.parametrize("shape", ["class", "map"])
def test_a_batch_equals_its_images(shape: str) -> None:
    vit = make_vit(SHAPES[shape])
    images, config = make_images(5), Condensation(layers=LAYERS, rows="both", anchor_kv=True)
    blocks = vit.shape.blocks
    anchors = Anchors(torch.randn(4, blocks.depth, blocks.width).double(), torch.tensor([True, False, True, True]))
    whole = encode(vit, images, config, anchors)
    for i, image in enumerate(images):
        one = encode(vit, image[None], config, anchors)
        torch.testing.assert_close(whole.feature[i], one.feature[0])
        for a, b in zip(whole.steps, one.steps, strict=True):
            assert torch.equal(a.target[i], b.target[0])


def test_the_pure_step_leaves_the_state_alone_and_agrees_with_the_one_in_place() -> None:
    config, generator = Adaptation(M=2, debias="careful"), torch.Generator().manual_seed(0)
    texts, weights = ClassTexts.of(make_text(3, 5), 4.0), torch.full((4,), 0.25, dtype=torch.float64)
    pure, in_place = (plain_operations(texts, weights, config, how) for how in (stream.apply, stream.apply_))
    state = stream.empty(3, 2, 4, 6, 5, torch.float64, "cpu")
    for _ in range(12):
        tokens, feature = (torch.randn(*s, generator=generator).double() for s in ((4, 6), (5,)))
        sample = Sample(tokens, feature, texts.logits(feature))
        before = stream.clone(state)
        settled, after = settle(sample, state, config, pure)
        assert all(torch.equal(a, b) for a, b in zip(state.tensors(), before.tensors(), strict=True))
        again, same = settle(sample, state, config, in_place)
        assert torch.equal(settled.corrected, again.corrected) and same is state
        assert all(torch.equal(a, b) for a, b in zip(state.tensors(), after.tensors(), strict=True))
    held = state.reservoir
    assert torch.equal(held.means, reservoir.class_mean(held.anchors, held.counts))
    assert int(held.step) == 12
    assert held.counts.max() <= 2


def test_a_sample_that_is_not_finite_is_counted_and_not_stored() -> None:
    after = reservoir.empty_reservoir(3, 2, 4, 6, torch.float32, "cpu")
    bad = torch.full((4, 6), float("nan"))
    placement = reservoir.propose(after, bad, torch.zeros(5), torch.tensor([1.0, 2.0, 0.0]), Adaptation(M=2))
    reservoir.store_(after, placement)
    assert int(placement.slot) == -1
    assert int(after.step) == 1
    assert int(after.counts.sum()) == 0
    assert after.means.isfinite().all()


def test_siglip_reading_is_not_the_class_reading() -> None:
    """The MAP tower has no class token: all its tokens are patches, and none of them is privileged."""
    vit = make_vit(MAP)
    steps = encode(vit, make_images(1), Condensation(layers=LAYERS)).steps
    assert steps[0].stage.patches == vit.shape.patches == vit.shape.tokens
