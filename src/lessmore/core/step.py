"""One step of TCA: the order in which an image is debiased, stored and corrected. Every engine follows it.

    (encoded image, stream state) → (answer, delta);    (stream state, delta) → stream state

An engine may carry out a part in its own way, over many streams or in a faster layout, by passing its own `Operations`.
The order is stated here and nowhere else; engines that fuse parts into kernels are held to it by tests.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from lessmore.config import Adaptation
from lessmore.core import debias, reservoir, stream
from lessmore.core.class_texts import ClassTexts
from lessmore.core.correction import affinities, class_scores, correct, votes
from lessmore.core.debias import RULES, StreamMean
from lessmore.core.reservoir import Placement
from lessmore.core.stream import Delta, StreamState
from lessmore.core.token_mean import updated_mean
from lessmore.core.unknown import keep_out


class Sample(NamedTuple):
    """An encoded image, as a step sees it. Engines for many streams put S in front of every tensor."""

    tokens: Tensor
    """Summary tokens, `[L, D]`."""
    feature: Tensor
    """L2-normalised feature, `[E]`."""
    logits: Tensor
    """Zero-shot logits, `[C]`."""


class Operations(NamedTuple):
    """The parts of a step that an engine may carry out in its own way."""

    observe: Callable[[StreamState, Sample], tuple[Tensor, StreamMean]]
    """Debiased logits `[C]`, and the stream mean after the sample."""
    admit: Callable[[StreamState, Sample, Tensor], tuple[Placement, Tensor]]
    """From the debiased logits: the sample's place in the reservoir, and the token mean after it `[L, D]`."""
    apply: Callable[[StreamState, Delta], StreamState]
    """The state after the sample."""
    affinities: Callable[[StreamState, Sample, Tensor | None], Tensor]
    """Affinities with the entries `[C, M]`; the last argument is the token mean to remove, `[L, D]`."""


class Settled(NamedTuple):
    """The result of a step."""

    debiased: Tensor
    """Before any stored sample votes, `[C]`."""
    corrected: Tensor
    """Debiased and corrected scores, logits or probabilities depending on the preset, `[C]`."""
    delta: Delta


def plain_observe(
    texts: ClassTexts, config: Adaptation, state: StreamState, sample: Sample
) -> tuple[Tensor, StreamMean]:
    """Debias a sample, if the preset asks for it.

    Args:
        texts: The class embeddings.
        config: The adaptation.
        state: The state before the sample.
        sample: The encoded image.

    Returns:
        The logits to go on with, `[C]`, and the stream mean after the sample.
    """
    if config.debias == "off":
        return sample.logits, state.stream_mean
    return debias.observe(state.stream_mean, sample.logits, sample.feature, texts, RULES[config.debias])


def plain_admit(config: Adaptation, state: StreamState, sample: Sample, debiased: Tensor) -> tuple[Placement, Tensor]:
    """Find a sample's place in the reservoir, and update the token mean if the preset asks for it.

    Args:
        config: The adaptation.
        state: The state before the sample.
        sample: The encoded image.
        debiased: Its debiased logits, `[C]`.

    Returns:
        The placement, and the token mean after the sample, `[L, D]`.
    """
    placement = reservoir.propose(state.reservoir, sample.tokens, sample.feature, debiased, config)
    if config.debias == "off":
        return placement, state.token_mean
    # One NaN in a running mean would stay there for good.
    finite = reservoir.is_finite(sample.tokens, sample.feature, debiased)
    moved = updated_mean(state.token_mean, sample.tokens, state.reservoir.step)
    return placement, torch.where(finite, moved, state.token_mean)


def plain_affinities(weights: Tensor, state: StreamState, sample: Sample, token_mean: Tensor | None) -> Tensor:
    """`correction.affinities` with the entries of the state.

    Args:
        weights: Layer weights, `[L]`.
        state: The state.
        sample: The encoded image.
        token_mean: The token mean to remove, `[L, D]`; None removes nothing.
    """
    return affinities(sample.tokens, state.reservoir.anchors, weights, token_mean)


def plain_operations(
    texts: ClassTexts,
    weights: Tensor,
    config: Adaptation,
    apply: Callable[[StreamState, Delta], StreamState] = stream.apply,
) -> Operations:
    """The plain functions of `core`, for one stream.

    Args:
        texts: The class embeddings.
        weights: Layer weights, `[L]`.
        config: The adaptation.
        apply: `stream.apply`, which leaves the state as it is, or `stream.apply_`, which changes it in place.
    """
    return Operations(
        partial(plain_observe, texts, config), partial(plain_admit, config), apply, partial(plain_affinities, weights)
    )


def settle(
    sample: Sample,
    state: StreamState,
    config: Adaptation,
    operations: Operations,
    floor: float | Tensor | None = None,
) -> tuple[Settled, StreamState]:
    """Debias, store and correct one encoded image.

    Args:
        sample: The encoded image.
        state: The state before it.
        config: The adaptation; `order` says whether the image is stored before or after its own correction.
        operations: How each part is carried out.
        floor: The least likeness of what is stored, see `lessmore.core.unknown`; None stores whatever may be.

    Returns:
        The answer with its delta, and the next state.
    """
    # The class under which an image is stored is the debiased answer: a biased one would fill the wrong class's slots.
    debiased, stream_mean = operations.observe(state, sample)
    placement, token_mean = operations.admit(state, sample, debiased)
    if floor is not None:
        placement = keep_out(placement, sample.logits, debiased, floor)
    delta = Delta(placement, stream_mean, token_mean)
    # Stored first, an image meets its own entry, which shields a sure answer from the votes of others (divergences.md).
    if config.order == "update_first":
        state = operations.apply(state, delta)
    off = config.debias == "off"
    scores = torch.zeros_like(debiased)
    if config.lam:  # else nothing stored has a say, and reading it all would be in vain
        affinity = operations.affinities(state, sample, None if off else token_mean)
        scores = class_scores(affinity, votes(state.reservoir.ids, placement.id, config), config)
    # The correction reads the token mean and the trust after the image, whichever order its entry follows: they are
    # statistics of the stream, which this image is part of.
    if config.order == "predict_first":
        state = operations.apply(state, delta)
    corrected = correct(debiased, scores, config, None if off else debias.trust(stream_mean))
    return Settled(debiased, corrected, delta), state
