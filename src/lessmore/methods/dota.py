"""DOTA: a Gaussian for every class, fitted to the stream by zero-shot's answers, corrects zero-shot.

Han et al., "DOTA: Distributional Test-Time Adaptation of Vision-Language Models", NeurIPS 2025, arXiv 2409.19375. z are
the zero-shot logits of an image, p their softmax, f its feature; c_k, μ_k, Σ_k are weight, mean and covariance of class
k:

    Λ = [(1 − ε) · mean_k Σ_k + ε·I]⁻¹
    answer z + λ · (f'Λμ_k − ½ μ_k'Λμ_k),    λ = min(ρ · mean_k c_k, η)

and then, with d_k = f − μ_k:

    Σ_k ← (c_k Σ_k + p_k d_k d_k') / (c_k + p_k),    μ_k ← (c_k μ_k + p_k f) / (c_k + p_k),    c_k ← c_k + p_k

from c_k = 1, Σ_k = σ·I. Every image teaches every class as far as zero-shot believes in it; no label is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lessmore.core.class_list import by_rows
from lessmore.errors import ConfigError
from lessmore.methods.feature_stream import FeatureStream, Stepped
from lessmore.methods.registry import register_method

COVARIANCES = ("class", "shared")
MEANS = ("constant", "texts")


@dataclass(frozen=True)
class DOTAOptions:
    """DOTA's own settings; the defaults are published ones, the same for all data."""

    sigma: float = 0.002
    """σ, variance of every direction before the first image."""
    epsilon: float = 1e-4
    """ε, share of the identity in the covariance."""
    rho: float = 0.02
    """ρ, how fast the Gaussians gain weight in the answer."""
    eta: float = 0.3
    """η, the most weight they get."""
    means: str = "constant"
    """Means before the first image: `constant`, 0.001 in every direction, or `texts`, the class embeddings."""
    covariance: str = "class"
    """`class` keeps Σ_k of every class, C·E² numbers; `shared` keeps one Σ, fitted to the same images with their
    weights pooled, E² numbers."""

    def __post_init__(self) -> None:
        """Validate once; every later use may trust the values."""
        if not self.sigma > 0 or not 0 < self.epsilon <= 1:
            raise ConfigError(f"sigma must be positive and epsilon in (0, 1], not {self.sigma} and {self.epsilon}")
        if min(self.rho, self.eta) < 0:
            raise ConfigError(f"rho and eta must not be negative, not {self.rho} and {self.eta}")
        for name, value, choices in (("means", self.means, MEANS), ("covariance", self.covariance, COVARIANCES)):
            if value not in choices:
                raise ConfigError(f"{name} must be {' or '.join(map(repr, choices))}, not {value!r}")


class DOTAState(NamedTuple):
    """What DOTA remembers."""

    weights: Tensor
    """c_k, `[C]`."""
    means: Tensor
    """μ_k, `[C, E]`."""
    covariances: Tensor
    """Σ_k, `[C, E, E]`, or `[1, E, E]` where it is shared."""


def discriminant(feature: Tensor, means: Tensor, covariance: Tensor) -> Tensor:
    """f'Λμ_k − ½ μ_k'Λμ_k with Λ the inverse of a covariance.

    Args:
        feature: f, `[E]`.
        means: μ_k, `[C, E]`.
        covariance: Positive definite, `[E, E]`.

    Returns:
        Linear scores of the classes, `[C]`.
    """
    factor, _ = torch.linalg.cholesky_ex(covariance)
    towards = torch.cholesky_solve(means.T, factor).T
    return ((feature - means / 2) * towards).sum(dim=1)


def update_gaussians_(state: DOTAState, feature: Tensor, p: Tensor) -> None:
    """Update the Gaussians of all classes with one image, in place.

    Args:
        state: The Gaussians.
        feature: f, `[E]`.
        p: Zero-shot probabilities, `[C]`: how much the image counts for each class.
    """
    weights, means, covariances = state
    shared = len(covariances) == 1
    d = feature - means  # from the means before the image, for the covariances too
    old, gain = (weights.sum().view(1), p.sum().view(1)) if shared else (weights, p)
    weighted = d * (p / (old + gain))[:, None]
    covariances.mul_((old / (old + gain))[:, None, None])
    if shared:
        covariances[0].addmm_(weighted.T, d)
    else:
        covariances.baddbmm_(weighted[:, :, None], d[:, None, :])
    means.add_(d * (p / (weights + p))[:, None])
    weights.add_(p)


@register_method("dota", DOTAOptions)
class DOTA(FeatureStream[DOTAState, DOTAOptions]):
    """Answers with the Gaussians as they were before the image, then updates them."""

    follow_classes = staticmethod(by_rows(weights=(0,), means=(0,), covariances=(0,)))

    def empty(self) -> DOTAState:
        """Gaussians that weigh as much as one image each."""
        (C, E), own = self.text.shape, self.options
        means = self.text.clone() if own.means == "texts" else torch.full_like(self.text, 0.001)
        spread = own.sigma * torch.eye(E, dtype=self.text.dtype, device=self.text.device)
        return DOTAState(self.text.new_ones(C), means, spread.repeat(C if own.covariance == "class" else 1, 1, 1))

    def step(self, state: DOTAState, feature: Tensor, logits: Tensor) -> Stepped[DOTAState]:
        """Answer, then learn in place.

        Args:
            state: The Gaussians before the image; changed in place.
            feature: L2-normalised, `[E]`.
            logits: Zero-shot, `[C]`.
        """
        own, identity = self.options, torch.eye(len(feature), dtype=feature.dtype, device=feature.device)
        covariance = torch.lerp(state.covariances.mean(dim=0), identity, own.epsilon)
        weight = (own.rho * state.weights.mean()).clamp_max(own.eta)
        scores = (logits + weight * discriminant(feature, state.means, covariance)).softmax(dim=-1)
        update_gaussians_(state, feature, logits.softmax(dim=-1))
        return Stepped(scores, state)

    def matmul_macs(self) -> int:
        """d_k d_k' of every class, C·E²."""
        C, E = self.text.shape
        return C * E * E

    def solver_macs(self) -> int:
        """A Cholesky factor, E³/6, and its two triangular solves for every class, C·E²."""
        C, E = self.text.shape
        return E**3 // 6 + C * E * E
