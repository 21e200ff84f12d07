"""Class lists that change while a stream runs: what stays, what starts again, and what the answers are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lessmore import Adapter, Prediction, adapt, list_methods
from lessmore.core import stream_check
from lessmore.core.class_list import BY_CLASS, DETECTOR, ClassChange, follow_classes
from lessmore.core.stream import StreamState, clone, saved
from lessmore.engines import build
from lessmore.errors import ConfigError, StateError
from lessmore.methods.saved import follower_of
from tests.random_towers import make_images, make_vlm

NAMES = ["red star", "blue square", "cat", "dog", "green fish"]
SMALL: dict[str, Any] = {"layers": (1, 2, 3), "cache": False}
FOLLOWING = ["tca", "tda", "neo", "dota", "oga", "onzeta", "zeroshot", "mta", "zero"]


def adapter(names: Any = NAMES, **options: Any) -> Adapter:
    return adapt(make_vlm(), names, **{**SMALL, **options})


def look(one: Adapter, count: int, seed: int = 1) -> list[Prediction]:
    return list(one.stream(make_images(count, seed=seed, dtype=torch.float32)))


def learned(one: Adapter) -> dict[str, torch.Tensor]:
    return one._answerer.state()[0]


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k].nan_to_num(7), b[k].nan_to_num(7)) for k in a)


def seen_state(count: int, C: int) -> StreamState:
    """The state of a stream of images over the first C names."""
    one = adapter(NAMES[:C], engine="eager")
    look(one, count)
    return clone(one._answerer.method.stream)  # type: ignore[attr-defined]


@pytest.mark.parametrize("engine", ["eager", "cpu", "chunk"])
@pytest.mark.parametrize("method", FOLLOWING)
def test_adding_and_removing_gives_back_every_bit_of_the_rest(method: str, engine: str) -> None:
    if engine == "chunk" and method != "tca":
        pytest.skip("chunk streams tca alone")
    one, other = (adapter(method=method, engine=engine) for _ in range(2))
    look(one, 12), look(other, 12)
    before = learned(one)
    one.add_classes(["a bird", "photo"])
    assert one.classes == [*NAMES, "a bird", "photo"]
    one.remove_classes(["photo", "a bird"])
    assert one.classes == NAMES and same(learned(one), before)
    for ours, theirs in zip(look(one, 6, seed=2), look(other, 6, seed=2), strict=True):
        assert torch.equal(ours.scores, theirs.scores) and ours.label == theirs.label


@pytest.mark.parametrize("engine", ["eager", "cpu", "chunk"])
@pytest.mark.parametrize("method", FOLLOWING)
def test_a_class_added_before_the_first_image_equals_one_given_at_the_start(method: str, engine: str) -> None:
    if engine == "chunk" and method != "tca":
        pytest.skip("chunk streams tca alone")
    grown, given_ = adapter(NAMES[:2], method=method, engine=engine), adapter(method=method, engine=engine)
    grown.add_classes(NAMES[2:4])
    grown.add_classes(NAMES[4:])
    assert grown.classes == given_.classes
    torch.testing.assert_close(grown._setup.text, given_._setup.text, atol=1e-6, rtol=1e-5)  # of smaller batches
    started = Adapter(grown._classes, grown._setup, method, engine=engine)
    for ours, theirs in zip(look(grown, 12), look(started, 12), strict=True):
        assert torch.equal(ours.scores, theirs.scores)
    assert same(learned(grown), learned(started))


@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(0, 14))
def test_rows_go_with_their_classes_and_nothing_else_moves(data: st.DataObject, count: int) -> None:
    state, C = seen_state(count, 4), 4
    kept = data.draw(st.lists(st.integers(0, C - 1), min_size=1, unique=True).map(sorted))
    fresh = data.draw(st.integers(0, 3))
    change = ClassChange((*kept, *[-1] * fresh), C)
    before, after = state.named(), follow_classes(state, change).named()
    for name, tensor in after.items():
        if name not in BY_CLASS:
            long = max(C, len(change.source)) > 2 * min(C, len(change.source))
            assert torch.equal(tensor, torch.zeros_like(tensor) if long and name in DETECTOR else before[name])
            continue
        assert len(tensor) == len(kept) + fresh
        assert not tensor[len(kept) :].any() or (name == "ids" and bool((tensor[len(kept) :] == -1).all()))
        if name != "last_answer":
            assert torch.equal(tensor[: len(kept)], before[name][kept])
    total = float(after["last_answer"].sum())
    assert total == pytest.approx(1, abs=1e-5) if count else total == 0
    assert stream_check.problem(saved(follow_classes(state, change))) is None


def test_the_last_answer_is_the_softmax_over_the_classes_that_stay() -> None:
    state = seen_state(9, 4)
    p = state.stream_mean.last_answer
    after = follow_classes(state, ClassChange((0, 2, -1), 4)).stream_mean.last_answer
    torch.testing.assert_close(after, torch.tensor([p[0], p[2], 0.0]) / (p[0] + p[2]))


def test_the_mean_logit_of_a_new_class_follows_from_the_mean_feature() -> None:
    """Debiasing treats a class that comes late as one that was there and never answered."""
    late, early = adapter(NAMES[:3]), adapter(NAMES)
    look(late, 30), look(early, 30)
    late.add_classes(NAMES[3:])
    ours, theirs = learned(late), learned(early)
    assert torch.equal(ours["feature_sum"][0] > 0, theirs["feature_sum"][0] > 0)
    scale = late._setup.class_texts.logits(ours["feature_sum"] / ours["images"])
    assert scale.shape == (5,) and bool(scale.isfinite().all())


@pytest.mark.parametrize("engine", ["eager", "cpu", "chunk"])
def test_a_state_file_carries_the_class_list(engine: str, tmp_path: Path) -> None:
    one = adapter(NAMES[:3], engine=engine)
    look(one, 9)
    one.add_classes(["dog"])
    one.remove_classes(["red star"])
    one.rename("cat", "fox")
    look(one, 5, seed=3)
    one.save(tmp_path / "state")
    other = adapter(["blue square", "fox", "dog"], engine=engine)
    other.restore(tmp_path / "state")
    assert same(learned(one), learned(other)) and one.health() == other.health()
    with pytest.raises(StateError, match=r"another class list"):
        adapter(NAMES[:3], engine=engine).restore(tmp_path / "state")


def test_renaming_keeps_what_was_learned_and_takes_the_new_embedding() -> None:
    one = adapter()
    look(one, 9)
    before, text = learned(one), one._setup.text.clone()
    one.rename({"cat": "dog", "dog": "cat"})
    assert one.classes == ["red star", "blue square", "dog", "cat", "green fish"]
    assert same(learned(one), before)
    torch.testing.assert_close(one._setup.text[[0, 1, 3, 2, 4]], text)
    assert look(one, 1)[0].classes == tuple(one.classes)


def test_what_cannot_be_done_is_said_and_changes_nothing() -> None:
    one = adapter()
    look(one, 5)
    before = learned(one)
    for call, reason in (
        (lambda: one.add_classes(["cat"]), "'cat' appears more than once"),
        (lambda: one.add_classes([" "]), "is empty"),
        (lambda: one.add_classes({"pets": ["fox"]}), "has no groups"),
        (lambda: one.remove_classes(["cot"]), "unknown class 'cot'; did you mean cat"),
        (lambda: one.remove_classes(NAMES), "no class would be left"),
        (lambda: one.remove_classes("cat"), "single string"),
        (lambda: one.rename("cat", "dog"), "'dog' appears more than once"),
        (lambda: one.rename("cat"), "rename takes an old and a new name"),
        (lambda: one.rename({"fox": "cat"}), "unknown class 'fox'"),
    ):
        with pytest.raises(ConfigError, match=reason):
            call()
    assert one.classes == NAMES and same(learned(one), before)
    with pytest.raises(AttributeError):
        one.classes = ["cat"]  # type: ignore[misc]


@pytest.mark.parametrize("method", sorted(set(list_methods()) - {"coop", "cocoop"}))
def test_every_method_follows_or_says_what_to_do(method: str) -> None:
    if method in FOLLOWING or method in ("tpt", "c-tpt", "diff-tpt"):
        follower_of(method)
        return
    one = adapter(method=method, **({"words": "ab"} if method == "batclip" else {}))
    with pytest.raises(ConfigError, match="make another adapter with the new list"):
        one.add_classes(["fox"])
    assert one.classes == NAMES


def test_a_batched_stream_follows_a_change_from_the_next_answer_on() -> None:
    """With chunk, answers are made ahead; those not given yet are made again over the new list."""
    pixels = list(make_images(12, dtype=torch.float32))
    one, other = adapter(engine="chunk"), adapter(engine="chunk")
    answers = one.stream(pixels)
    found = [next(answers) for _ in range(4)]
    one.add_classes(["fox"])
    found += list(answers)
    expected = list(other.stream(pixels[:4]))
    other.add_classes(["fox"])
    expected += list(other.stream(pixels[4:]))
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.classes == theirs.classes
        torch.testing.assert_close(ours.scores, theirs.scores, atol=1e-5, rtol=1e-4)


def test_a_fork_has_a_class_list_of_its_own() -> None:
    one = adapter()
    look(one, 5)
    other = one.fork()
    other.add_classes(["fox"])
    assert one.classes == NAMES and other.classes == [*NAMES, "fox"]
    assert look(one, 1)[0].scores.shape == (5,) and look(other, 1)[0].scores.shape == (6,)


def test_groups_answer_on_both_levels() -> None:
    one = adapter({"things": ["red star", "blue square"], "animals": ["cat", "dog"]})
    for p in look(one, 6):
        sums = p.group_scores
        assert list(sums) == ["things", "animals"] and sum(sums.values()) == pytest.approx(1, abs=1e-5)
        assert sums["animals"] == pytest.approx(float(p.scores[2:].sum()), abs=1e-6)
        assert p.group == max(sums, key=sums.__getitem__)
    one.add_classes({"animals": ["fox"], "plants": ["a t"]})
    assert list(look(one, 1)[0].group_scores) == ["things", "animals", "plants"]
    one.remove_classes(["red star", "blue square"])
    assert list(look(one, 1)[0].group_scores) == ["animals", "plants"]
    with pytest.raises(ConfigError, match=r"has groups: give \{group"):
        one.add_classes(["bird"])
    for bad, reason in (({"a": "cat"}, "must hold a list"), ({"a": []}, "holds no class"), ({"": ["cat"]}, "is empty")):
        with pytest.raises(ConfigError, match=reason):
            adapter(bad)


def test_many_streams_follow_by_their_states() -> None:
    """An engine for many streams is built again, and takes over the states of each."""
    from lessmore.engines.multi import Multi

    one = adapter(NAMES[:3], engine="eager")
    multi = Multi(one._setup, 2)
    images = make_images(8, dtype=torch.float32)
    for i in range(0, 8, 2):
        multi.predict(images[i : i + 2])
    grown, change = one._classes.added(["dog"])
    wider = Multi(replace(one._setup, text=grown.text, classes=grown.names), 2)
    for number in range(2):
        follow = follower_of("tca")
        wider.restore(number, follow(multi.state(number), wider.state(number), change))
        assert same(
            {k: v for k, v in wider.state(number).items() if k not in BY_CLASS},
            {k: v for k, v in multi.state(number).items() if k not in BY_CLASS},
        )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_captured_graph_is_built_again() -> None:
    for engine in ("graph", "chunk"):
        one = adapter(engine=engine, device="cuda")
        look(one, 6)
        one.add_classes(["fox"])
        plain = build("eager", "tca", one._setup)
        plain.restore(one._answerer.state()[0])
        pixels = make_images(1, seed=9, dtype=torch.float32)
        expected = plain.predict(pixels.cuda()).scores.cpu()
        torch.testing.assert_close(one(pixels[0]).scores, expected, atol=1e-3, rtol=1e-3)
