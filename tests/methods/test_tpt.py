"""TPT's chosen views, loss and prompt after one step against slow float64 references; nothing is carried over."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import lessmore
from lessmore.assets import world
from lessmore.config import preset
from lessmore.core.encoder import encode
from lessmore.errors import ConfigError, ModelError
from lessmore.lab.report.tokens import as_picture
from lessmore.methods import Setup, make_method
from lessmore.methods import context as contexts
from lessmore.methods.context import embed_classes, frame_prompts
from lessmore.methods.tpt import TPT, TPTOptions, confident_views, marginal_entropy
from tests.methods.test_tent import b16
from tests.random_towers import MAP, make_images, make_vlm

CLASSES = ("cat", "dog", "bird", "fish")
WORDS = "ab"  # a letter is a token of the random model


def random_setup(dtype: torch.dtype = torch.float64, **options: Any) -> Setup:
    vlm = make_vlm(dtype=dtype)
    text = vlm.classifier(CLASSES, ["ab {}."], cache=False)
    return Setup(vlm.vision, text, vlm.logit_scale, preset("default", R=1.0), vlm, CLASSES, (), options)


def answers(feature: Tensor, text: Tensor, scale: float) -> list[float]:
    raised = [math.exp(scale * float(feature @ t)) for t in text]
    return [r / sum(raised) for r in raised]


def slow_entropy(p: list[float]) -> float:
    return -sum(x * math.log(x) for x in p)


def slow_text(given: Setup, context: Tensor) -> list[Tensor]:
    """Class embeddings, prompt by prompt at full length, the context written over the words' place."""
    vlm, out = given.model, []
    for name in given.classes:
        tokens = vlm.tokenize([f"{WORDS} {name}."])
        x = vlm.text.embed(tokens).clone()
        x[0, : len(context)] = context
        feature = vlm.text.encode_embeddings(x, tokens)[0]
        out.append(feature / feature.norm())
    return out


def slow_choice(features: Tensor, text: list[Tensor], scale: float, share: float) -> list[int]:
    h = [slow_entropy(answers(f, torch.stack(text), scale)) for f in features]
    return sorted(range(len(h)), key=lambda i: h[i])[: max(1, math.floor(share * len(h)))]


def slow_loss(features: Tensor, chosen: list[int], text: list[Tensor], scale: float) -> float:
    each = [answers(features[i], torch.stack(text), scale) for i in chosen]
    return slow_entropy([sum(p[c] for p in each) / len(each) for c in range(len(text))])


def slow_step(
    given: Setup, features: Tensor, chosen: list[int], context: Tensor, at: tuple[int, int], loss: Any
) -> float:
    """Where one AdamW step from a fresh state takes an entry of the context: a central difference, then its formula."""
    ends = []
    for sign in (1, -1):
        moved = context.clone()
        moved[at] += sign * 1e-6
        ends.append(loss(features, chosen, slow_text(given, moved), given.logit_scale))
    g = (ends[0] - ends[1]) / 2e-6
    assert abs(g) > 1e-5
    return float(context[at]) * (1 - 0.005 * 0.01) - 0.005 * g / (abs(g) + 1e-8)


PROBES = [(0, 0), (0, 7), (1, 3), (1, 15)]


def test_views_loss_and_prompt_after_one_step() -> None:
    given = random_setup(words=WORDS, views=12, selection=0.3)
    tpt = make_method("tpt", given)
    assert isinstance(tpt, TPT)
    features = encode(given.vision, make_images(12)).feature
    start = tpt.frame.start
    text = slow_text(given, start)
    chosen = slow_choice(features, text, given.logit_scale, 0.3)
    logits = tpt.logits(features, embed_classes(tpt.frame, start))
    assert tpt.choose(logits).tolist() == chosen and len(chosen) == 3
    assert float(tpt.loss(logits[chosen], text)) == pytest.approx(  # type: ignore[arg-type]
        slow_loss(features, chosen, text, given.logit_scale), abs=1e-12
    )
    with torch.enable_grad():
        tuned = tpt.tuned(features)
    for at in PROBES:
        assert float(tuned[at]) == pytest.approx(slow_step(given, features, chosen, start, at, slow_loss), abs=1e-7)
    assert torch.equal(tpt.frame.start, start)


def test_six_of_sixty_four_views_are_chosen_the_surest_first() -> None:
    logits = 3 * torch.randn(64, 10, generator=torch.Generator().manual_seed(0))
    chosen = confident_views(logits, 0.1)
    h = [slow_entropy(row.softmax(-1).tolist()) for row in logits]
    assert chosen.tolist() == sorted(range(64), key=lambda i: h[i])[:6]
    assert len(confident_views(logits[:8], 0.1)) == 1


def test_the_marginal_entropy_of_certain_answers_has_a_finite_gradient() -> None:
    logits = torch.tensor([[1e4, 0.0, -1e4], [1e4, 0.0, 0.0]], requires_grad=True)
    marginal_entropy(logits).backward()
    assert logits.grad is not None and logits.grad.isfinite().all()


@pytest.mark.parametrize("name", ["tiny", "tiny-siglip"])
def test_nothing_is_carried_over_and_the_prompt_moves(name: str) -> None:
    combinations = world.test_classes(8, 3)
    pictures = [as_picture(image) for image in world.draw_scene(world.world_sample(2, 5, combinations))[0]]
    adapter = lessmore.adapt(name, world.world_class_names(combinations), method="tpt", views=8, R=0.9, cache=False)
    first, other, again = (adapter(pictures[i]) for i in (0, 1, 0))
    assert torch.equal(first.raw_scores, again.raw_scores) and not torch.equal(first.raw_scores, other.raw_scores)
    assert not torch.equal(first.raw_scores, first.zero_shot_scores)


@pytest.mark.parametrize("name", ["tiny", "tiny-siglip"])
def test_the_context_it_begins_as_is_the_hand_written_prompt(name: str) -> None:
    vlm, classes = lessmore.load(name), world.world_class_names(world.test_classes(6, 3))
    framed = frame_prompts(vlm, classes)
    assert framed.start.shape[0] == 4
    written = vlm.classifier(classes, ["a photo of a {}."], cache=False)
    assert torch.allclose(embed_classes(framed, framed.start), written, atol=1e-6)


def test_many_prompts_are_encoded_in_parts_with_the_same_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    given = random_setup()
    framed = frame_prompts(given.model, CLASSES, WORDS)
    found = []
    for rows in (256, 3):
        monkeypatch.setattr(contexts, "_ROWS", rows)
        context = framed.start.clone().requires_grad_()
        embed_classes(framed, context).square().sum(dim=1).sin().mul(torch.arange(4)).sum().backward()
        text = embed_classes(framed, context)
        (slope,) = torch.autograd.grad((text @ text.T).square().sum(), context)
        found.append(slope)
    assert torch.allclose(found[0], found[1], atol=1e-12) and float(found[0].abs().max()) > 1e-3


def test_a_narrow_tower_is_tuned_in_float32() -> None:
    given = random_setup(torch.bfloat16, words=WORDS, views=4)
    tpt = make_method("tpt", given)
    assert isinstance(tpt, TPT) and tpt.frame.tower.positions.dtype == torch.float32
    outcome = tpt.predict(make_images(4, dtype=torch.bfloat16))
    assert outcome.scores.dtype == torch.float32 and outcome.scores.isfinite().all()
    assert given.model.text.positions.dtype == torch.bfloat16


def test_it_works_on_a_tower_without_a_class_token() -> None:
    vlm = make_vlm(shape=MAP)
    text = vlm.classifier(CLASSES, ["ab {}."], cache=False)
    options = {"words": WORDS, "views": 4}
    tpt = make_method("tpt", Setup(vlm.vision, text, 10.0, preset("default", R=1.0), vlm, CLASSES, (), options))
    assert tpt.predict(make_images(4, dtype=torch.float32)).scores.sum() == pytest.approx(1, abs=1e-5)


def test_as_many_parameters_as_published() -> None:
    assert make_method("tpt", b16()).facts == make_method("c-tpt", b16()).facts
    facts = make_method("tpt", b16()).facts
    assert (facts.learnable_parameters, facts.views, facts.kind) == (2_048, 64, "episodic")


def test_cost() -> None:
    given = random_setup(torch.float32, words=WORDS, views=4)
    tpt = make_method("tpt", given)
    assert isinstance(tpt, TPT)
    prompts = tpt.frame.macs(given)
    assert prompts < tpt.frame.gradient_macs(given) - prompts < 2 * prompts  # frozen weights: less than two passes
    assert tpt.macs() == 4 * given.image_macs() + prompts + tpt.frame.gradient_macs(given)
    counter = FlopCounterMode(display=False)
    with counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        embed_classes(tpt.frame, tpt.frame.start)
    assert counter.get_total_flops() == 2 * prompts


def test_what_it_cannot_work_with_is_refused() -> None:
    with pytest.raises(ConfigError, match="steps"):
        TPTOptions(steps=0)
    with pytest.raises(ConfigError, match="selection"):
        TPTOptions(selection=0.0)
    with pytest.raises(ConfigError, match="whole model"):
        make_method("tpt", Setup(make_vlm().vision, torch.zeros(4, 8), 10.0, preset("default")))
    with pytest.raises(ModelError, match="other words"):
        frame_prompts(make_vlm(), CLASSES, "words that do not fit")
