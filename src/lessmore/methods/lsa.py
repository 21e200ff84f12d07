"""LSA: estimates from zero-shot's answers how frequent each class has been so far, and divides that out.

Han et al., "Label Shift Aware Adaptation for Online Zero-shot Learning with CLIP", arXiv 2606.15169. p_i are
zero-shot's answers to the t images so far, C the number of classes. Three times, starting from the uniform distribution
π = 1/C:

    g_i ∝ π · p_i                                       every answer under the present estimate
    π = λ · mean_i g_i + (1 − λ)/C,    λ = λ₀·t/N       its mean, shrunk towards the uniform distribution

The answer to the t-th image is then ∝ p_t / π, so a class that the model predicts too often loses probability.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lessmore.errors import ConfigError
from lessmore.methods.feature_stream import FeatureStream, Stepped, stream_progress
from lessmore.methods.registry import register_method


@dataclass(frozen=True)
class LSAOptions:
    """LSA's own settings; the defaults are the authors', but for `horizon` and `capacity`."""

    horizon: int = 0
    """N, the number of images to come. 0: nobody knows, and t/(t + C) takes the place of t/N. The authors know it."""
    strength: float = 0.9
    """λ₀, the weight of the estimate at the end of the stream."""
    rounds: int = 3
    """How often the estimate is refined."""
    capacity: int = 4096
    """Answers that are kept, the latest ones. The authors keep them all."""

    def __post_init__(self) -> None:
        """Validate once; every later use may trust the values."""
        if self.horizon < 0:
            raise ConfigError(f"horizon must be the number of images, or 0 where it is unknown, not {self.horizon}")
        if not 0 <= self.strength < 1:
            raise ConfigError(f"strength must be at least 0 and less than 1, not {self.strength}")
        if min(self.rounds, self.capacity) < 1:
            raise ConfigError(f"rounds and capacity must be at least 1, not {self.rounds} and {self.capacity}")


class LSAState(NamedTuple):
    """What LSA remembers."""

    images: Tensor
    """t, images seen, `[]` int64."""
    answers: Tensor
    """p_i in a ring, the t-th image at place t mod N; zeros where nothing is kept yet, `[N, C]`."""


def label_shift(answers: Tensor, count: Tensor, weight: Tensor, rounds: int) -> Tensor:
    """π, how frequent the classes are among some answers.

    Args:
        answers: Probabilities p_i, `[N, C]`; rows of zeros count for nothing.
        count: Number of the other rows, `[]`.
        weight: λ, `[]`.
        rounds: How often the estimate is refined.

    Returns:
        Probabilities, `[C]`, none below (1 − λ)/C.
    """
    classes = answers.shape[1]
    share = answers.new_full((classes, 1), 1 / classes)
    for _ in range(rounds):
        total = answers @ share  # the g_i are π·p_i over these, and their sum is π·(Σ p_i over these)
        mean = share * (answers.T @ torch.where(total > 0, 1 / total, 0)) / count
        share = weight * mean + (1 - weight) / classes
    return share[:, 0]


@register_method("lsa", LSAOptions)
class LSA(FeatureStream[LSAState, LSAOptions]):
    """Divides by the estimated frequencies of the classes."""

    def empty(self) -> LSAState:
        """No answers."""
        return LSAState(self.count(), self.text.new_zeros(self.options.capacity, len(self.text)))

    def step(self, state: LSAState, feature: Tensor, logits: Tensor) -> Stepped[LSAState]:
        """Keep the answer, estimate the frequencies, divide.

        Args:
            state: The answers so far; changed in place.
            feature: Not read.
            logits: Zero-shot, `[C]`.
        """
        own, images = self.options, state.images + 1
        plain = logits.softmax(dim=-1)
        place = (state.images % own.capacity).view(1)
        answers = state.answers.index_copy_(0, place, plain[None].to(state.answers.dtype))
        weight = own.strength * stream_progress(images, len(logits), own.horizon).to(logits.dtype)
        share = label_shift(answers, images.clamp_max(own.capacity), weight, own.rounds)
        scores = (logits - share.log()).softmax(dim=-1)
        return Stepped(scores, LSAState(images, answers), torch.ones_like(images, dtype=torch.bool))

    def matmul_macs(self) -> int:
        """Two products of all places with the classes in every round, 2·rounds·N·C."""
        return 2 * self.options.rounds * self.options.capacity * len(self.text)
