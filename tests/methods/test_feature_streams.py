"""What the methods on final features owe alike: classes in any order, one class, half precision, NaN, saved states."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lessmore.errors import StateError
from lessmore.methods import list_methods
from lessmore.methods.feature_stream import FeatureStream, stream_progress
from lessmore.methods.registry import find_method
from tests.methods.feature_streams import SCALE, C, E, answer, give, new, stream
from tests.random_towers import make_text

NAMES = [name for name in list_methods() if isinstance(find_method(name).maker, type)]
NAMES = [name for name in NAMES if issubclass(find_method(name).maker, FeatureStream)]  # type: ignore[arg-type]


def run(method: Any, features: Tensor) -> Tensor:
    return torch.stack([answer(method, feature) for feature in features])


def test_the_methods_of_this_suite_are_found() -> None:
    assert {"bca", "dota", "ecalp", "lsa", "neo", "oga", "onzeta", "stata"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_answers_are_probabilities_and_something_is_learnt(name: str) -> None:
    features = stream(200)
    scores = run(new(name), features)
    assert scores.min() >= 0
    torch.testing.assert_close(scores.sum(dim=1), torch.ones(200, dtype=torch.float64))
    plain = (SCALE * features @ make_text(C).T).softmax(dim=1)
    assert (scores[100:] - plain[100:]).abs().max() > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_classes_in_another_order_get_the_same_answers(name: str) -> None:
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    features = stream(120, seed=1)
    straight, permuted = run(new(name), features), run(new(name, make_text(C)[order]), features)
    torch.testing.assert_close(permuted, straight[:, order], rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_the_stream_matters_and_is_followed(name: str) -> None:
    """Online: the last image is answered with what came before it, and with nothing else."""
    features = stream(60, seed=2)
    one, other = new(name), new(name)
    forward = run(one, features)
    backward = run(other, features.flip(0))
    assert (forward[-1] - backward[0]).abs().max() > 1e-6
    one.reset()
    assert torch.equal(run(one, features), forward)
    torch.testing.assert_close(run(new(name), features[:20]), forward[:20], rtol=0, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_a_single_class_is_no_reason_to_fail(name: str) -> None:
    method = new(name, make_text(1))
    for feature in stream(30, classes=1):
        assert answer(method, feature).tolist() == pytest.approx([1.0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", NAMES)
def test_low_precision_models_keep_states_in_float32(name: str, dtype: torch.dtype) -> None:
    """The encoder gives float32 features whatever the weights are; states follow them, not the weights."""
    method, features = new(name, dtype=dtype), stream(80, seed=3)
    scores = run(method, features.float())
    for tensor in method.state().values():
        assert not tensor.is_floating_point() or tensor.dtype == torch.float32
        assert not tensor.isnan().any()
    text = make_text(C).to(dtype).to(torch.float64)
    exact = new(name, text)
    expected = run(exact, features.float().double()).float()
    torch.testing.assert_close(scores, expected, rtol=0, atol=2e-3)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("name", NAMES)
def test_a_feature_that_is_not_finite_changes_nothing(name: str, bad: float) -> None:
    method, features = new(name), stream(20, seed=4)
    run(method, features[:10])
    before = method.state()
    spoilt = features[10].clone()
    spoilt[3] = bad
    outcome = give(method, spoilt)
    assert not outcome.scores.isfinite().all()
    assert not outcome.stored
    after = method.state()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert run(method, features[10:]).isfinite().all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("hostile", ["the same image again", "opposite images", "a text itself"])
def test_degenerate_streams_stay_finite(name: str, hostile: str) -> None:
    features = {
        "the same image again": stream(1).expand(60, E),
        "opposite images": torch.cat([stream(1), -stream(1)]).repeat(30, 1),
        "a text itself": make_text(C)[2].expand(60, E),
    }[hostile]
    method = new(name)
    scores = run(method, features)
    assert scores.isfinite().all()
    assert run(method, stream(20, seed=6)).isfinite().all()
    torch.testing.assert_close(scores.sum(dim=1), torch.ones(60, dtype=torch.float64))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("cut", [1, 7, 40])
def test_a_stream_that_is_cut_goes_on_exactly(name: str, cut: int) -> None:
    features = stream(60, seed=5)
    method = new(name)
    straight = run(method, features)
    first, second = new(name), new(name)
    run(first, features[:cut])
    kept = first.state()
    run(first, features[cut : cut + 5])  # what came after the save is lost in a kill, and changes no saved tensor
    second.restore(kept)
    assert torch.equal(run(second, features[cut:]), straight[cut:])
    again = new(name)
    again.restore(kept)
    assert all(torch.equal(kept[key], value) for key, value in again.state().items())


@pytest.mark.parametrize("name", NAMES)
def test_states_have_the_shapes_of_an_empty_one(name: str) -> None:
    method = new(name)
    empty = {key: (value.shape, value.dtype) for key, value in method.state().items()}
    run(method, stream(50))
    assert {key: (value.shape, value.dtype) for key, value in method.state().items()} == empty


@pytest.mark.parametrize("name", NAMES)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(name: str) -> None:
    method = new(name)
    run(method, stream(10))
    before = method.state()
    for key, tensor in before.items():
        for wrong in (None, tensor[None], tensor.to(torch.float16)):
            broken = {k: v for k, v in before.items() if k != key} | ({} if wrong is None else {key: wrong})
            with pytest.raises(StateError, match=key):
                method.restore(broken)
    assert all(torch.equal(before[key], value) for key, value in method.state().items())


def test_progress_is_the_share_of_a_known_stream_and_grows_with_an_unknown_one() -> None:
    t = torch.arange(1, 41)
    assert stream_progress(t, 6, 20).tolist() == pytest.approx([min(1.0, i / 20) for i in range(1, 41)])
    unknown = stream_progress(t, 6, 0)
    assert unknown.tolist() == pytest.approx([i / (i + 6) for i in range(1, 41)])
    assert (unknown.diff() > 0).all()
