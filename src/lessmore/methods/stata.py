"""StatA: a Gaussian for every class, fitted to a window of images and kept close to what its text says about it.

Zanella et al., "Realistic Test-Time Adaptation of Vision-Language Models", CVPR 2025, arXiv 2501.03729. z_i are the
answers to the n images of a window, p_i zero-shot's, f_i their features, t_k the texts, w_ij how alike neighbours are.
N(μ_k, Σ_k) has a diagonal covariance. The objective to minimise is

    −Σ_i z_i·log N(f_i)  −  Σ_ij w_ij z_i·z_j  +  Σ_i KL(z_i ‖ p_i)  +  α Σ_k KL(N(t_k, Σ') ‖ N(μ_k, Σ_k))

where the last term is the anchor. It is minimised over one block of variables at a time, with m_k = Σ_i z_ik:

    μ_k = (Σ_i z_ik f_i + α t_k) / (m_k + α)
    Σ_k = (Σ_i z_ik (f_i − μ_k)² + α (Σ' + (t_k − μ_k)²)) / (m_k + α)
    z_ik ∝ p_ik · N(f_i; μ_k, Σ_k) · exp(Σ_j w_ij z_jk)

A class without images in the window stays at its text. Derived here from the objective.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lessmore.errors import ConfigError
from lessmore.methods.feature_stream import FeatureStream, Stepped
from lessmore.methods.registry import register_method

_LEAST = 1e-8  # variance of a direction in which nothing differs


@dataclass(frozen=True)
class StatAOptions:
    """StatA's own settings."""

    window: int = 64
    """The latest images, which are fitted together. The authors take batches and answer a whole batch at once."""
    alpha: float = 1.0
    """α, how many images a text counts for; the authors', the same for all data."""
    neighbours: int = 3
    """Images that each image's answer is drawn to; 0 for none."""
    rounds: int = 10
    """How often Gaussians and answers are fitted to each other."""

    def __post_init__(self) -> None:
        """Validate once; every later use may trust the values."""
        if min(self.window, self.rounds) < 1 or self.neighbours < 0:
            raise ConfigError("window and rounds must be at least 1, and neighbours not negative")
        if not self.alpha > 0:
            raise ConfigError(f"alpha must be positive, not {self.alpha}")


class StatAState(NamedTuple):
    """What StatA remembers: N images in a ring, the t-th at place t mod N."""

    seen: Tensor
    """Images seen, `[]` int64."""
    features: Tensor
    """`[N, E]`; zeros where there is no image yet."""
    plain: Tensor
    """Zero-shot's answers, `[N, C]`; zeros where there is no image yet."""


class DiagonalGaussians(NamedTuple):
    """One for every class."""

    means: Tensor
    """μ, `[C, E]`."""
    variances: Tensor
    """Diagonals of Σ, `[C, E]`."""


def anchored_fit(features: Tensor, answers: Tensor, text: Tensor, spread: Tensor, alpha: float) -> DiagonalGaussians:
    """The Gaussians that go with some answers.

    Args:
        features: `[n, E]`.
        answers: `[n, C]`; rows of zeros count for nothing.
        text: Class embeddings, the anchors' means, `[C, E]`.
        spread: The anchors' variances, `[E]`.
        alpha: How many images an anchor counts for.
    """
    mass = answers.sum(dim=0)[:, None]
    first, second = answers.T @ features, answers.T @ features**2
    means = (first + alpha * text) / (mass + alpha)
    scatter = second - 2 * means * first + mass * means**2
    variances = (scatter + alpha * (spread + (text - means) ** 2)) / (mass + alpha)
    return DiagonalGaussians(means, variances.clamp_min(_LEAST))


def log_densities(features: Tensor, gaussians: DiagonalGaussians) -> Tensor:
    """log N(f_i; μ_k, Σ_k) up to a constant, `[n, C]`.

    Args:
        features: `[n, E]`.
        gaussians: Those of C classes.
    """
    means, variances = gaussians
    square = features**2 @ (1 / variances).T - 2 * features @ (means / variances).T
    return -(square + (means**2 / variances + variances.log()).sum(dim=1)) / 2


def nearest_images(features: Tensor, used: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The nearest other images of each.

    Args:
        features: Unit length, `[n, E]`.
        used: Which of them are images, `[n]` bool.
        count: How many to look for.

    Returns:
        Their places and their similarities, `[n, k]` each; 0 where there is none, or it points away.
    """
    cosines = (features @ features.T).fill_diagonal_(-1).masked_fill(~used, -1)
    near, places = cosines.sort(dim=1, descending=True, stable=True)
    return places[:, :count], near[:, :count].clamp_min(0)


def anchored_mixture(features: Tensor, plain: Tensor, text: Tensor, options: StatAOptions | None = None) -> Tensor:
    """Answers to images that are fitted together: a batch, as the authors do, or a window.

    Args:
        features: Unit length, `[n, E]`; rows of zeros are no images.
        plain: Zero-shot's answers, `[n, C]`; rows of zeros where there is no image.
        text: Class embeddings, `[C, E]`.
        options: `window` is not read; None means the defaults.

    Returns:
        Probabilities, `[n, C]`, zeros where there is no image.
    """
    own = options or StatAOptions()
    used = plain.sum(dim=1) > 0
    places, near = nearest_images(features, used, own.neighbours)
    spread = _spread(features, plain, text)
    answers = plain
    for _ in range(own.rounds):
        gaussians = anchored_fit(features, answers, text, spread, own.alpha)
        drawn = (near[..., None] * answers[places]).sum(dim=1)
        answers = (plain.log() + log_densities(features, gaussians) + drawn).softmax(dim=1)
        answers = torch.where(used[:, None], answers, 0)
    return answers


def _spread(features: Tensor, plain: Tensor, text: Tensor) -> Tensor:
    """Σ': how far images are from the texts that zero-shot gives them, direction by direction, `[E]`."""
    mass, share = plain.sum(), plain.sum(dim=0)
    cross = (text * (plain.T @ features)).sum(dim=0)
    square = (plain.sum(dim=1)[:, None] * features**2).sum(dim=0) - 2 * cross + (share[:, None] * text**2).sum(dim=0)
    return (square / mass).clamp_min(_LEAST)


@register_method("stata", StatAOptions)
class StatA(FeatureStream[StatAState, StatAOptions]):
    """Puts the image into the window, fits everything again, and returns the image's own answer."""

    def empty(self) -> StatAState:
        """No images."""
        N, (C, E) = self.options.window, self.text.shape
        return StatAState(self.count(), self.text.new_zeros(N, E), self.text.new_zeros(N, C))

    def step(self, state: StatAState, feature: Tensor, logits: Tensor) -> Stepped[StatAState]:
        """Keep the image, in place of the oldest, and answer it with the others.

        Args:
            state: The window before the image.
            feature: `[E]`.
            logits: Zero-shot's, `[C]`.
        """
        place = (state.seen % self.options.window).view(1)
        features = state.features.index_copy(0, place, F.normalize(feature[None], dim=1).to(state.features))
        plain = state.plain.index_copy(0, place, logits.softmax(dim=-1)[None].to(state.plain))
        scores = anchored_mixture(features, plain, self.text, self.options).index_select(0, place)[0]
        return Stepped(
            scores, StatAState(state.seen + 1, features, plain), torch.ones_like(state.seen, dtype=torch.bool)
        )

    def matmul_macs(self) -> int:
        """Neighbours, N²·E, the anchors' spread, N·C·E, and four products of N·C·E in every round."""
        N, (C, E) = self.options.window, self.text.shape
        return N * N * E + (1 + 4 * self.options.rounds) * N * C * E
