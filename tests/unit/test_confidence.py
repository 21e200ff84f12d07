"""How sure an answer is said to be: the order stays, the level follows zero-shot's, and nothing learns from it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lessmore import adapt, load
from lessmore.assets import shifts, world
from lessmore.engines.confidence import COLDEST, WARMEST, confidence_in, evidence_of, next_temperature, tempered
from lessmore.lab.report.tokens import as_picture
from tests.random_towers import make_images, make_vlm

LOGITS = st.lists(st.floats(-30, 30), min_size=2, max_size=40)


def bisected(logits: Tensor, index: int, confidence: float) -> Tensor:
    """The same by halving, in float64: the leader's probability grows with the power."""
    low, high = 0.0, 1e3
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if (middle * logits).softmax(0)[index] < confidence else (low, middle)
    return (low * logits).softmax(0)


@settings(deadline=None, max_examples=60)
@given(LOGITS, st.floats(0.0, 1.0))
def test_tempering_keeps_the_order_and_reaches_the_confidence(logits: list[float], confidence: float) -> None:
    raw = torch.tensor(logits, dtype=torch.float64).softmax(0).float()
    index, C = int(raw.argmax()), len(raw)
    found = tempered(raw, index, confidence)
    assert int(found.argmax()) == index and float(found.sum()) == pytest.approx(1, abs=1e-4)
    order = raw.sort(descending=True, stable=True).indices
    assert bool((found[order].diff() <= 1e-6).all())
    wanted = min(max(confidence, (1 + 1e-3) / C), 1 - 1e-6)
    if raw[order[1]] < 0.98 * raw[index]:  # equal leaders cannot be told apart by any power
        assert float(found[index]) == pytest.approx(wanted, abs=2e-4)
        expected = bisected(raw.clamp_min(1e-30).double().log(), index, wanted)
        torch.testing.assert_close(found.double(), expected, atol=2e-4, rtol=0)


def test_probabilities_of_zero_and_one_are_tempered_too() -> None:
    found = tempered(torch.tensor([1.0, 0.0, 0.0]), 0, 0.6)
    torch.testing.assert_close(found, torch.tensor([0.6, 0.2, 0.2]), atol=1e-3, rtol=0)
    assert torch.equal(tempered(torch.ones(1), 0, 0.5), torch.ones(1))


def test_the_temperature_follows_towards_the_usual_confidence_and_stays_in_bounds() -> None:
    evidence, temperature = torch.tensor([8.0, 0.0, 0.0, 0.0]), 1.0
    for seen in range(300):
        temperature = next_temperature(temperature, seen, confidence_in(0, evidence, temperature), 0.7)
    assert confidence_in(0, evidence, temperature) == pytest.approx(0.7, abs=0.01)
    for sure, bound in ((1.0, WARMEST), (0.0, COLDEST)):
        assert next_temperature(bound, 0, sure, 1 - sure) == pytest.approx(bound)


def test_without_evidence_both_answers_count_alike() -> None:
    p, q = torch.tensor([0.5, 0.4, 0.1]), torch.tensor([0.1, 0.8, 0.1])
    torch.testing.assert_close(evidence_of(None, p, q).softmax(0), (p * q).sqrt() / (p * q).sqrt().sum())
    assert evidence_of(p, p, q) is p


@pytest.mark.parametrize("method", ["tca", "tda", "neo", "zeroshot"])
@pytest.mark.parametrize("engine", ["eager", "cpu"])
def test_nothing_that_is_learned_or_answered_depends_on_it(method: str, engine: str) -> None:
    """The adapter's raw scores and state are those of the method alone."""
    one, other = (
        adapt(make_vlm(), ["a", "b", "cat"], method=method, engine=engine, layers=(1, 2), cache=False) for _ in "ab"
    )
    for image in make_images(25, dtype=torch.float32):
        found, alone = one(image), other._answerer.method.predict(image[None])
        assert torch.equal(found.raw_scores, alone.scores.float())
        assert int(found.scores.argmax()) == int(found.raw_scores.argmax()) == found.index
        if method == "zeroshot":
            torch.testing.assert_close(found.scores, found.raw_scores, atol=1e-6, rtol=0)
    for a, b in zip(one._answerer.method.state().values(), other._answerer.method.state().values(), strict=True):
        assert torch.equal(a, b)


def drawn(count: int, kind: str) -> tuple[list[Tensor], list[int], list[str]]:
    classes = world.test_classes(12, seed=1)
    scene = world.world_sample(count, 3, classes)
    pictures, preprocess = shifts.draw_shifted(scene, kind, 3)[0], load("tiny").preprocess
    names = world.world_class_names(classes)
    return [preprocess(as_picture(one)) for one in pictures], scene.index.tolist(), names


def test_answers_are_as_sure_as_zero_shot_and_closer_to_right_than_raw_ones(tmp_path: Path) -> None:
    images, labels, names = drawn(240, "blur")
    one = adapt("tiny", names, cache=False)
    found = list(one.stream(images))
    right = torch.tensor([p.index == label for p, label in zip(found, labels, strict=True)]).double().mean()
    mean = torch.tensor([p.confidence for p in found]).double().mean()
    raw = torch.tensor([float(p.raw_scores.max()) for p in found]).double().mean()
    plain = torch.tensor([float(p.zero_shot_scores.max()) for p in found]).double().mean()
    assert abs(mean - plain) < 0.05 and abs(mean - right) < abs(raw - right)
    assert one.health().temperature != 1
    one.save(tmp_path / "state")
    other = adapt("tiny", names, cache=False)
    other.restore(tmp_path / "state")
    assert other.health() == one.health() and torch.equal(one(images[0]).scores, other(images[0]).scores)
    one.reset()
    assert one.health().temperature == 1 and math.isclose(one(images[0]).confidence, found[0].confidence)
