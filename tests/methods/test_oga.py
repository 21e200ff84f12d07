"""OGA against its formulas: a list per class, NumPy's pseudo-inverse, everything made afresh for every image."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lessmore.errors import ConfigError
from tests.methods.feature_streams import SCALE, C, E, Row, answer, assert_equal_streams, give, new, softmax, stream
from tests.random_towers import make_text


class SlowOGA:
    """Pairs of entropy and feature per class; no state but those."""

    def __init__(self, text: Tensor, capacity: int = 8, tau: float = 0.05, full_mean: bool = True) -> None:
        self.text, self.capacity, self.tau, self.full_mean = text.numpy(), capacity, tau, full_mean
        self.kept: list[list[tuple[float, Row]]] = [[] for _ in text]

    def __call__(self, f: Row) -> Row:
        p = softmax(np.array([SCALE * float(t @ f) for t in self.text]))
        entropy, y = -sum(v * np.log(v) for v in p if v > 0), int(p.argmax())
        if len(self.kept[y]) < self.capacity:
            self.kept[y].append((entropy, f))
        elif entropy < max(e for e, _ in self.kept[y]):
            worst = max(range(self.capacity), key=lambda i: self.kept[y][i][0])
            self.kept[y][worst] = (entropy, f)
        means = []
        for k, rows in enumerate(self.kept):
            total = sum((g for _, g in rows), np.zeros(len(f)))
            means.append(total / (self.capacity if self.full_mean else len(rows)) if len(rows) >= 2 else self.text[k])
        precision = self.precision(means, len(f))
        raised = []
        for k, m in enumerate(means):
            distance = sum((f - m)[a] * precision[a, b] * (f - m)[b] for a in range(len(f)) for b in range(len(f)))
            raised.append(np.log(p[k]) - self.tau * distance / 2)
        return softmax(np.array(raised))

    def precision(self, means: list[Row], d: int) -> Row:
        if max(len(rows) for rows in self.kept) < 3:
            return d * np.eye(d)
        residuals = np.array([g - means[k] for k, rows in enumerate(self.kept) for _, g in rows])
        n, scatter = len(residuals), np.cov(residuals.T)
        if n > 4 * d:
            return np.linalg.pinv(scatter)
        return d * np.linalg.pinv((n - 1) * scatter + np.trace(scatter) * np.eye(d))


@pytest.mark.parametrize("options", [{}, {"capacity": 3}, {"full_mean": False, "tau": 0.2}, {"capacity": 1}])
def test_scores_equal_the_slow_reference(options: dict[str, Any]) -> None:
    """With six classes of eight features in eight dimensions, both estimators of the precision have their turn."""
    method = new("oga", **options)
    assert_equal_streams(method, SlowOGA(make_text(C), **options), stream(250), atol=1e-9)
    assert (int(method.slots().sum()) > 4 * E) == (options.get("capacity", 8) == 8)


def test_the_memory_holds_the_lowest_entropies_of_each_answered_class() -> None:
    method, features = new("oga", capacity=3), stream(200, seed=7)
    p = (SCALE * features @ make_text(C).T).softmax(dim=1)
    entropies, labels = torch.special.entr(p).sum(dim=1), p.argmax(dim=1)
    stored = [bool(give(method, feature).stored) for feature in features]
    for k in range(C):
        expected = entropies[labels == k].sort().values[:3]
        torch.testing.assert_close(method.stream.entropies[k].sort().values, expected)
    assert 3 * C <= sum(stored) < 200


def test_slots_say_what_is_stored() -> None:
    method = new("oga")
    assert method.slots().shape == (C, 8)
    assert not method.slots().any()
    give(method, stream(1)[0])
    assert method.slots().sum() == 1


def test_weight_zero_is_zero_shot() -> None:
    method = new("oga", tau=0.0)
    for feature in stream(20):
        torch.testing.assert_close(answer(method, feature), (SCALE * make_text(C) @ feature).softmax(dim=0))


def test_a_restored_state_is_fitted_at_once() -> None:
    method, other, features = new("oga"), new("oga"), stream(60)
    for feature in features:
        answer(method, feature)
    other.restore(method.state())
    torch.testing.assert_close(other.gaussians.direction, method.gaussians.direction, rtol=0, atol=0)
    method.reset()
    torch.testing.assert_close(method.gaussians.direction, E * make_text(C))


@pytest.mark.parametrize(("options", "words"), [({"capacity": 0}, "capacity"), ({"tau": -1.0}, "tau")])
def test_bad_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        new("oga", **options)
