"""OnZeta: balances the answers over the classes as images arrive, and moves class embeddings towards the images.

Qian and Hu, "Online Zero-Shot Classification with CLIP", ECCV 2024. p is zero-shot's answer to the t-th image, f its
feature, C the number of classes, W the vision proxies (initially the class embeddings), s the scale of the logits:

    q ∝ p·exp(ρ)                                        text's answer, balanced by the dual variables ρ
    ρ ← max(0, ρ − c_ρ/√t · (q − α/C))
    v = softmax(s/κ · f·W)                              the proxies' answer, at a higher temperature
    answer b·v + (1 − b)·q,    b = β·√(t/T)
    W_c ← normalise(W_c − c_w/√t · s/κ · (v − q)_c · f)

The authors use the temperatures 0.01 and 0.04. With CLIP's s = 100 these are 1/s and κ/s with κ = 4; models of other
scales keep the ratio.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lessmore.core.class_list import by_rows
from lessmore.errors import ConfigError
from lessmore.methods.feature_stream import FeatureStream, Stepped, stream_progress
from lessmore.methods.registry import register_method


@dataclass(frozen=True)
class OnZetaOptions:
    """OnZeta's own settings; the defaults are the authors' for ImageNet, but for `horizon`."""

    horizon: int = 0
    """T, the number of images to come. 0: nobody knows, and t/(t + C) takes the place of t/T. The authors know it."""
    beta: float = 0.8
    """β, the weight of the proxies' answer at the end of the stream."""
    label_rate: float = 20.0
    """c_ρ, how fast the dual variables move; 0 balances nothing."""
    proxy_rate: float = 0.5
    """c_w, how fast the proxies move."""
    alpha: float = 1.0
    """α, the share of an even distribution that every class is granted at least."""
    temperature: float = 4.0
    """κ, the proxies' temperature over the text's."""

    def __post_init__(self) -> None:
        """Validate once; every later use may trust the values."""
        if self.horizon < 0:
            raise ConfigError(f"horizon must be the number of images, or 0 where it is unknown, not {self.horizon}")
        if not 0 <= self.beta <= 1:
            raise ConfigError(f"beta must be between 0 and 1, not {self.beta}")
        if min(self.label_rate, self.proxy_rate, self.alpha) < 0 or not self.temperature > 0:
            raise ConfigError("label_rate, proxy_rate and alpha must not be negative, and temperature must be positive")


class OnZetaState(NamedTuple):
    """What OnZeta remembers."""

    images: Tensor
    """t, images seen, `[]` int64."""
    dual: Tensor
    """ρ, `[C]`."""
    proxies: Tensor
    """W, unit length, `[C, E]`."""


@register_method("onzeta", OnZetaOptions)
class OnZeta(FeatureStream[OnZetaState, OnZetaOptions]):
    """Two online problems, one gradient step each per image, both in closed form."""

    follow_classes = staticmethod(by_rows(dual=(0,), proxies=(0,)))

    def empty(self) -> OnZetaState:
        """Nothing to balance, and proxies that are the class embeddings."""
        return OnZetaState(self.count(), torch.zeros_like(self.text[:, 0]), self.text.clone())

    def step(self, state: OnZetaState, feature: Tensor, logits: Tensor) -> Stepped[OnZetaState]:
        """Answer with the texts and the proxies, then update both problems.

        Args:
            state: Dual variables and proxies before the image.
            feature: L2-normalised, `[E]`.
            logits: Zero-shot, `[C]`.
        """
        own, images, classes = self.options, state.images + 1, len(logits)
        fade = images.to(feature.dtype).rsqrt()
        scale = self.setup.logit_scale / own.temperature
        balanced = (logits + state.dual).softmax(dim=-1)
        seen = (scale * (feature[None] @ state.proxies.T))[0].softmax(dim=-1)
        weight = own.beta * stream_progress(images, classes, own.horizon).sqrt().to(feature.dtype)
        dual = (state.dual - own.label_rate * fade * (balanced - own.alpha / classes)).clamp_min(0)
        moved = state.proxies - own.proxy_rate * fade * scale * (seen - balanced)[:, None] * feature
        proxies = torch.nn.functional.normalize(moved, dim=1)
        return Stepped(weight * seen + (1 - weight) * balanced, OnZetaState(images, dual, proxies))

    def matmul_macs(self) -> int:
        """The feature against every proxy, C·E."""
        return self.text.numel()
