"""OnZeta against its formulas, one class at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from lessmore.errors import ConfigError
from tests.methods.feature_streams import SCALE, C, Row, answer, assert_equal_streams, new, softmax, stream
from tests.random_towers import make_text


class SlowOnZeta:
    """Lists of numbers, one class after another."""

    def __init__(self, horizon: int = 0, beta: float = 0.8, label_rate: float = 20.0, proxy_rate: float = 0.5) -> None:
        self.text = make_text(C).numpy()
        self.proxies = [t.copy() for t in self.text]
        self.dual = [0.0] * C
        self.t = 0
        self.horizon, self.beta, self.label_rate, self.proxy_rate = horizon, beta, label_rate, proxy_rate

    def __call__(self, f: Row) -> Row:
        self.t += 1
        p = softmax(np.array([SCALE * float(t @ f) for t in self.text]))
        raised = [p[c] * math.exp(self.dual[c]) for c in range(C)]
        q = [value / sum(raised) for value in raised]
        v = softmax(np.array([SCALE / 4 * float(w @ f) for w in self.proxies]))
        share = min(1.0, self.t / self.horizon) if self.horizon else self.t / (self.t + C)
        b = self.beta * math.sqrt(share)
        for c in range(C):
            self.dual[c] = max(0.0, self.dual[c] - self.label_rate / math.sqrt(self.t) * (q[c] - 1 / C))
            moved = self.proxies[c] - self.proxy_rate / math.sqrt(self.t) * SCALE / 4 * (v[c] - q[c]) * f
            self.proxies[c] = moved / math.sqrt(sum(moved**2))
        return np.array([b * v[c] + (1 - b) * q[c] for c in range(C)])


@pytest.mark.parametrize(
    "options", [{}, {"horizon": 300}, {"horizon": 50, "beta": 0.4}, {"label_rate": 0.0}, {"proxy_rate": 0.0}]
)
def test_scores_equal_the_slow_reference(options: dict[str, Any]) -> None:
    assert_equal_streams(new("onzeta", **options), SlowOnZeta(**options), stream(300), atol=1e-10)


def test_nothing_that_learns_is_zero_shot_at_two_temperatures() -> None:
    method, feature = new("onzeta", label_rate=0.0, proxy_rate=0.0, beta=0.0), stream(9)[8]
    z = SCALE * make_text(C) @ feature
    for _ in range(3):
        torch.testing.assert_close(answer(method, feature), z.softmax(dim=0))


def test_a_stream_of_one_class_is_spread_over_the_others() -> None:
    """What balancing costs where classes are not even: the same image is answered less and less surely."""
    method, feature = new("onzeta", beta=0.0), make_text(C)[2]
    scores = [answer(method, feature) for _ in range(100)]
    assert scores[0].argmax() == 2
    assert scores[-1][2] < scores[0][2] / 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"horizon": -1}, "horizon"),
        ({"horizon": 2.5}, "whole number"),
        ({"beta": 1.5}, "beta"),
        ({"label_rate": -1.0}, "label_rate"),
        ({"temperature": 0.0}, "temperature"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        new("onzeta", **options)
