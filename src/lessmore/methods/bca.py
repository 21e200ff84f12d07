"""BCA: class embeddings follow the images they answer, and so does what each embedding says about the classes.

Zhou et al., "Bayesian Test-Time Adaptation for Vision-Language Models", CVPR 2025, arXiv 2503.09248. μ are the class
embeddings (initially the texts), P[m, y] says how far embedding m stands for class y (initially the identity), f is the
feature, s the scale of the logits:

    p = softmax(s · f·μ),    answer a = p·P,    y its most probable class
    where a_y > θ_μ:  μ_y ← normalise((n_y μ_y + f)/(n_y + 1)),   n_y ← n_y + 1
    where a_y > θ_P:  P_y ← (m_y P_y + a)/(m_y + 1),              m_y ← m_y + 1
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lessmore.core.class_texts import class_logits
from lessmore.errors import ConfigError
from lessmore.methods.feature_stream import FeatureStream, Stepped
from lessmore.methods.registry import register_method


@dataclass(frozen=True)
class BCAOptions:
    """BCA's own settings; the defaults are the public benchmark's, the same for all data."""

    embedding_threshold: float = 0.05
    """θ_μ, the least probability with which an image moves an embedding."""
    embedding_count: float = 20_000.0
    """n_y before the first image: how many images a text counts for."""
    prior_threshold: float = 0.65
    """θ_P, the least probability with which an image changes what an embedding stands for."""
    prior_count: float = 1.0
    """m_y before the first image."""

    def __post_init__(self) -> None:
        """Validate once; every later use may trust the values."""
        if not 0 <= self.embedding_threshold <= 1 or not 0 <= self.prior_threshold <= 1:
            raise ConfigError(
                "embedding_threshold and prior_threshold are probabilities, "
                f"not {self.embedding_threshold} and {self.prior_threshold}"
            )
        if not self.embedding_count > 0 or not self.prior_count > 0:
            raise ConfigError(
                f"embedding_count and prior_count must be positive, not {self.embedding_count} and {self.prior_count}"
            )


class BCAState(NamedTuple):
    """What BCA remembers."""

    embeddings: Tensor
    """μ, unit length, `[C, E]`."""
    embedding_counts: Tensor
    """n, `[C]`."""
    posteriors: Tensor
    """P, rows sum to one, `[C, C]`."""
    posterior_counts: Tensor
    """m, `[C]`."""


@register_method("bca", BCAOptions)
class BCA(FeatureStream[BCAState, BCAOptions]):
    """Answers first, then learns, from confident answers only."""

    def empty(self) -> BCAState:
        """Embeddings that are the texts, each standing for its own class."""
        own, text, count = self.options, self.text, len(self.text)
        identity = torch.eye(count, dtype=text.dtype, device=text.device)
        return BCAState(
            text.clone(),
            text.new_full((count,), own.embedding_count),
            identity,
            text.new_full((count,), own.prior_count),
        )

    def step(self, state: BCAState, feature: Tensor, logits: Tensor) -> Stepped[BCAState]:
        """Answer, then update the predicted class's embedding and what it stands for, in place.

        Args:
            state: The state before the image; changed in place.
            feature: L2-normalised, `[E]`.
            logits: Zero-shot, `[C]`; not read, because the embeddings have moved.
        """
        own, (embeddings, counts, posteriors, weights) = self.options, state
        p = class_logits(feature[None], embeddings, self.setup.logit_scale).softmax(dim=-1)
        answer = (p @ posteriors)[0]
        sure, y = answer.max(dim=0, keepdim=True)
        moves, settles = sure > own.embedding_threshold, sure > own.prior_threshold
        moved = F.normalize((counts[y, None] * embeddings[y] + feature) / (counts[y, None] + 1), dim=1)
        settled = (weights[y, None] * posteriors[y] + answer) / (weights[y, None] + 1)
        embeddings[y] = torch.where(moves, moved, embeddings[y])
        posteriors[y] = torch.where(settles, settled, posteriors[y])
        counts[y] += moves
        weights[y] += settles
        return Stepped(answer, state)

    def matmul_macs(self) -> int:
        """The feature against every embedding, C·E, and the answer through P, C²."""
        return self.text.numel() + len(self.text) ** 2
