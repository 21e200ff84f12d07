"""Debiasing for every image of a chunk in order: its logits, the trust in the memory, and the token mean."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lessmore.core import debias
from lessmore.core.debias import RULES, StreamMean
from lessmore.core.encoder import Encoded
from lessmore.core.stream import StreamState
from lessmore.core.token_mean import updated_mean
from lessmore.engines.availability import has_triton
from lessmore.engines.packed_mean import PackedMean
from lessmore.methods.registry import Setup

LARGEST = 32768
"""Classes that the kernel's one program can hold; with many more it takes minutes to compile."""


class ChunkDebiased(NamedTuple):
    """What debiasing makes of images observed one after another."""

    logits: Tensor
    """Debiased, `[P, C]`."""
    stream_mean: StreamMean
    """After the last image."""
    trust: Tensor | None
    """How much the stored entries of each class count for each image, `[P, C]`; None where debiasing is off."""


def observed(
    state: StreamState, encoded: Encoded, logits: Tensor, images: Tensor, setup: Setup, packed: PackedMean | None
) -> ChunkDebiased:
    """Debias a chunk where the preset asks for it: in a kernel on CUDA, else by plain functions.

    The state stays as it is.

    Args:
        state: The state before the chunk.
        encoded: The chunk's encodings.
        logits: Zero-shot logits, `[P, C]`.
        images: How many of them are real, `[]`; the others are returned as they are and leave no trace.
        setup: The model and the settings.
        packed: The buffers of the state's stream mean; None if it is not packed.
    """
    config = setup.preset.adaptation
    if config.debias == "off":
        return ChunkDebiased(logits, state.stream_mean, None)
    if packed is None or not logits.is_cuda or logits.shape[1] > LARGEST or not has_triton():
        return observe_all(state, encoded.feature, logits, images, setup)
    from lessmore.engines.kernels import debias as kernel

    rule, answers, trust = RULES[config.debias], torch.empty_like(logits), torch.empty_like(logits)
    after = packed.like(distances=rule.new > 0)
    frames = kernel.scan(logits, encoded.feature, images, setup.class_texts, packed, after, answers, trust, rule)
    return ChunkDebiased(answers, after._replace(last_frames=frames).view(), trust)


def observe_all(state: StreamState, feature: Tensor, logits: Tensor, images: Tensor, setup: Setup) -> ChunkDebiased:
    """The same with plain functions, image by image; nothing is read on the host.

    Args:
        state: The state before the chunk; it stays as it is.
        feature: L2-normalised features, `[P, E]`.
        logits: Zero-shot logits, `[P, C]`.
        images: How many of them are real, `[]`.
        setup: The model and the settings.
    """
    real = torch.arange(len(logits), device=logits.device) < images
    rule = RULES[setup.preset.adaptation.debias]
    mean, answers, trusts = state.stream_mean, [], []
    for own, row, counts in zip(feature, logits, real, strict=True):
        # Logits that are not finite leave no trace (`debias.observe`), which is what images that fill a chunk up need.
        found = torch.where(counts, row, torch.nan)
        answer, mean = debias.observe(mean, found, own, setup.class_texts, rule)
        answers.append(torch.where(counts, answer, row))
        trusts.append(debias.trust(mean))
    return ChunkDebiased(torch.stack(answers), mean, torch.stack(trusts))


def followed(state: StreamState, encoded: Encoded, images: Tensor) -> Tensor:
    """The token mean after each of P images, `[P, L, D]`: in a kernel on CUDA, else by plain functions.

    Args:
        state: The state before the chunk; it stays as it is.
        encoded: The chunk's encodings.
        images: How many of them are real, `[]`; the others leave the mean as it is.
    """
    if not encoded.tokens.is_cuda or not has_triton():
        return follow_all(state, encoded, images)
    from lessmore.engines.kernels import token_mean as kernel

    tokens, like = encoded.tokens, state.token_mean
    places = like.new_empty(tokens.shape), like.new_empty(len(tokens), 3, tokens.shape[1])
    return kernel.follow(tokens, encoded.feature, images, state.reservoir.step, state.token_mean, *places)


def follow_all(state: StreamState, encoded: Encoded, images: Tensor) -> Tensor:
    """The same with plain functions, image by image; nothing is read on the host.

    Args:
        state: The state before the chunk; it stays as it is.
        encoded: The chunk's encodings.
        images: How many of them are real, `[]`.
    """
    sound = torch.cat([encoded.tokens.flatten(1), encoded.feature], dim=1).isfinite().all(dim=1)
    sound &= torch.arange(len(sound), device=sound.device) < images
    mean, after = state.token_mean, []
    for i, tokens in enumerate(encoded.tokens):
        mean = torch.where(sound[i], updated_mean(mean, tokens, state.reservoir.step + i), mean)
        after.append(mean)
    return torch.stack(after)
