"""The domain-aware token reservoir (section 3.3): a value of fixed shape, and how one sample changes it.

`propose` decides what a sample would do to the reservoir and returns that as a `Delta`; `apply` makes the next value,
`apply_` does the same in place. Nothing here reads a tensor on the host, and no Python loop runs over classes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lessmore.config import Adaptation, Key, Ready, Strategy
from lessmore.core.debias import DOUBT, TOPS, TURNS, Centre, observe, trust
from lessmore.core.scoring import Anchors
from lessmore.core.token_mean import moved


class Reservoir(NamedTuple):
    """M slots for each of C classes; slots fill from the left and are then replaced in place."""

    anchors: Tensor
    """Summary tokens of all layers, [C, M, L, D]."""
    features: Tensor
    """L2-normalised features, [C, M, E]."""
    keys: Tensor
    """Reliability H of each entry, smaller is better, [C, M]."""
    ids: Tensor
    """Number of the sample in the stream, [C, M] int64; −1 = empty."""
    counts: Tensor
    """Entries per class, [C] int64."""
    step: Tensor
    """Samples seen so far, [] int64."""
    means: Tensor
    """Class anchors A_c^l, [C, L, D]: always the mean of the class's slots, never updated incrementally."""
    centre: Tensor
    """What `centre.Centre` remembers of each class, [5, C]: all but its course; zeros where it is not used."""
    course: Tensor
    """Its course, [12]."""
    middle: Tensor
    """Middle of the stream's tokens, [L, D], see `lessmore.core.token_mean`; zeros where the centre is not used."""


class Delta(NamedTuple):
    """What one sample does to the reservoir; also the record from which a run can be replayed."""

    label: Tensor
    """Class c, [] int64."""
    slot: Tensor
    """Slot the sample takes, [] int64; −1 = it is not stored."""
    tokens: Tensor
    """[L, D]"""
    feature: Tensor
    """[E]"""
    key: Tensor
    """[]"""
    id: Tensor
    """[] int64"""
    centre: Tensor
    """The stream's centre after the sample, [5, C]."""
    course: Tensor
    """[12]"""
    middle: Tensor
    """Of the stream's tokens after the sample, [L, D]."""


def empty(C: int, M: int, L: int, D: int, E: int, dtype: torch.dtype, device: torch.device | str) -> Reservoir:
    """A reservoir that has seen nothing."""
    wide = torch.promote_types(dtype, torch.float32)
    return Reservoir(
        anchors=torch.zeros(C, M, L, D, dtype=dtype, device=device),
        features=torch.zeros(C, M, E, dtype=dtype, device=device),
        keys=torch.zeros(C, M, dtype=wide, device=device),
        ids=torch.full((C, M), -1, dtype=torch.int64, device=device),
        counts=torch.zeros(C, dtype=torch.int64, device=device),
        step=torch.zeros((), dtype=torch.int64, device=device),
        means=torch.zeros(C, L, D, dtype=dtype, device=device),
        centre=torch.zeros(5, C, dtype=wide, device=device),
        course=torch.zeros(12, dtype=wide, device=device),
        middle=torch.zeros(L, D, dtype=wide, device=device),
    )


def class_mean(slots: Tensor, count: Tensor) -> Tensor:
    """A_c^l = 1/|R_c| Σ_i A_{i,c}^l over slots [..., M, L, D], empty ones being zero; count [...] → [..., L, D]."""
    wide = torch.promote_types(slots.dtype, torch.float32)
    return (slots.to(wide).sum(dim=-3) / count.clamp_min(1)[..., None, None]).to(slots.dtype)


def ready_anchors(state: Reservoir, ready: Ready) -> Anchors:
    """The class anchors that may guide the encoder: classes with an entry, or all once each class has two."""
    usable = state.counts >= 1 if ready == "class" else (state.counts >= 2).all().expand_as(state.counts)
    return Anchors(state.means, usable)


def reliability(logits: Tensor, key: Key) -> Tensor:
    """H of samples from zero-shot logits [..., C]: Σ −p log p, or the predicted class's term alone. In nats, [...]."""
    terms = torch.special.entr(logits.softmax(dim=-1))
    return terms.sum(dim=-1) if key == "entropy" else terms.gather(-1, logits.argmax(dim=-1, keepdim=True)).squeeze(-1)


def eviction_scores(strategy: Strategy, keys: Tensor, ids: Tensor, tokens: Tensor) -> Tensor:
    """How much each of the M + 1 candidates of a full class ought to go; the largest goes.

    keys, ids: [M + 1]. tokens: [M + 1, L, D], compared by the cosine of their mean over layers.
    """
    if strategy == "fifo":
        return -ids.to(keys.dtype)
    if strategy == "uncertainty":
        return keys
    unit = F.normalize(tokens.to(keys.dtype).mean(dim=1), dim=-1)
    cosine = unit @ unit.T
    closeness = (cosine.sum(dim=1) - cosine.diagonal()) / (len(keys) - 1)
    return keys + closeness if strategy == "diversity" else keys - closeness


def centred(state: Reservoir, logits: Tensor, lean: Tensor, config: Adaptation) -> tuple[Tensor, Tensor, Tensor]:
    """Zero-shot logits [C] → the same without the stream's centre, where that is asked for, and the next `centre` and
    `course`. lean: of the class texts, [C], see `centre.lean`."""
    if config.centre == "off":
        return logits, state.centre, state.course
    centre = Centre._make((*state.centre.unbind(0), state.course))
    answer, after = observe(centre, logits, lean, DOUBT[config.centre])
    return answer, torch.stack(after[:-1]), after.course


def propose(state: Reservoir, tokens: Tensor, feature: Tensor, logits: Tensor, config: Adaptation) -> Delta:
    """Which slot, if any, a sample takes in the buffer of the class it is predicted as.

    tokens: summary tokens [L, D]. feature: [E]. logits: zero-shot or `centred`, [C]. A sample with a value that is not
    finite takes none and leaves the tokens' middle where it is. On ties the newcomer goes, then the lowest slot. The
    stream's centre stays as it is.
    """
    index = logits.argmax(dim=-1)
    key = reliability(logits, config.key).to(state.keys.dtype)
    at = index.unsqueeze(0)  # selecting with a tensor of one element keeps the index on the device
    stored, ids, keys = (t.index_select(0, at)[0] for t in (state.anchors, state.ids, state.keys))
    candidates = torch.cat([tokens.to(stored.dtype).unsqueeze(0), stored])
    scores = eviction_scores(
        config.strategy, torch.cat([key[None], keys]), torch.cat([state.step[None], ids]), candidates
    )
    count = state.counts.index_select(0, at)[0]
    slot = torch.where(count < config.M, count, scores.argmax() - 1)
    finite = tokens.isfinite().all() & feature.isfinite().all() & logits.isfinite().all()
    slot = torch.where(finite, slot, -1)
    middle = state.middle
    if config.centre != "off":
        middle = torch.where(finite, moved(middle, tokens, state.step), middle)
    return Delta(index, slot, tokens, feature, key, state.step.clone(), state.centre, state.course, middle)


def correction_context(delta: Delta, config: Adaptation) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """What the stream so far says to the sample's correction: the middle to be taken off the tokens, [..., L, D], and
    how much the entries of each class count, [..., C]; nothing where the centre is not used."""
    if config.centre == "off":
        return None, None
    return delta.middle, trust(delta.centre[..., TOPS, :], delta.course[..., TURNS])


def apply_(state: Reservoir, delta: Delta) -> Reservoir:
    """Let the sample in, in place; a delta without a slot only counts the step and moves the centre."""
    taken, at = delta.slot >= 0, delta.label.unsqueeze(0)
    slot = delta.slot.clamp_min(0)

    def put(field: Tensor, value: Tensor) -> None:
        row = field.index_select(0, at)
        old = row.index_select(1, slot.unsqueeze(0))
        new = torch.where(taken, value.to(field.dtype), old)
        field.index_copy_(0, at, row.index_copy_(1, slot.unsqueeze(0), new))

    put(state.anchors, delta.tokens)
    put(state.features, delta.feature)
    put(state.keys, delta.key)
    put(state.ids, delta.id)
    counts = (state.ids.index_select(0, at) >= 0).sum(dim=1)
    state.counts.index_copy_(0, at, counts)
    state.means.index_copy_(0, at, class_mean(state.anchors.index_select(0, at), counts))
    state.step.add_(1)
    state.centre.copy_(delta.centre)
    state.course.copy_(delta.course)
    state.middle.copy_(delta.middle)
    return state


def clone(state: Reservoir) -> Reservoir:
    """An independent copy."""
    return Reservoir(*(t.clone() for t in state))


def apply(state: Reservoir, delta: Delta) -> Reservoir:
    """The reservoir after the sample; `state` stays as it was."""
    return apply_(clone(state), delta)
