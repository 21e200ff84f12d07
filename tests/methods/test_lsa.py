"""LSA against its formulas, one answer at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lessmore.errors import ConfigError
from lessmore.methods.lsa import label_shift
from tests.methods.feature_streams import SCALE, C, Row, answer, assert_equal_streams, new, softmax, stream
from tests.random_towers import make_text


class SlowLSA:
    """All answers in a list; every one weighed and normalised by itself."""

    def __init__(self, horizon: int = 0, strength: float = 0.9, rounds: int = 3, capacity: int = 4096) -> None:
        self.text = make_text(C).numpy()
        self.horizon, self.strength, self.rounds, self.capacity = horizon, strength, rounds, capacity
        self.answers: list[Row] = []
        self.t = 0

    def __call__(self, f: Row) -> Row:
        self.t += 1
        p = softmax(np.array([SCALE * float(t @ f) for t in self.text]))
        self.answers = [*self.answers, p][-self.capacity :]
        share = min(1.0, self.t / self.horizon) if self.horizon else self.t / (self.t + C)
        weight, prior = self.strength * share, [1 / C] * C
        for _ in range(self.rounds):
            sums = [0.0] * C
            for one in self.answers:
                raised = [prior[c] * one[c] for c in range(C)]
                for c in range(C):
                    sums[c] += raised[c] / sum(raised)
            prior = [weight * sums[c] / len(self.answers) + (1 - weight) / C for c in range(C)]
        out: Row = np.array([p[c] / prior[c] for c in range(C)])
        return out / out.sum()


@pytest.mark.parametrize(
    "options",
    [{}, {"horizon": 200}, {"horizon": 50, "strength": 0.5}, {"rounds": 1}, {"capacity": 16}, {"capacity": 1}],
)
def test_scores_equal_the_slow_reference(options: dict[str, Any]) -> None:
    assert_equal_streams(new("lsa", **options), SlowLSA(**options), stream(200), atol=1e-10)


def test_strength_zero_is_zero_shot() -> None:
    method = new("lsa", strength=0.0)
    for feature in stream(20):
        torch.testing.assert_close(answer(method, feature), (SCALE * make_text(C) @ feature).softmax(dim=0))


def test_a_class_that_is_answered_too_often_loses() -> None:
    """All images lean towards class 1; divided by its frequency, the second thoughts come to the surface."""
    features = stream(200) + 0.8 * make_text(C)[1]
    features = features / features.norm(dim=1, keepdim=True)
    method = new("lsa")
    adapted = torch.stack([answer(method, feature) for feature in features])[100:]
    plain = (SCALE * features @ make_text(C).T).softmax(dim=1)[100:]
    assert (adapted.argmax(dim=1) == 1).double().mean() < (plain.argmax(dim=1) == 1).double().mean() - 0.1


def test_answers_that_rule_each_other_out_leave_a_finite_estimate() -> None:
    """One-hot answers, as a sharp model gives them: their shares, drawn towards even ones."""
    answers = torch.eye(4, dtype=torch.float64)[[0, 0, 0, 1]]
    share = label_shift(answers, torch.tensor(4), torch.tensor(0.9, dtype=torch.float64), 3)
    torch.testing.assert_close(share, 0.9 * torch.tensor([0.75, 0.25, 0, 0], dtype=torch.float64) + 0.025)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"horizon": -1}, "horizon"),
        ({"strength": 1.0}, "strength"),
        ({"rounds": 0}, "rounds"),
        ({"capacity": 0}, "cap"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        new("lsa", **options)
