"""Frames of one object: one answer, one draw of the stream, bounded memory, kept in the state file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from lessmore import Adapter, adapt
from lessmore.engines import tracks
from lessmore.engines.confidence import confidence_in
from lessmore.errors import StateError
from lessmore.storage import sealed
from lessmore.storage.state import SCHEMA
from tests.random_towers import make_images, make_vlm

NAMES = ["red star", "blue square", "cat", "dog"]


def adapter(**options: Any) -> Adapter:
    return adapt(make_vlm(), NAMES, **{"layers": (1, 2, 3), "cache": False, **options})


def learned(one: Adapter) -> dict[str, torch.Tensor]:
    return one._answerer.method.state()


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k].nan_to_num(7), b[k].nan_to_num(7)) for k in a)


@pytest.mark.parametrize("engine", ["eager", "cpu", "chunk"])
@pytest.mark.parametrize("method", ["tca", "tda", "neo"])
def test_a_track_is_one_draw_of_the_stream(method: str, engine: str) -> None:
    if engine == "chunk" and method != "tca":
        pytest.skip("chunk streams tca alone")
    images = list(make_images(12, dtype=torch.float32))
    one, other = adapter(method=method, engine=engine), adapter(method=method, engine=engine)
    for i, image in enumerate(images):
        first = one(image, track="cup" if i == 4 else None)
        assert first.frames == 1
        if i >= 4:
            one(images[(3 * i) % 12], track="cup")
        other(image)
    assert same(learned(one), learned(other))
    assert one.health().temperature == other.health().temperature
    assert one.health().stored == other.health().stored
    assert one.health().seen == other.health().seen + 8


def test_the_answer_is_that_of_the_mean_and_grows_surer() -> None:
    one = adapter()
    for image in make_images(9, dtype=torch.float32):
        one(image)
    frames = list(make_images(4, seed=5, dtype=torch.float32))
    before, T = one.fork(), one.health().temperature
    by_themselves = []
    for i, frame in enumerate(frames):
        alone = before.fork() if i == 0 else one.fork()
        by_themselves.append(alone._answerer.predict(frame[None]))
        fused = one(frame, track="x")
        T = T if i else one.health().temperature
        raw = torch.stack([p.raw_scores.double().log() for p in by_themselves]).mean(0).softmax(0)
        torch.testing.assert_close(fused.raw_scores.double(), raw, atol=1e-6, rtol=1e-5)
        evidence = torch.stack([p.evidence.double() for p in by_themselves]).mean(0)
        expected = confidence_in(fused.index, evidence * tracks.surer(i + 1), T)
        if i:
            assert fused.confidence == pytest.approx(expected, abs=1e-3)
        assert fused.frames == i + 1
    factors = [tracks.surer(n) for n in (1, 2, 10, 10**6)]
    assert factors[0] == 1 and factors == sorted(factors) and factors[-1] == pytest.approx(1 / (1 - tracks.CHANGING))


def test_tracks_are_bounded_and_the_oldest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracks, "MOST", 3)
    one, image = adapter(method="zeroshot"), next(iter(make_images(1, dtype=torch.float32)))
    for name in ("a", "b", "c", "a", "d"):
        one(image, track=name)
    assert [one(image, track=name).frames for name in ("a", "d", "c", "b")] == [3, 2, 2, 1]


def test_a_state_file_keeps_tracks(tmp_path: Path) -> None:
    one, other = adapter(method="tda"), adapter(method="tda")
    images = list(make_images(9, dtype=torch.float32))
    for i, image in enumerate(images):
        one(image, track=f"cup-{i % 2}")
    one.save(tmp_path / "state")
    other.restore(tmp_path / "state")
    fork = one.fork()
    for follower in (other, fork):
        ours, theirs = one.fork()(images[0], track="cup-1"), follower(images[0], track="cup-1")
        assert ours.frames == theirs.frames == 5 and torch.equal(ours.scores, theirs.scores)
    assert one._answerer.tracks.saved()[1] == [["cup-1", 4], ["cup-0", 5]]  # a fork's frames are its own
    one.reset()
    assert one(images[0], track="cup-1").frames == 1
    tensors, facts = sealed.read_tensors(tmp_path / "state", SCHEMA, 1 << 30, "")
    for crafted in ([["cup-1", 4]], [["cup-1", 4], ["cup-1", 5]], [["cup-1", 0], ["cup-0", 5]], None):
        wrong = {**facts, "facts": {**facts["facts"], "tracks": crafted}}
        sealed.write_tensors(tmp_path / "wrong", tensors, SCHEMA, wrong)
        with pytest.raises(StateError, match="its tracks do not fit together"):
            other.restore(tmp_path / "wrong")
    tensors[tracks.TENSOR][0] = math.nan
    sealed.write_tensors(tmp_path / "wrong", tensors, SCHEMA, facts)
    with pytest.raises(StateError, match="its tracks do not fit together"):
        other.restore(tmp_path / "wrong")


def test_a_changed_class_list_ends_tracks() -> None:
    one, image = adapter(), next(iter(make_images(1, dtype=torch.float32)))
    one(image, track="cup"), one(image, track="cup")
    one.add_classes(["fox"])
    assert one(image, track="cup").frames == 1
