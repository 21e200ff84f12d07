"""The domain-aware token reservoir (section 3.3): a value of fixed shape, and how one sample changes it.

`propose` decides which slot a sample takes and returns a `Placement`; `store_` carries it out in place. Nothing here
reads a tensor on the host, and no Python loop runs over classes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lessmore.config import Adaptation, Key, Ready, Strategy
from lessmore.core.scoring import Anchors


class Reservoir(NamedTuple):
    """M slots for each of C classes; slots fill from the left and are then replaced in place."""

    anchors: Tensor
    """Summary tokens of all layers, `[C, M, L, D]`."""
    keys: Tensor
    """Reliability H of each entry, smaller is better, `[C, M]`."""
    ids: Tensor
    """Number of the sample in the stream, `[C, M]` int64; −1 marks an empty slot."""
    counts: Tensor
    """Entries per class, `[C]` int64."""
    step: Tensor
    """Samples seen so far, `[]` int64."""
    means: Tensor
    """Class anchors A_c^l, `[C, L, D]`: always the mean of the class's slots, never updated incrementally."""


class Placement(NamedTuple):
    """Where one sample goes in the reservoir."""

    label: Tensor
    """Class c, `[]` int64."""
    slot: Tensor
    """Slot that the sample takes, `[]` int64; −1 means that it is not stored."""
    tokens: Tensor
    """Summary tokens, `[L, D]`."""
    key: Tensor
    """Reliability, `[]`."""
    id: Tensor
    """Number of the sample in the stream, `[]` int64."""


def empty_reservoir(C: int, M: int, L: int, D: int, dtype: torch.dtype, device: torch.device | str) -> Reservoir:
    """A reservoir that has seen nothing.

    Args:
        C: Number of classes.
        M: Slots per class.
        L: Number of blocks.
        D: Width of a token.
        dtype: Type of the tokens; reliabilities are float32 or wider.
        device: Where to put it.
    """
    wide = torch.promote_types(dtype, torch.float32)
    return Reservoir(
        anchors=torch.zeros(C, M, L, D, dtype=dtype, device=device),
        keys=torch.zeros(C, M, dtype=wide, device=device),
        ids=torch.full((C, M), -1, dtype=torch.int64, device=device),
        counts=torch.zeros(C, dtype=torch.int64, device=device),
        step=torch.zeros((), dtype=torch.int64, device=device),
        means=torch.zeros(C, L, D, dtype=dtype, device=device),
    )


def class_mean(slots: Tensor, count: Tensor) -> Tensor:
    """Class anchors A_c^l = 1/|R_c| Σ_i A_{i,c}^l.

    Args:
        slots: Entries, `[..., M, L, D]`; empty slots are zero.
        count: Number of entries, `[...]`.

    Returns:
        `[..., L, D]`.
    """
    wide = torch.promote_types(slots.dtype, torch.float32)
    return (slots.to(wide).sum(dim=-3) / count.clamp_min(1)[..., None, None]).to(slots.dtype)


def ready_anchors(state: Reservoir, ready: Ready) -> Anchors:
    """The class anchors that may guide the encoder.

    Args:
        state: The reservoir.
        ready: `class`: the anchors of all classes with an entry. `all`: all anchors, once every class has two entries.
    """
    usable = state.counts >= 1 if ready == "class" else (state.counts >= 2).all().expand_as(state.counts)
    return Anchors(state.means, usable)


def reliability(logits: Tensor, key: Key) -> Tensor:
    """H of samples in nats: the entropy Σ −p log p of their answers, or the predicted class's term alone.

    Args:
        logits: `[..., C]`.
        key: `entropy` or `class_term`.

    Returns:
        `[...]`.
    """
    terms = torch.special.entr(logits.softmax(dim=-1))
    return terms.sum(dim=-1) if key == "entropy" else terms.gather(-1, logits.argmax(dim=-1, keepdim=True)).squeeze(-1)


def eviction_scores(strategy: Strategy, keys: Tensor, ids: Tensor, tokens: Tensor) -> Tensor:
    """Scores of the M + 1 candidates for a full class; the one with the largest leaves.

    Args:
        strategy: Who leaves a full class; `diversity` and `similarity` compare the mean tokens over layers by cosine.
        keys: Reliabilities, `[M + 1]`.
        ids: Sample numbers, `[M + 1]`.
        tokens: Summary tokens, `[M + 1, L, D]`.

    Returns:
        `[M + 1]`.
    """
    if strategy == "fifo":
        return -ids.to(keys.dtype)
    if strategy == "uncertainty":
        return keys
    # An entry is likest to itself, so its own cosine is left out of its closeness to the others.
    unit = F.normalize(tokens.to(keys.dtype).mean(dim=1), dim=-1)
    cosine = unit @ unit.T
    closeness = (cosine.sum(dim=1) - cosine.diagonal()) / (len(keys) - 1)
    return keys + closeness if strategy == "diversity" else keys - closeness


def is_finite(tokens: Tensor, feature: Tensor, logits: Tensor) -> Tensor:
    """Whether all values of a sample are finite, `[]` bool; only then may it be stored.

    Args:
        tokens: Summary tokens, `[L, D]`.
        feature: Image feature, `[E]`.
        logits: Zero-shot or debiased logits, `[C]`.
    """
    return tokens.isfinite().all() & feature.isfinite().all() & logits.isfinite().all()


def propose(state: Reservoir, tokens: Tensor, feature: Tensor, logits: Tensor, config: Adaptation) -> Placement:
    """Which slot, if any, a sample takes in the buffer of the class it is predicted as.

    A sample with a value that is not finite takes none. On ties the newcomer leaves, then the lowest slot.

    Args:
        state: The reservoir before the sample.
        tokens: Summary tokens, `[L, D]`.
        feature: Image feature, `[E]`; only checked for being finite.
        logits: Zero-shot or debiased logits, `[C]`.
        config: Strategy, key and capacity.
    """
    index = logits.argmax(dim=-1)
    key = reliability(logits, config.key).to(state.keys.dtype)
    at = index.unsqueeze(0)  # selecting with a tensor of one element keeps the index on the device
    stored, ids, keys = (t.index_select(0, at)[0] for t in (state.anchors, state.ids, state.keys))
    # The newcomer is first: argmax takes the first of equal scores, so on a tie what is stored stays.
    candidates = torch.cat([tokens.to(stored.dtype).unsqueeze(0), stored])
    scores = eviction_scores(
        config.strategy, torch.cat([key[None], keys]), torch.cat([state.step[None], ids]), candidates
    )
    count = state.counts.index_select(0, at)[0]
    # Candidate 0 is the newcomer: if it leaves, the slot is −1. Empty slots have scores too, but they mean nothing.
    slot = torch.where(count < config.M, count, scores.argmax() - 1)
    slot = torch.where(is_finite(tokens, feature, logits), slot, -1)
    return Placement(index, slot, tokens, key, state.step.clone())


def store_(state: Reservoir, placement: Placement) -> None:
    """Store a sample, in place; one without a slot only counts as a step.

    Args:
        state: The reservoir.
        placement: Where the sample goes.
    """
    # Whether a sample is stored is known on the device alone. So a slot is always written: with its old value, if not.
    taken, at = placement.slot >= 0, placement.label.unsqueeze(0)
    slot = placement.slot.clamp_min(0)

    def put(field: Tensor, value: Tensor) -> None:
        row = field.index_select(0, at)
        old = row.index_select(1, slot.unsqueeze(0))
        new = torch.where(taken, value.to(field.dtype), old)
        field.index_copy_(0, at, row.index_copy_(1, slot.unsqueeze(0), new))

    put(state.anchors, placement.tokens)
    put(state.keys, placement.key)
    put(state.ids, placement.id)
    # Counted from the ids, and the mean taken from the slots: nothing drifts, however long the stream is.
    counts = (state.ids.index_select(0, at) >= 0).sum(dim=1)
    state.counts.index_copy_(0, at, counts)
    state.means.index_copy_(0, at, class_mean(state.anchors.index_select(0, at), counts))
    state.step.add_(1)


def store_each_(state: Reservoir, placement: Placement) -> None:
    """`store_` for S reservoirs and one sample for each; all tensors have S in front.

    Args:
        state: The reservoirs.
        placement: Where the samples go.
    """
    label, slot = placement.label, placement.slot
    stream = torch.arange(len(label), device=label.device)
    place = stream, label, slot.clamp_min(0)

    def put(field: Tensor, value: Tensor) -> None:
        taken = (slot >= 0).view(-1, *[1] * (value.ndim - 1))
        field[place] = torch.where(taken, value.to(field.dtype), field[place])

    put(state.anchors, placement.tokens)
    put(state.keys, placement.key)
    put(state.ids, placement.id)
    counts = (state.ids[stream, label] >= 0).sum(dim=1)
    state.counts[stream, label] = counts
    state.means[stream, label] = class_mean(state.anchors[stream, label], counts)
    state.step.add_(1)
