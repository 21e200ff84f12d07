"""The centre of a stream as each image of a chunk finds it: logits without it, and the middle of the tokens."""

from __future__ import annotations

import importlib.util
from typing import NamedTuple

import torch
from torch import Tensor

from lessmore.config import Adaptation
from lessmore.core import reservoir
from lessmore.core.debias import DOUBT, TOPS, TURNS, trust
from lessmore.core.encoder import Encoded
from lessmore.core.reservoir import Reservoir
from lessmore.core.token_mean import moved
from lessmore.methods.registry import Setup

LARGEST = 32768
"""Classes that the kernel's one program can hold; with many more it takes minutes to compile."""


class Centred(NamedTuple):
    """What images give that are observed one after the other."""

    logits: Tensor
    """Without the centre, [P, C]."""
    centre: Tensor
    """The stream's centre after the last image, [5, C]."""
    course: Tensor
    """[12]"""
    trust: Tensor | None
    """How much what is stored of each class counts for each image, [P, C]; None where there is no centre."""


def observed(state: Reservoir, logits: Tensor, images: Tensor, setup: Setup) -> Centred:
    """Zero-shot logits [P, C], the first `images` [] of them real, without the centre where the preset asks for that.

    In a kernel on CUDA, else by plain functions. The state stays as it is, and so do rows that are not real.
    """
    config = setup.preset.adaptation
    if config.centre == "off":
        return Centred(logits, state.centre, state.course, None)
    if not logits.is_cuda or logits.shape[1] > LARGEST or importlib.util.find_spec("triton") is None:
        return observe_all(state, logits, images, setup.lean, config)
    from lessmore.engines.kernels import debias as kernel

    before, lean = (state.centre, state.course), setup.lean.to(logits)
    answers, trust = torch.empty_like(logits), torch.empty_like(logits)
    after = torch.empty_like(state.centre), torch.empty_like(state.course)
    kernel.scan(logits, lean, images, before, answers, *after, trust, DOUBT[config.centre])
    return Centred(answers, *after, trust)


def observe_all(state: Reservoir, logits: Tensor, images: Tensor, lean: Tensor, config: Adaptation) -> Centred:
    """The same, image by image; nothing is read on the host."""
    real = torch.arange(len(logits), device=logits.device) < images
    answers, trusts = [], []
    for row, counts in zip(logits, real, strict=True):
        answer, *after = reservoir.centred(state, torch.where(counts, row, torch.nan), lean, config)
        answers.append(torch.where(counts, answer, row))
        state = state._replace(centre=after[0], course=after[1])
        trusts.append(trust(state.centre[TOPS], state.course[TURNS]))
    return Centred(torch.stack(answers), state.centre, state.course, torch.stack(trusts))


def followed(state: Reservoir, encoded: Encoded, images: Tensor) -> Tensor:
    """The middle of the stream's tokens after each of P images, the first `images` [] of them real, [P, L, D].

    In a kernel on CUDA, else by plain functions. The state stays as it is.
    """
    if not encoded.tokens.is_cuda or importlib.util.find_spec("triton") is None:
        return follow_all(state, encoded, images)
    from lessmore.engines.kernels import token_mean as kernel

    tokens, like = encoded.tokens, state.middle
    places = like.new_empty(tokens.shape), like.new_empty(len(tokens), 3, tokens.shape[1])
    return kernel.follow(tokens, encoded.feature, images, state.step, state.middle, *places)


def follow_all(state: Reservoir, encoded: Encoded, images: Tensor) -> Tensor:
    """The same, image by image; nothing is read on the host."""
    sound = torch.cat([encoded.tokens.flatten(1), encoded.feature], dim=1).isfinite().all(dim=1)
    sound &= torch.arange(len(sound), device=sound.device) < images
    middle, after = state.middle, []
    for i, tokens in enumerate(encoded.tokens):
        middle = torch.where(sound[i], moved(middle, tokens, state.step + i), middle)
        after.append(middle)
    return torch.stack(after)
