"""OGA: Gaussians fitted to the most confident images of every class multiply zero-shot's answer.

Fuchs et al., "Online Gaussian Adaptation of Vision-Language Models", arXiv 2501.04352. Every class keeps the M features
of lowest entropy among the images that zero-shot gives it. d is the dimension of features, p zero-shot's answer, and R
the covariance, about their own mean, of what the n stored features have beyond the means of their classes:

    μ_k = Σ f_i / M where class k holds 2 features or more, its text otherwise
    Λ = d · [(n − 1)·R + tr(R)·I]⁻¹ where n ≤ 4d, R⁺ otherwise;  d·I until some class holds 3
    answer ∝ p · exp(−½ (f − μ_k)'Λ(f − μ_k))^τ

f'Λf is the same for all classes and is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lessmore.core.class_list import by_rows
from lessmore.errors import ConfigError
from lessmore.methods.feature_stream import FeatureStream, Stepped
from lessmore.methods.registry import Setup, register_method
from lessmore.storage.state import finite_but


@dataclass(frozen=True)
class OGAOptions:
    """OGA's own settings; the defaults are the authors', the same for all data."""

    capacity: int = 8
    """M, features per class."""
    tau: float = 0.05
    """τ, weight of the Gaussians."""
    full_mean: bool = True
    """Divide the mean by M even where a class holds fewer, as published: the mean then lies nearer to 0."""

    def __post_init__(self) -> None:
        """Validate once; every later use may trust the values."""
        if self.capacity < 1:
            raise ConfigError(f"capacity must be at least 1, not {self.capacity}")
        if self.tau < 0:
            raise ConfigError(f"tau must not be negative, not {self.tau}")


class OGAState(NamedTuple):
    """What OGA remembers."""

    features: Tensor
    """Stored features, `[C, M, E]`; zeros where a slot is empty."""
    entropies: Tensor
    """Entropies of their answers in nats, `[C, M]`; infinite where a slot is empty."""


class Discriminant(NamedTuple):
    """The Gaussians as linear scores of the classes, f·direction + offset; both follow from the state."""

    direction: Tensor
    """Λμ_k, `[C, E]`."""
    offset: Tensor
    """−½ μ_k'Λμ_k, `[C]`."""


def insert_feature_(state: OGAState, feature: Tensor, p: Tensor) -> Tensor:
    """Let an image into the memory of its predicted class, if its entropy is below the highest there.

    Args:
        state: The memory; changed in place.
        feature: L2-normalised, `[E]`.
        p: Zero-shot probabilities, `[C]`.

    Returns:
        Whether it entered, `[]` bool.
    """
    label, entropy = p.argmax(), torch.special.entr(p).sum()
    worst = state.entropies[label].argmax()
    enters = entropy < state.entropies[label, worst]
    state.features[label, worst] = torch.where(enters, feature, state.features[label, worst])
    state.entropies[label, worst] = torch.where(enters, entropy, state.entropies[label, worst])
    return enters


def class_means(state: OGAState, text: Tensor, full: bool) -> Tensor:
    """μ_k, `[C, E]`.

    Args:
        state: The memory.
        text: Class embeddings, `[C, E]`, which stand in where a class holds fewer than 2 features.
        full: Divide by the capacity M instead of the number of features a class holds.
    """
    held = state.entropies.isfinite().sum(dim=1, keepdim=True)
    over = state.entropies.shape[1] if full else held.clamp_min(1)
    return torch.where(held >= 2, state.features.sum(dim=1) / over, text)


def precision_times(state: OGAState, means: Tensor) -> Tensor:
    """Λμ_k, `[C, E]`.

    Args:
        state: The memory that Λ is estimated from.
        means: μ_k, `[C, E]`.
    """
    dimension, used = means.shape[1], state.entropies.isfinite()
    n = int(used.sum())
    left = torch.where(used[..., None], state.features - means[:, None], 0).flatten(0, 1)
    left = torch.where(used.flatten()[:, None], left - left.sum(dim=0) / max(n, 1), 0)
    scatter = left.T @ left
    if int(used.sum(dim=1).max()) < 3:
        return dimension * means
    if n > 4 * dimension:
        return means @ torch.linalg.pinv(scatter / (n - 1), hermitian=True)
    trace = scatter.diagonal().sum() / (n - 1)
    if float(trace) <= torch.finfo(trace.dtype).eps:  # all residuals are alike: the pseudo-inverse of nothing
        return torch.zeros_like(means)
    factor, _ = torch.linalg.cholesky_ex(scatter + trace * torch.eye(dimension, dtype=trace.dtype, device=trace.device))
    return dimension * torch.cholesky_solve(means.T, factor).T


@register_method("oga", OGAOptions)
class OGA(FeatureStream[OGAState, OGAOptions]):
    """Stores the image first and answers it second, as the public code does."""

    state_problem = staticmethod(finite_but("entropies"))
    follow_classes = staticmethod(by_rows(features=(0,), entropies=(0,)))

    def __init__(self, setup: Setup, options: OGAOptions) -> None:
        super().__init__(setup, options)
        self.gaussians = self.fitted()

    def empty(self) -> OGAState:
        """No features."""
        C, E, M = *self.text.shape, self.options.capacity
        return OGAState(self.text.new_zeros(C, M, E), self.text.new_full((C, M), torch.inf))

    def fitted(self) -> Discriminant:
        """The Gaussians of the state as it stands."""
        if self.text.is_meta:  # only costs are asked for
            return Discriminant(self.text, self.text[:, 0])
        means = class_means(self.stream, self.text, self.options.full_mean)
        direction = precision_times(self.stream, means)
        return Discriminant(direction, -(means * direction).sum(dim=1) / 2)

    def step(self, state: OGAState, feature: Tensor, logits: Tensor) -> Stepped[OGAState]:
        """Store in place, refit the Gaussians if that changed anything, answer.

        Args:
            state: The memory before the image; changed in place.
            feature: L2-normalised, `[E]`.
            logits: Zero-shot, `[C]`.
        """
        entered = insert_feature_(state, feature, logits.softmax(dim=-1))
        if bool(entered):
            self.gaussians = self.fitted()
        direction, offset = self.gaussians
        likelihood = (feature[None] @ direction.T)[0] + offset
        return Stepped((logits + self.options.tau * likelihood).softmax(dim=-1), state, entered)

    def reset(self) -> None:
        """Forget the stream."""
        super().reset()
        self.gaussians = self.fitted()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a `state()`, from any device."""
        super().restore(state)
        self.gaussians = self.fitted()

    def slots(self) -> Tensor:
        """Which slots of the memory are in use, `[C, M]` bool."""
        return self.stream.entropies.isfinite()

    def matmul_macs(self) -> int:
        """The scatter of all slots, C·M·E², as if every image were stored, and the feature against every class."""
        C, E = self.text.shape
        inverse = 0 if self._small() else E**3 + C * E * E
        return C * self.options.capacity * E * E + inverse + C * E

    def solver_macs(self) -> int:
        """A Cholesky factor and its solves; an eigendecomposition, about 13/3·E³, where more than 4·E features fit."""
        C, E = self.text.shape
        return E**3 // 6 + C * E * E if self._small() else 13 * E**3 // 3

    def _small(self) -> bool:
        C, E = self.text.shape
        return C * self.options.capacity <= 4 * E
