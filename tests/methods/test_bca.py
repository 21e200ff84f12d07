"""BCA against its formulas, one embedding at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from lessmore.errors import ConfigError
from tests.methods.feature_streams import SCALE, C, Row, answer, assert_equal_streams, new, softmax, stream
from tests.random_towers import make_text


class SlowBCA:
    """Lists of embeddings, of rows and of counts."""

    def __init__(
        self,
        embedding_threshold: float = 0.05,
        embedding_count: float = 20_000.0,
        prior_threshold: float = 0.65,
        prior_count: float = 1.0,
    ) -> None:
        self.mu = [t.copy() for t in make_text(C).numpy()]
        self.rows = [[float(m == y) for y in range(C)] for m in range(C)]
        self.n, self.m = [embedding_count] * C, [prior_count] * C
        self.thresholds = embedding_threshold, prior_threshold

    def __call__(self, f: Row) -> Row:
        p = softmax(np.array([SCALE * float(mu @ f) for mu in self.mu]))
        out = [sum(p[m] * self.rows[m][y] for m in range(C)) for y in range(C)]
        y = int(np.argmax(out))
        if out[y] > self.thresholds[0]:
            moved = (self.n[y] * self.mu[y] + f) / (self.n[y] + 1)
            self.mu[y] = moved / math.sqrt(sum(moved**2))
            self.n[y] += 1
        if out[y] > self.thresholds[1]:
            self.rows[y] = [(self.m[y] * self.rows[y][k] + out[k]) / (self.m[y] + 1) for k in range(C)]
            self.m[y] += 1
        return np.array(out)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"embedding_count": 1.0},
        {"embedding_threshold": 0.7, "embedding_count": 5.0},
        {"prior_threshold": 0.2, "prior_count": 10.0},
        {"embedding_threshold": 1.0, "prior_threshold": 1.0},
    ],
)
def test_scores_equal_the_slow_reference(options: dict[str, Any]) -> None:
    assert_equal_streams(new("bca", **options), SlowBCA(**options), stream(300), atol=1e-10)


def test_images_that_are_not_sure_teach_nothing() -> None:
    method = new("bca", embedding_threshold=1.0, prior_threshold=1.0)
    before = method.state()
    for feature in stream(50):
        torch.testing.assert_close(answer(method, feature), (SCALE * make_text(C) @ feature).softmax(dim=0))
    assert all(torch.equal(before[key], value) for key, value in method.state().items())


def test_an_embedding_reaches_the_images_answered_with_it() -> None:
    method, feature = new("bca", embedding_count=1.0), stream(1)[0]
    y = int(answer(method, feature).argmax())
    for _ in range(200):
        answer(method, feature)
    assert float(method.stream.embeddings[y] @ feature) > 0.999
    others = torch.arange(C) != y
    assert torch.equal(method.stream.embeddings[others], make_text(C)[others])


def test_rows_stay_distributions() -> None:
    method = new("bca", prior_threshold=0.0)
    for feature in stream(200):
        answer(method, feature)
    rows = method.stream.posteriors
    torch.testing.assert_close(rows.sum(dim=1), torch.ones(C, dtype=torch.float64))
    assert rows.min() >= 0
    assert (rows - torch.eye(C, dtype=torch.float64)).abs().max() > 0.1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"embedding_threshold": 1.5}, "probabilities"),
        ({"prior_threshold": -0.1}, "probabilities"),
        ({"embedding_count": 0.0}, "positive"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        new("bca", **options)
