"""Many streams on one model; that each is answered as `eager` would is checked in tests/property."""

from __future__ import annotations

import warnings

import pytest
import torch

from lessmore.config import preset
from lessmore.engines.multi import Multi
from lessmore.errors import ConfigError
from lessmore.methods import Setup
from lessmore.methods.tca import TCA
from tests.random_towers import CLASS, make_images, make_text, make_vit


@pytest.fixture(scope="module")
def setup() -> Setup:
    return Setup(make_vit(CLASS), make_text(3), 6.0, preset("paper", layers=(1, 2, 3), M=2, debias="bold"))


def test_streams_do_not_see_each_other(setup: Setup) -> None:
    images, others = make_images(10), make_images(10, seed=7)
    together, beside = Multi(setup, 2), Multi(setup, 2)
    for image, other in zip(images, others, strict=True):
        a = together.predict(torch.stack([image, image]))
        b = beside.predict(torch.stack([image, other]))
        torch.testing.assert_close(a[0].scores, a[1].scores, rtol=0, atol=1e-12)
        torch.testing.assert_close(a[0].scores, b[0].scores, rtol=0, atol=1e-12)
    for name, value in beside.state(0).items():
        torch.testing.assert_close(value, together.state(1)[name], rtol=0, atol=1e-12)


def test_a_stream_that_waits_stays_as_it_is(setup: Setup) -> None:
    engine = Multi(setup, 3)
    engine.predict(make_images(3))
    before = engine.state(1)
    engine.predict(make_images(2, seed=5), [2, 0])
    assert all(torch.equal(value, engine.state(1)[name]) for name, value in before.items())
    assert engine.states.reservoir.step.tolist() == [2, 1, 2]


def test_no_loop_over_streams(setup: Setup) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns where it has to fall back to one
        Multi(setup, 2).predict(make_images(2))


def test_one_stream_can_be_forgotten_forked_and_handed_over(setup: Setup) -> None:
    images = make_images(12)
    eager, engine = TCA(setup), Multi(setup, 3)
    for image in images[:6]:
        eager.predict(image[None])
    engine.restore(1, eager.state())
    engine.fork(1, into=2)
    assert torch.equal(engine.states.reservoir.means[2], eager.stream.reservoir.means)
    engine.predict(images[6:7], [1])
    engine.reset(1)
    assert engine.slots().flatten(1).any(dim=1).tolist() == [False, False, True]
    for image in images[6:]:
        (answer,) = engine.predict(image[None], [2])
        torch.testing.assert_close(answer.scores, eager.predict(image[None]).scores, rtol=0, atol=1e-10)
    engine.reset()
    assert not engine.slots().any()
    assert not any(part.any() for name, part in engine.states.named().items() if name != "ids")


def test_what_does_not_match_is_refused(setup: Setup) -> None:
    engine = Multi(setup, 2)
    with pytest.raises(ConfigError, match="one image for each stream"):
        engine.predict(make_images(3))
    with pytest.raises(ConfigError, match="one image for each stream"):
        engine.predict(make_images(2), [1, 1])
    with pytest.raises(ConfigError, match="from 0 to 1"):
        engine.predict(make_images(1), [2])
    with pytest.raises(ConfigError, match="at least 1"):
        Multi(setup, 0)
