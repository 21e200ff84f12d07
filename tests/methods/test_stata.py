"""StatA against its definition with loops, and against its objective."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lessmore.errors import ConfigError
from lessmore.methods.stata import StatAOptions, anchored_fit, anchored_mixture
from tests.methods.feature_streams import SCALE, C, Row, answer, assert_equal_streams, new, softmax, stream
from tests.random_towers import make_text


class SlowStatA:
    """The window as lists of images; one class, one image and one direction at a time."""

    def __init__(self, window: int = 64, alpha: float = 1.0, neighbours: int = 3, rounds: int = 10) -> None:
        self.text = make_text(C).numpy()
        self.window, self.alpha, self.neighbours, self.rounds = window, alpha, neighbours, rounds
        self.images: list[Row] = []

    def near(self, i: int) -> list[tuple[float, int]]:
        """The nearest other images, the nearest first."""
        others = [(float(self.images[i] @ f), j) for j, f in enumerate(self.images) if j != i]
        return sorted(others, key=lambda pair: -pair[0])[: self.neighbours]

    def __call__(self, f: Row) -> Row:
        self.images = [*self.images, f][-self.window :]
        plain = [softmax(np.array([SCALE * float(t @ g) for t in self.text])) for g in self.images]
        n, E = len(self.images), len(f)
        total = sum(p.sum() for p in plain)
        spread = [
            sum(plain[i][k] * (self.images[i][e] - self.text[k][e]) ** 2 for i in range(n) for k in range(C)) / total
            for e in range(E)
        ]
        z = [p.copy() for p in plain]
        for _ in range(self.rounds):
            mu, var = np.zeros((C, E)), np.zeros((C, E))
            for k in range(C):
                m = sum(z[i][k] for i in range(n)) + self.alpha
                for e in range(E):
                    t = self.text[k][e]
                    mu[k, e] = (sum(z[i][k] * self.images[i][e] for i in range(n)) + self.alpha * t) / m
                    around = sum(z[i][k] * (self.images[i][e] - mu[k, e]) ** 2 for i in range(n))
                    var[k, e] = (around + self.alpha * (spread[e] + (t - mu[k, e]) ** 2)) / m
            fresh = []
            for i, g in enumerate(self.images):
                drawn = sum(max(s, 0.0) * z[j] for s, j in self.near(i)) if n > 1 else np.zeros(C)
                density = -0.5 * (((g - mu) ** 2 / var) + np.log(var)).sum(axis=1)
                fresh.append(softmax(np.log(plain[i]) + density + drawn))
            z = fresh
        return z[-1]


@pytest.mark.parametrize(
    "options", [{}, {"window": 7}, {"neighbours": 0}, {"alpha": 5.0, "rounds": 2}, {"window": 1}, {"window": 2}]
)
def test_scores_equal_the_slow_reference(options: dict[str, Any]) -> None:
    assert_equal_streams(new("stata", **options), SlowStatA(**options), stream(30), atol=1e-9)


def test_a_window_that_is_not_full_is_a_batch_of_what_is_there() -> None:
    features = stream(20)
    plain = (SCALE * features @ make_text(C).T).softmax(dim=1)
    method = new("stata", window=50)
    found = [answer(method, feature) for feature in features][-1]
    torch.testing.assert_close(anchored_mixture(features, plain, make_text(C))[-1], found)


def test_the_fit_is_the_minimum_of_its_part_of_the_objective() -> None:
    """Likelihood and anchors together: no small step along any mean or variance makes it better."""
    features, text = stream(25), make_text(C)
    z = (SCALE * features @ text.T).softmax(dim=1)
    spread, alpha = torch.full((features.shape[1],), 0.3, dtype=torch.float64), 2.0

    def objective(means: torch.Tensor, variances: torch.Tensor) -> torch.Tensor:
        square = ((features[:, None] - means) ** 2 / variances + variances.log()).sum(dim=2) / 2
        away = (spread + (text - means) ** 2) / variances + variances.log() - spread.log() - 1
        return (z * square).sum() + alpha * away.sum() / 2

    means, variances = (x.requires_grad_() for x in anchored_fit(features, z, text, spread, alpha))
    with torch.enable_grad():
        slopes = torch.autograd.grad(objective(means, variances), [means, variances])
    assert max(float(slope.abs().max()) for slope in slopes) < 1e-10


def test_a_class_nobody_belongs_to_stays_where_its_text_is() -> None:
    features, text = stream(30), make_text(C)
    z = (SCALE * features @ text.T).softmax(dim=1)
    z[:, 2] = 0
    means, variances = anchored_fit(features, z, text, torch.full((features.shape[1],), 0.2).double(), 1.0)
    torch.testing.assert_close(means[2], text[2])
    torch.testing.assert_close(variances[2], torch.full_like(variances[2], 0.2))


def test_an_anchor_that_counts_for_ever_leaves_one_spherical_classifier() -> None:
    """α → ∞: the Gaussians are those of the texts, and only distances to them are left."""
    features, text = stream(30), make_text(C)
    plain = (SCALE * features @ text.T).softmax(dim=1)
    found = anchored_mixture(features, plain, text, StatAOptions(alpha=1e12, neighbours=0))
    spread = (plain[..., None] * (features[:, None] - text) ** 2).sum(dim=(0, 1)) / len(features)
    distance = ((features[:, None] - text) ** 2 / spread).sum(dim=2)
    torch.testing.assert_close(found, (plain.log() - distance / 2).softmax(dim=1), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"window": 0}, "window"), ({"rounds": 0}, "rounds"), ({"neighbours": -1}, "n"), ({"alpha": 0.0}, "alpha")],
)
def test_bad_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        new("stata", **options)
