"""MTA: the mode against a plain float64 reference, and what it must keep to."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from lessmore.errors import ConfigError
from lessmore.methods.mta import MTAOptions, find_mode

Array = NDArray[np.float64]


def views(V: int, C: int, seed: int, spread: float = 0.6) -> tuple[Tensor, Tensor]:
    """Features [V, 8] around one direction with a few far off, and logits [V, C]."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(V, 8, generator=generator, dtype=torch.float64)
    features = torch.eye(8, dtype=torch.float64)[0] + spread * noise
    features[V // 2 :: 5] = noise[V // 2 :: 5]
    features = features / features.norm(dim=1, keepdim=True)
    text = torch.randn(C, 8, generator=generator, dtype=torch.float64)
    return features, 20 * features @ (text / text.norm(dim=1, keepdim=True)).T


def slow_mode(f: Array, z: Array) -> tuple[Array, Array]:
    """By the formulas, view by view."""
    V = len(f)
    k = math.floor(0.3 * (V - 1))
    h2 = np.empty(V)
    for p in range(V):
        others = sorted(float(((f[p] - f[q]) ** 2).sum()) for q in range(V) if q != p)
        h2[p] = 0.5 * sum(others[:k]) / k
    s = np.exp(z - z.max(axis=1, keepdims=True))
    s /= s.sum(axis=1, keepdims=True)
    w = np.array([[float(s[p] @ s[q]) for q in range(V)] for p in range(V)])
    y, m = np.full(V, 1 / V), f[0].copy()

    def kernel(m: Array) -> Array:
        return np.array([math.exp(-float(((f[p] - m) ** 2).sum()) / (2 * h2[p])) for p in range(V)])

    for _ in range(5):
        near = kernel(m)
        for _ in range(5):
            raw = np.exp((near + 4 * w @ y) / 0.2)
            old, y = y, raw / raw.sum()
            if np.linalg.norm(y - old) < 1e-6:
                break
        for _ in range(5):
            pull = (y * kernel(m))[:, None] * f
            old, m = m, pull.sum(axis=0) / np.linalg.norm(pull.sum(axis=0))
            if np.linalg.norm(m - old) < 1e-6:
                break
    return m, y


@pytest.mark.parametrize(("V", "C"), [(64, 10), (16, 3), (8, 40)])
@pytest.mark.parametrize("spread", [0.6, 0.05])
def test_mode_equals_the_slow_reference(V: int, C: int, spread: float) -> None:
    for seed in range(5):
        features, logits = views(V, C, seed, spread)
        mode, y = find_mode(features, logits, MTAOptions())
        expected, weights = slow_mode(features.numpy(), logits.numpy())
        np.testing.assert_allclose(mode.numpy(), expected, rtol=0, atol=1e-12)
        np.testing.assert_allclose(y.numpy(), weights, rtol=0, atol=1e-12)


def test_weights_sum_to_one_and_the_mode_has_length_one() -> None:
    features, logits = views(64, 10, seed=9)
    mode, y = find_mode(features.float(), logits.float(), MTAOptions())
    assert y.sum() == pytest.approx(1, abs=1e-6)
    assert mode.norm() == pytest.approx(1, abs=1e-6)


def test_views_far_off_hardly_count() -> None:
    features, logits = views(64, 10, seed=2, spread=0.1)
    _, y = find_mode(features, logits, MTAOptions())
    far = torch.zeros(64, dtype=torch.bool)
    far[32::5] = True
    assert y[far].max() < y[~far].median()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_views_that_coincide_are_their_own_mode(dtype: torch.dtype) -> None:
    """Of a blank image all crops are the same, and every distance is 0."""
    feature = views(1, 3, seed=0)[0].to(dtype)
    mode, y = find_mode(feature.expand(16, -1), torch.zeros(16, 3, dtype=dtype), MTAOptions())
    torch.testing.assert_close(mode, feature[0])
    torch.testing.assert_close(y, torch.full((16,), 1 / 16, dtype=dtype))


@pytest.mark.parametrize("options", [{"views": 1}, {"neighbours": 0.0}, {"lambda_y": 0.0}, {"lambda_q": -1.0}])
def test_bad_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        MTAOptions(**options)  # type: ignore[arg-type]
