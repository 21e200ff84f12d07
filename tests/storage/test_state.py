"""Saved states: what is refused, with which sentence, and that a refusal changes nothing."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import lessmore
from lessmore.core.stream_check import problem
from lessmore.engines.answers import Health
from lessmore.errors import StateError
from lessmore.storage import sealed
from lessmore.storage.state import SCHEMA, Form, read_counts, read_state, write_state

CLASSES = ["red plain star", "blue plain ring", "green plain square"]
Tensors = dict[str, Tensor]


def images(count: int, seed: int = 0) -> list[Tensor]:
    return list(torch.rand(count, 3, 64, 64, generator=torch.Generator().manual_seed(seed)) * 2 - 1)


def adapter(method: str = "tca", **options: Any) -> lessmore.Adapter:
    made = lessmore.adapt("tiny", CLASSES, method=method, **options)
    for image in images(7):
        made(image)
    return made


def same(one: Tensors, other: Tensors) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k].nan_to_num(7), other[k].nan_to_num(7)) for k in one)


def rewrite(source: Path, target: Path, change: Callable[[Tensors], object]) -> None:
    """The same file with other tensors and a right seal, as somebody else could make one."""
    tensors, facts = sealed.read_tensors(source, SCHEMA, 1 << 30, "")
    change(tensors)
    sealed.write_tensors(target, tensors, SCHEMA, facts)


def nan(name: str) -> Callable[[Tensors], object]:
    return lambda state: state[name].view(-1)[:1].fill_(math.nan)


def put(name: str, value: float) -> Callable[[Tensors], object]:
    return lambda state: state[name].fill_(value)


CRAFTED = {
    "token_mean has a number that is not finite": nan("token_mean"),
    "strength has a number that is not finite": nan("strength"),
    "anchors has a number that is not finite": nan("anchors"),
    "feature_sum is longer than": put("feature_sum", 50.0),
    "recent_feature is longer than": put("recent_feature", 1.0),
    "images counts more images": put("images", 1e6),
    "answer_counts does not count": put("answer_counts", 9.0),
    "standout_counts does not count": put("standout_counts", -1.0),
    "last_answer is no probability": put("last_answer", 0.7),
    "effective_samples is out of range": put("effective_samples", 1e4),
    "rise is larger": put("rise", 1e6),
    "strength does not lie": put("strength", 4.0),
    "domain_changes is no count": put("domain_changes", 0.5),
    "drift_images is out of range": put("drift_images", -1.0),
    "token_mean is longer": put("token_mean", 3.0),
    "ids names images the stream has not seen": put("ids", 10**9),
    "ids names an image twice": put("ids", 0),
    "step counts more images": put("step", 2**40),
    "counts does not count": put("counts", 3),
    "keys has an impossible entropy": put("keys", 99.0),
    "anchors has a number that is too large": lambda state: state["anchors"].mul_(1e30),
    "is float64": lambda state: state.update(keys=state["keys"].double()),
    r"counts is int64 \[2\], not int64 \[3\]": lambda state: state.update(counts=state["counts"][:2].clone()),
    "a tensor 'more' too many": lambda state: state.update(more=torch.zeros(1)),
    "no tensor 'power'": lambda state: state.pop("power"),
}


@pytest.mark.parametrize("reason", CRAFTED)
def test_states_that_make_no_sense_are_refused_and_the_adapter_stays(reason: str, tmp_path: Path) -> None:
    made = adapter()
    made.save(tmp_path / "good")
    before, health = made._answerer.method.state(), made.health()
    rewrite(tmp_path / "good", tmp_path / "crafted", CRAFTED[reason])
    with pytest.raises(StateError, match=reason):
        made.restore(tmp_path / "crafted")
    assert same(made._answerer.method.state(), before) and made.health() == health


@pytest.mark.parametrize("words", [None, "camera"])
def test_states_of_long_streams_make_sense(words: str | None) -> None:
    """The bounds hold wherever a stream can lead: noise, one image again and again, a change of domain."""
    made = lessmore.adapt("tiny", CLASSES, stream=words)
    noise = images(150)
    stream = [*noise[:60], *[noise[0]] * 30, *(0.2 * image + 0.7 for image in noise[60:])]
    for count, image in enumerate(stream):
        assert count % 10 or problem(made._answerer.method.state()) is None
        made(image)
    assert problem(made._answerer.method.state()) is None


@pytest.mark.parametrize("method", ["tca", "tda", "tent", "sar", "zeroshot"])
def test_every_method_goes_on_from_its_state(method: str, tmp_path: Path) -> None:
    options = {"window": 3} if method in ("tent", "sar") else {}
    made, other = adapter(method, **options), lessmore.adapt("tiny", CLASSES, method=method, **options)
    made.save(tmp_path / "state")
    other.restore(tmp_path / "state")
    for image in images(5, seed=1):
        assert torch.equal(made(image).scores, other(image).scores)


@pytest.mark.parametrize(
    ("method", "change", "reason"),
    [
        ("tda", put("positive.keys", 2.0), "no feature"),
        ("tda", lambda state: state["positive.entropies"].sub_(1e3), "sorted entropies"),
        ("tda", nan("negative.entropies"), "no feature|sorted entropies"),
        ("sar", put("average", -1.0), "no entropy"),
        ("tent", nan("affine.norm_post.weight"), "not finite"),
        ("tent", lambda state: state.update(waiting=torch.zeros(1, 3, 64, 64)), "waiting is float32"),
    ],
)
def test_other_methods_check_theirs(method: str, change: Any, reason: str, tmp_path: Path) -> None:
    made = adapter(method)
    made.save(tmp_path / "good")
    rewrite(tmp_path / "good", tmp_path / "crafted", change)
    with pytest.raises(StateError, match=reason):
        made.restore(tmp_path / "crafted")


def test_a_method_that_fails_in_the_middle_leaves_the_adapter_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = adapter()
    made.save(tmp_path / "state")
    for image in images(5, seed=2):
        made(image)
    before, method = made._answerer.method.state(), made._answerer.method
    restore, calls = method.restore, iter([True])

    def fail_once(state: Tensors) -> None:
        restore(state)
        if next(calls, False):
            raise RuntimeError("out of memory")

    monkeypatch.setattr(method, "restore", fail_once)
    with pytest.raises(StateError, match="cannot be restored .out of memory"):
        made.restore(tmp_path / "state")
    assert same(method.state(), before)


def test_a_state_of_another_algorithm_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = adapter()
    made.save(tmp_path / "state")
    monkeypatch.setattr("lessmore.core.algorithm.ANSWER", 10**6)
    with pytest.raises(StateError, match="gives other answers"):
        made.restore(tmp_path / "state")


def test_a_file_without_a_seal_is_refused(tmp_path: Path) -> None:
    """Also one whose header says the right things."""
    made = adapter()
    made.save(tmp_path / "state")
    facts = sealed.read_facts(tmp_path / "state", SCHEMA)
    tensors = load_file(tmp_path / "state")
    for seal in ({}, {"seal": ""}, {"seal": "0" * 64}, {"seal": "ü" * 64}):
        save_file(tensors, tmp_path / "bare", {"schema": SCHEMA, "facts": json.dumps(facts), **seal})
        with pytest.raises(StateError, match="checksum"):
            made.restore(tmp_path / "bare")


@pytest.mark.parametrize("facts", ["[]", "3", "nothing", "[" * 100_000, "{}", '{"identity": 3, "facts": {}}'])
def test_facts_that_are_none_are_refused(facts: str, tmp_path: Path) -> None:
    file = tmp_path / "state"
    save_file({}, file, {"schema": SCHEMA, "facts": facts, "seal": "0" * 64})
    sealed._seal(file)
    with pytest.raises(StateError):
        read_state(file, {}, {})


def test_odd_files_are_refused_at_once(tmp_path: Path) -> None:
    made = adapter()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").write_bytes(b"")
    with open(tmp_path / "huge", "wb") as file:
        file.truncate(1 << 40)
    for name, reason in {
        "pipe": "ordinary",
        "folder": "ordinary|cannot be read",
        "empty": "readable",
        "huge": "more than",
    }.items():
        with pytest.raises(StateError, match=reason):
            made.restore(tmp_path / name)
    with pytest.raises(StateError, match="does not exist"):
        made.restore(tmp_path / "nothing")


def test_saving_leaves_nothing_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, victim = adapter(), tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "link").symlink_to(victim)
    made.save(tmp_path / "link")
    assert victim.read_text() == "precious" and not (tmp_path / "link").is_symlink()
    monkeypatch.setattr(sealed, "_seal", lambda path: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(StateError, match="No space left on device; make room"):
        made.save(tmp_path / "full")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "link", "victim"]


@pytest.mark.parametrize("temperature", [0.0, 1e300])
def test_a_temperature_that_no_stream_reaches_is_refused(temperature: float, tmp_path: Path) -> None:
    made = adapter()
    made.save(tmp_path / "good")
    tensors, facts = sealed.read_tensors(tmp_path / "good", SCHEMA, 1 << 30, "")
    facts["facts"]["health"]["temperature"] = temperature
    sealed.write_tensors(tmp_path / "crafted", tensors, SCHEMA, facts)
    with pytest.raises(StateError, match="its temperature is out of range"):
        made.restore(tmp_path / "crafted")


@pytest.mark.parametrize(
    "value", [None, {}, {"seen": 1}, {**vars(Health()), "seen": -1}, {**vars(Health()), "fill": math.nan}]
)
def test_counts_that_are_none_are_refused(value: Any) -> None:
    with pytest.raises(StateError, match="count"):
        read_counts(Health, value, "file")


def test_lengths_may_be_a_range(tmp_path: Path) -> None:
    like = {"waiting": Form(torch.float32, (range(3), 2)), "late": Form(torch.int64, (), required=False)}
    write_state(tmp_path / "a", {"waiting": torch.ones(2, 2)}, {"key": "k"}, {"note": 1})
    tensors, facts = read_state(tmp_path / "a", {"key": "k"}, like)
    assert torch.equal(tensors["waiting"], torch.ones(2, 2)) and facts == {"note": 1}
    write_state(tmp_path / "b", {"waiting": torch.ones(3, 2)}, {"key": "k"}, {})
    with pytest.raises(StateError, match=r"float32 \[3, 2\], not float32 \[0–2, 2\]"):
        read_state(tmp_path / "b", {"key": "k"}, like)


def test_equal_content_gives_equal_bytes(tmp_path: Path) -> None:
    tensors = {name: torch.arange(3.0) for name in ("b", "a", "c")}
    for number in range(8):  # safetensors alone orders its metadata in another way every time
        sealed.write_tensors(tmp_path / str(number), tensors, "test/1", {"name": "Zoë \u2028 \x7f"})
    assert len({(tmp_path / str(number)).read_bytes() for number in range(8)}) == 1
    assert sealed.read_tensors(tmp_path / "0", "test/1", 10**6, "try again")[1] == {"name": "Zoë \u2028 \x7f"}
