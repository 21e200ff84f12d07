"""The logits of a chunk without the centre of their stream, each as its image finds it."""

from __future__ import annotations

import importlib.util
from typing import NamedTuple

import torch
from torch import Tensor

from lessmore import reservoir
from lessmore.centre import DOUBT
from lessmore.config import Adaptation
from lessmore.methods.registry import Setup
from lessmore.reservoir import Reservoir

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


def observed(state: Reservoir, logits: Tensor, images: Tensor, setup: Setup) -> Centred:
    """Zero-shot logits [P, C], the first `images` [] of them real, without the centre where the preset asks for that.

    In a kernel on CUDA, else by plain functions. The state stays as it is, and so do rows that are not real.
    """
    config = setup.preset.adaptation
    if config.centre == "off":
        return Centred(logits, state.centre, state.course)
    if not logits.is_cuda or logits.shape[1] > LARGEST or importlib.util.find_spec("triton") is None:
        return observe_all(state, logits, images, setup.lean, config)
    from lessmore.engine.kernels import centre as kernel

    after = Centred(torch.empty_like(logits), torch.empty_like(state.centre), torch.empty_like(state.course))
    kernel.scan(logits, setup.lean.to(logits), images, (state.centre, state.course), *after, DOUBT[config.centre])
    return after


def observe_all(state: Reservoir, logits: Tensor, images: Tensor, lean: Tensor, config: Adaptation) -> Centred:
    """The same, image by image; nothing is read on the host."""
    real = torch.arange(len(logits), device=logits.device) < images
    answers = []
    for row, counts in zip(logits, real, strict=True):
        answer, *after = reservoir.centred(state, torch.where(counts, row, torch.nan), lean, config)
        answers.append(torch.where(counts, answer, row))
        state = state._replace(centre=after[0], course=after[1])
    return Centred(torch.stack(answers), state.centre, state.course)
