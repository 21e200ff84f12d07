"""NEO: features are re-centred by the mean of the stream, and nothing else is done.

Murphy et al., "NEO: No-Optimization Test-Time Adaptation through Latent Re-Centering", ICLR 2026, arXiv 2510.05635.
With f_i the feature of the i-th image, T the class embeddings and s the scale of the logits:

    μ_i = μ_{i−1} + (f_i − μ_{i−1}) / i,        z'_i = s · (f_i − μ_i) · T.
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


@dataclass(frozen=True)
class NEOOptions:
    """NEO's own settings. As published it has none."""

    momentum: float = 0.0
    """Smallest weight of a new image in the mean, from 0 to 1. 0 is the plain mean of the whole stream, as published
    for one domain; a larger value lets old images fade, for a stream whose domain changes."""

    def __post_init__(self) -> None:
        """Validate once; every later use may trust the value."""
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"momentum must be at least 0 and less than 1, not {self.momentum}")


class NEOState(NamedTuple):
    """What NEO remembers."""

    images: Tensor
    """Images seen, `[]` int64."""
    mean: Tensor
    """μ, the mean feature, `[E]`."""


@register_method("neo", NEOOptions)
class NEO(FeatureStream[NEOState, NEOOptions]):
    """Subtracts the running mean feature; the classifier stays as it is."""

    follow_classes = staticmethod(by_rows())

    def empty(self) -> NEOState:
        """No images, and no mean."""
        return NEOState(self.count(), torch.zeros_like(self.text[0]))

    def step(self, state: NEOState, feature: Tensor, logits: Tensor) -> Stepped[NEOState]:
        """Update the mean, then classify what is left of the feature without it.

        The first image is its own mean, and nothing would be left; it gets zero-shot's answer.

        Args:
            state: The mean before the image.
            feature: L2-normalised, `[E]`.
            logits: Not read.
        """
        images = state.images + 1
        weight = (1 / images.to(feature.dtype)).clamp_min(self.options.momentum)
        mean = state.mean + weight * (feature - state.mean)
        centred = feature - torch.where(images > 1, mean, 0)
        scores = self.setup.class_texts.logits(centred[None])[0].softmax(dim=-1)
        return Stepped(scores, NEOState(images, mean))

    def matmul_macs(self) -> int:
        """The re-centred feature against every class, C·E."""
        return self.text.numel()
