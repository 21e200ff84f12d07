"""DOTA against its formulas, one class and one pair of directions at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lessmore.errors import ConfigError
from tests.methods.feature_streams import SCALE, C, E, Row, answer, assert_equal_streams, new, softmax, stream
from tests.random_towers import make_text


class SlowDOTA:
    """A weight, a mean and a matrix per class; the inverse is made afresh for every image."""

    def __init__(self, means: str = "constant", covariance: str = "class", eta: float = 0.3, rho: float = 0.02) -> None:
        self.text = make_text(C).numpy()
        self.shared, self.eta, self.rho = covariance == "shared", eta, rho
        self.c = [1.0] * C
        self.mu = [t.copy() if means == "texts" else np.full(E, 0.001) for t in self.text]
        self.sigma = [0.002 * np.eye(E) for _ in range(C)]

    def __call__(self, f: Row) -> Row:
        z = np.array([SCALE * float(t @ f) for t in self.text])
        p = softmax(z)
        precision = np.linalg.inv((1 - 1e-4) * sum(self.sigma) / C + 1e-4 * np.eye(E))
        weight = min(self.rho * sum(self.c) / C, self.eta)
        out = [z[k] + weight * (f @ precision @ m - m @ precision @ m / 2) for k, m in enumerate(self.mu)]
        if self.shared:
            pooled = sum(self.c) * self.sigma[0]
            for k in range(C):
                pooled = pooled + p[k] * np.outer(f - self.mu[k], f - self.mu[k])
            self.sigma = [pooled / (sum(self.c) + 1)] * C
        for k in range(C):
            c, d = self.c[k], f - self.mu[k]
            if not self.shared:
                self.sigma[k] = (c * self.sigma[k] + p[k] * np.outer(d, d)) / (c + p[k])
            self.mu[k] = (c * self.mu[k] + p[k] * f) / (c + p[k])
            self.c[k] = c + p[k]
        return softmax(np.array(out))


@pytest.mark.parametrize(
    "options",
    [{}, {"means": "texts"}, {"covariance": "shared"}, {"means": "texts", "covariance": "shared", "eta": 1.0}],
)
def test_scores_equal_the_slow_reference(options: dict[str, Any]) -> None:
    assert_equal_streams(new("dota", **options), SlowDOTA(**options), stream(250), atol=1e-8)


def test_weight_zero_is_zero_shot() -> None:
    method = new("dota", eta=0.0)
    for feature in stream(20):
        torch.testing.assert_close(answer(method, feature), (SCALE * make_text(C) @ feature).softmax(dim=0))


def test_weights_add_up_to_the_images_seen() -> None:
    method = new("dota")
    for feature in stream(40):
        answer(method, feature)
    assert float(method.stream.weights.sum()) == pytest.approx(C + 40)


def test_means_and_covariances_reach_those_of_well_separated_classes() -> None:
    """What is learnt is the distribution: from sure answers, the mean and scatter of each class."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.eye(E, dtype=torch.float64)[:3]
    labels = torch.randint(3, (3000,), generator=generator)
    features = centres[labels] + 0.05 * torch.randn(3000, E, generator=generator, dtype=torch.float64)
    method = new("dota", text=centres)
    for feature in features:
        answer(method, feature)
    for k in range(3):
        own = features[labels == k]
        torch.testing.assert_close(method.stream.means[k], own.mean(dim=0), rtol=0, atol=5e-3)
        torch.testing.assert_close(method.stream.covariances[k], own.T.cov(), rtol=0, atol=3e-3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sigma": 0.0}, "sigma"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"eta": -1.0}, "eta"),
        ({"means": "text"}, "means must be 'constant' or 'texts'"),
        ({"covariance": "diagonal"}, "covariance must be"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        new("dota", **options)
