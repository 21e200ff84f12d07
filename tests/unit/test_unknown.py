"""Images of none of the classes: told, answered all the same, seen by the statistics, and never stored."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lessmore import Adapter, adapt
from lessmore.core.reservoir import Reservoir
from lessmore.core.unknown import likeness
from lessmore.engines import answers
from lessmore.engines.multi import Multi
from lessmore.engines.unknown_gate import MOST, PAST, START, UnknownGate, known_threshold, threshold_of
from lessmore.errors import ConfigError, StateError
from lessmore.storage import sealed
from lessmore.storage.state import SCHEMA
from tests.random_towers import make_images, make_vlm

NAMES = ["red star", "blue square", "cat", "dog"]
MEMORY = {*Reservoir._fields}


def adapter(**options: Any) -> Adapter:
    return adapt(make_vlm(), NAMES, **{"layers": (1, 2, 3), "cache": False, "engine": "eager", **options})


def images(count: int, seed: int = 1) -> list[torch.Tensor]:
    return list(make_images(count, seed=seed, dtype=torch.float32))


def learned(one: Adapter) -> dict[str, torch.Tensor]:
    return one.answerer.method.state()


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k].nan_to_num(7), b[k].nan_to_num(7)) for k in a)


def middling(count: int = 30, **options: Any) -> float:
    """A threshold that half of the images are above."""
    scores = [p.unknown_score for p in adapter(unknown=9.0, **options).stream(images(count))]
    assert all(score is not None for score in scores)
    return float(np.median([score for score in scores if score is not None]))


def test_off_is_the_adapter_as_it_was() -> None:
    plain, off, never = adapter(), adapter(unknown="off"), adapter(unknown=9.0)
    for image in images(20):
        first, second, third = plain(image), off(image), never(image)
        assert torch.equal(first.scores, second.scores) and torch.equal(first.scores, third.scores)
        assert (second.unknown, second.unknown_score, third.unknown) == (False, None, False)
    assert same(learned(plain), learned(off)) and same(learned(plain), learned(never))
    assert off.answerer.gate.saved() == {}


@pytest.mark.parametrize("engine", ["eager", "cpu"])
@pytest.mark.parametrize("preset", ["default", "fixed", "camera"])
def test_unknown_images_are_answered_and_seen_but_not_stored(preset: str, engine: str) -> None:
    threshold = middling(preset=preset, engine=engine)
    one, plain = adapter(preset=preset, engine=engine, unknown=threshold), adapter(preset=preset, engine=engine)
    told = 0
    for i, image in enumerate(images(30)):
        before = learned(one)
        found, _ = one(image), plain(image)
        told += found.unknown
        assert found.unknown == (found.unknown_score is not None and found.unknown_score > threshold)
        assert found.label in NAMES and found.scores.sum().item() == pytest.approx(1, abs=1e-5)
        assert not found.unknown or not (learned(one)["ids"] == i).any()
        if found.unknown:
            for name in MEMORY & before.keys() - {"step"}:
                assert torch.equal(before[name], learned(one)[name]), name
    assert 5 < told < 25
    assert one.health().unknown == told and one.health().unknown_rate == told / 30
    mine, theirs = learned(one), learned(plain)
    for name in mine.keys() - MEMORY:  # the statistics saw every image
        assert torch.equal(mine[name], theirs[name]), name
    assert torch.equal(mine["step"], theirs["step"])
    if preset != "camera":  # with one slot for a class both may end with the same image
        assert not torch.equal(mine["ids"], theirs["ids"])


def test_the_score_is_a_distance_of_largest_logits() -> None:
    one = adapter(unknown="auto")
    for image in images(12):
        outcome = one.fork().answerer.method.predict(image[None])
        assert outcome.evidence is not None
        top = (float(outcome.logits.double().max()) + float(outcome.evidence.double().max())) / 2
        score = one(image).unknown_score
        assert score == pytest.approx(1 - top / one.answerer.setup.logit_scale, abs=1e-6)
    both = torch.tensor([[1.0, 3.0], [0.0, -1.0]]), torch.tensor([[5.0, 0.0], [1.0, 2.0]])
    assert likeness(*both).tolist() == [4.0, 1.0]


def test_many_streams_keep_out_as_one_does() -> None:
    threshold = middling()
    one = [adapter(unknown=threshold), adapter()]
    multi, scale = Multi(one[0]._setup, 2), one[0]._setup.logit_scale
    floors = torch.tensor([one[0].answerer.gate.floor(scale), -math.inf])
    for i, image in enumerate(images(16)):
        alone = [each.answerer.predict(image[None]) for each in one]
        if i % 2:
            together = multi.predict(image.expand(2, -1, -1, -1), floors=floors)
        else:
            together = [multi.predict(image[None], [s], floors[s : s + 1])[0] for s in range(2)]
        assert [bool(found.stored) for found in together] == [found.stored for found in alone]
    for number in range(2):
        assert torch.equal(multi.state(number)["ids"], learned(one[number])["ids"])


def test_many_cameras_keep_out_and_see_all() -> None:
    one = adapter(preset="camera")
    floor = UnknownGate(middling(preset="camera")).floor(one._setup.logit_scale)
    multi, kept_out = Multi(one._setup, 2), 0
    for i, image in enumerate(images(20)):
        strict, lax = multi.predict(image.expand(2, -1, -1, -1), floors=torch.tensor([floor, -math.inf]))
        assert strict.evidence is not None
        torch.testing.assert_close(strict.scores, lax.scores, rtol=1e-4, atol=1e-6)  # the memory does not vote
        unknown = bool(likeness(strict.logits, strict.evidence) < floor)
        kept_out += unknown
        assert not unknown or not (strict.stored or (multi.state(0)["ids"] == i).any())
    strict_state, lax_state = multi.state(0), multi.state(1)
    assert 3 < kept_out < 17
    for name in strict_state.keys() - MEMORY:  # rows of a batch may differ in their last bits
        torch.testing.assert_close(strict_state[name], lax_state[name], rtol=1e-5, atol=1e-6, msg=name)


def test_a_stream_sets_its_threshold() -> None:
    dice = np.random.default_rng(0)
    near, far = dice.normal(0.7, 0.02, 400), dice.normal(1.0, 0.02, 400)
    assert threshold_of(list(near[: START - 1])) == math.inf
    quiet, mixed = threshold_of(list(near[:PAST])), list(np.where(np.arange(400) % 20 == 0, far, near))
    assert 0.72 < quiet < 0.78
    assert 0.72 < threshold_of(mixed[:PAST]) < 0.85  # unknown images do not pull it along
    both = list(np.where(np.arange(400) % 2 == 0, far, near))
    assert np.mean(np.array(both[:PAST]) > threshold_of(both[:PAST])) <= MOST + 1e-9
    gate, told = UnknownGate("auto"), []
    for score in [*near, *far]:  # another domain
        told.append(score > gate.threshold)
        gate.see(float(score))
    assert not any(told[:START]) and np.mean(told[START:400]) < 0.1
    assert np.mean(told[400:416]) > 0.5 and np.mean(told[420:]) < 0.1


def test_calibrating_holds_the_rate_and_leaves_the_stream() -> None:
    one = adapter(unknown="auto")
    for image in images(8):
        one(image)
    before, health = learned(one), one.health()
    threshold = one.calibrate_unknown(images(60, seed=3), false_alarms=0.1)
    assert same(before, learned(one))
    after = one.health()
    assert after.unknown_threshold == threshold and (after.seen, after.unknown) == (health.seen, health.unknown)
    assert one.fork().health().unknown_threshold == threshold
    one.reset()
    assert one.health().unknown_threshold == threshold
    scores = [float(i) for i in range(19)]
    assert known_threshold(scores, 0.05) == 18 and known_threshold(scores, 0.1) == 17
    with pytest.raises(ConfigError, match="18 known images are too few.*give at least 19"):
        known_threshold(scores[:18], 0.05)
    with pytest.raises(ConfigError, match="between 0 and 1"):
        known_threshold(scores, 1.0)
    for rule in ("off", 0.5):
        with pytest.raises(ConfigError, match="make the adapter with that"):
            adapter(unknown=rule).calibrate_unknown(images(20))


@pytest.mark.parametrize("rule", ["on", "", True, math.nan, math.inf, None])
def test_other_rules_are_refused(rule: Any) -> None:
    with pytest.raises(ConfigError, match="neither 'off' nor 'auto' nor a number"):
        adapter(unknown=rule)


def test_what_cannot_keep_out_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="engine 'chunk' cannot keep unknown.*engine='eager'"):
        adapter(engine="chunk", unknown="auto")
    for method in ("tda", "neo", "tent"):
        with pytest.raises(ConfigError, match=f"method '{method}' would learn from unknown images.*zeroshot"):
            adapter(method=method, unknown=0.5)
    threshold = middling(method="zeroshot")
    told = [p.unknown for p in adapter(method="zeroshot", unknown=threshold).stream(images(30))]
    assert 5 < sum(told) < 25


@pytest.mark.parametrize("preset", ["default", "camera"])
def test_saved_forked_and_restored_it_goes_on_exactly(preset: str, tmp_path: Path) -> None:
    whole, first = adapter(unknown="auto", preset=preset), adapter(unknown="auto", preset=preset)
    stream = images(150)
    expected = [whole(image) for image in stream]
    for image in stream[:90]:
        first(image)
    first.save(tmp_path / "s.safetensors")
    second = adapter(unknown="auto", preset=preset)
    second.restore(tmp_path / "s.safetensors")
    third = second.fork()
    assert second.health() == first.health()
    for image, wanted in zip(stream[90:], expected[90:], strict=True):
        for one in (second, third):
            found = one(image)
            assert (found.unknown, found.unknown_score) == (wanted.unknown, wanted.unknown_score)
            assert torch.equal(found.scores, wanted.scores)
    assert same(learned(second), learned(whole)) and second.health() == whole.health()
    assert sum(p.unknown for p in expected) > 0
    second.reset()
    assert second.health().unknown_threshold == 0 and second(stream[0]).unknown is False


def test_states_without_it_restore_and_forged_ones_do_not(tmp_path: Path) -> None:
    path, one = tmp_path / "s.safetensors", adapter(unknown="auto")
    for image in images(40):
        one(image)
    one.save(path)
    tensors, about = sealed.read_tensors(path, SCHEMA, 1 << 30, "")

    def written(change: Any) -> Path:
        facts = json.loads(json.dumps(about))
        change(facts["facts"])
        sealed.write_tensors(path, tensors, SCHEMA, facts)
        return path

    def older(facts: dict[str, Any]) -> None:
        del facts["unknown"], facts["health"]["unknown"], facts["health"]["unknown_threshold"]

    late = adapter(unknown="auto")
    late.restore(written(older))
    assert same(learned(late), learned(one)) and late.health().unknown_threshold == 0
    forged: list[Any] = [7, {"scores": "many"}, {"scores": [1.0] * (PAST + 1)}, {"scores": [True]}, {"more": 1}]
    forged += [{"scores": [math.nan]}, {"scores": [], "calibrated": "low"}, {"calibrated": math.inf}]
    for facts in forged:
        before = learned(late), late.health()
        with pytest.raises(StateError, match="scores of unknown images are none"):
            late.restore(written(lambda found, facts=facts: found.update(unknown=facts)))
        assert same(before[0], learned(late)) and before[1] == late.health()
    off = adapter()
    off.restore(written(lambda found: None))
    assert off(images(1)[0]).unknown_score is None


def test_a_track_is_judged_by_the_mean_of_its_frames(tmp_path: Path) -> None:
    threshold = middling()
    one = adapter(unknown=threshold)
    frames, scores = images(9, seed=8), []
    for i, frame in enumerate(frames):
        scores.append(one.fork()(frame).unknown_score)
        before = learned(one)
        found = one(frame, track="cup")
        assert found.unknown_score == pytest.approx(np.mean(scores), abs=1e-9)
        assert found.unknown == (found.unknown_score > threshold)
        assert i == 0 or same(before, learned(one))
        if i == 4:
            one.save(tmp_path / "t.safetensors")
            one = adapter(unknown=threshold)
            one.restore(tmp_path / "t.safetensors")
    auto = adapter(unknown="auto")
    for image in images(40):
        auto(image)
    limit = auto.health().unknown_threshold
    auto(frames[0], track="cup")
    after_first = auto.health().unknown_threshold
    for frame in frames[1:]:
        auto(frame, track="cup")
    assert auto.health().unknown_threshold == after_first  # a track is one draw
    assert limit > 0


def test_groups_and_changed_classes() -> None:
    groups = {"shapes": ["red star", "blue square"], "pets": ["cat", "dog"]}
    threshold = middling()
    one = adapt(make_vlm(), groups, layers=(1, 2, 3), cache=False, unknown=threshold)
    found = [one(image) for image in images(20)]
    assert any(p.unknown for p in found) and all(p.group in groups for p in found)
    assert all(sum(p.group_scores.values()) == pytest.approx(1, abs=1e-5) for p in found)
    auto = adapter(unknown="auto")
    for image in images(40):
        auto(image)
    limit = auto.health().unknown_threshold
    last = images(41)[-1]
    before = auto.fork()(last).unknown_score
    auto.add_classes(["fox"])
    assert auto.health().unknown_threshold == limit
    assert auto.fork()(last).unknown_score != before
    auto.remove_classes(["fox"])
    assert auto.fork()(last).unknown_score == before and auto.health().unknown_threshold == limit
    auto.remove_classes(NAMES[1:])  # a list less than half as long
    assert auto.health().unknown_threshold == 0


def test_it_is_shown() -> None:
    found = adapter(unknown=-9.0)(images(1)[0])
    assert found.unknown and "unknown: like none of the classes" in repr(found)
    assert "unknown: like none" in found._repr_html_()
    written = json.loads(json.dumps(found.to_dict()))
    assert written["unknown"] is True and written["unknown_score"] == found.unknown_score


def test_refused_answers_are_not_called_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    one = adapter(unknown=-9.0)
    whole = answers.read

    def broken(outcome: Any, setup: Any, plain: Any) -> Any:
        return whole(outcome._replace(scores=outcome.scores * math.nan), setup, plain)

    monkeypatch.setattr(answers, "read", broken)
    found = one(images(1)[0])
    assert found.refused and not found.unknown and found.unknown_score is None
    assert one.answerer.gate.saved()["scores"] == []


def test_a_compiled_encoder_keeps_out_too() -> None:
    pytest.importorskip("openvino")
    stream = images(12)
    threshold = middling(12)
    plain, compiled = (adapter(engine=engine, unknown=threshold) for engine in ("eager", "openvino"))
    for image in stream:
        mine, theirs = plain(image), compiled(image)
        assert mine.unknown_score == pytest.approx(theirs.unknown_score, abs=1e-4)
        assert mine.unknown == theirs.unknown or abs(threshold - (mine.unknown_score or 0)) < 1e-4
    assert compiled.health().unknown > 0
