"""The reservoir on the device: affinities with all entries, and everything one sample does to it.

With one image at a time a step costs launches, not arithmetic. `fused_settle` does in two launches what
`reservoir.propose`, `reservoir.store_` and `correction` do in about sixty. Affinities are parallel over entries,
because reading the entries is the work. The decision who leaves is one program, because it concerns one class only;
storing is parallel over layers, beside one program that corrects the answer.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from lessmore.config import Adaptation
from lessmore.core.reservoir import Reservoir

STRATEGIES = {"fifo": 0, "uncertainty": 1, "similarity": 2, "diversity": 3}


@triton.jit
def _affinity(
    anchors, tokens, weights, token_mean, sums, out, entries, D, stride_t, stride_s,
    DEBIASED: tl.constexpr, LAYERS: tl.constexpr, ALL: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    PART: tl.constexpr,
):  # fmt: skip
    e, s = tl.program_id(0), tl.program_id(1)
    tokens += s * stride_s
    token_mean += s * LAYERS * D
    sums += s * 3 * LAYERS
    anchors += (s.to(tl.int64) * entries + e) * LAYERS * D
    total, along = 0.0, 0.0
    for first in tl.static_range(0, LAYERS, ROWS):
        layer = first + tl.arange(0, ROWS)
        dot = tl.zeros([ROWS, PART], tl.float32)
        theirs = tl.zeros([ROWS, PART], tl.float32)
        other = tl.zeros([ROWS, PART], tl.float32)
        for start in tl.static_range(0, WIDTH, PART):
            d = start + tl.arange(0, PART)
            here = (layer < LAYERS)[:, None] & (d < D)[None, :]
            stored = tl.load(anchors + layer[:, None] * D + d[None, :], mask=here, other=0).to(tl.float32)
            token = tl.load(tokens + layer[:, None] * stride_t + d[None, :], mask=here, other=0).to(tl.float32)
            dot += stored * token
            theirs += stored * stored
            if DEBIASED:
                other += stored * tl.load(token_mean + layer[:, None] * D + d[None, :], mask=here, other=0)
            else:
                other += token * token
        weight = tl.load(weights + layer, mask=layer < LAYERS, other=0)
        weight /= tl.maximum(tl.sqrt(tl.sum(theirs, axis=1)), 1e-12)
        ours = tl.sum(other, axis=1)
        if DEBIASED:
            along += tl.sum(weight * ours, axis=0)
            ours = tl.load(sums + layer, mask=layer < LAYERS, other=1)
        total += tl.sum(weight * tl.sum(dot, axis=1) / tl.maximum(tl.sqrt(ours), 1e-12), axis=0)
    if DEBIASED:  # `core.token_mean.debiased_cosine`
        layer = tl.arange(0, ALL)
        here = layer < LAYERS
        weight = tl.load(weights + layer, mask=here, other=0)
        length = tl.maximum(tl.sqrt(tl.load(sums + layer, mask=here, other=1)), 1e-12)
        x = tl.sum(weight * tl.load(sums + LAYERS + layer, mask=here, other=0) / length, axis=0)
        square = tl.sum(weight * tl.load(sums + 2 * LAYERS + layer, mask=here, other=0), axis=0)
        total = (total - x - along + square) / tl.sqrt((1 - 2 * x + square) * (1 - 2 * along + square))
    tl.store(out + s * entries + e, total)


def own_sums(tokens: Tensor, token_mean: Tensor) -> Tensor:
    """v·v, v·m and m·m for each layer, `[..., 3, L]`.

    Args:
        tokens: Summary tokens v, `[..., L, D]`.
        token_mean: The token mean m of their stream, `[..., L, D]`.
    """
    wide = tokens.to(token_mean.dtype)
    return torch.stack(
        [(wide * wide).sum(dim=-1), (wide * token_mean).sum(dim=-1), token_mean.square().sum(dim=-1)], dim=-2
    )


def fused_affinities(
    tokens: Tensor, weights: Tensor, anchors: Tensor, out: Tensor, token_mean: Tensor | None = None,
    sums: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """`correction.affinities` between a sample and the entries, written into `out`.

    An empty slot holds zeros and so has a finite affinity; which slots are in use need not be known. Every tensor
    except the weights may have S streams in front.

    Args:
        tokens: Summary tokens, `[L, D]`; rows may be strided.
        weights: Layer weights, `[L]`.
        anchors: Entries, `[C, M, L, D]`.
        out: `[C, M]`.
        token_mean: The token mean to remove, `[L, D]`; None removes nothing.
        sums: `own_sums` of tokens and token mean, `[3, L]`; needed with `token_mean`.

    Returns:
        `out`.
    """
    L, D = tokens.shape[-2:]
    S = len(tokens) if tokens.ndim == 3 else 1
    entries, layers = out.numel() // S, triton.next_power_of_2(L)
    many = out.numel() >= 1024  # enough programs to fill a device with little work in each
    _affinity[(entries, S)](
        anchors, tokens, weights, weights if token_mean is None else token_mean, weights if sums is None else sums, out,
        entries, D, tokens.stride(-2), tokens.stride(0), DEBIASED=token_mean is not None, LAYERS=L, ALL=layers,
        ROWS=2 if many else layers, WIDTH=D + -D % 256, PART=256, num_warps=1 if many else 4,
    )  # fmt: skip
    return out


@triton.jit
def _softmax(logits, c, C):
    """Logits and probabilities of the classes c."""
    z = tl.load(logits + c, mask=c < C, other=float("-inf"))
    p = tl.exp(z - tl.max(z, axis=0))
    return z, p / tl.sum(p, axis=0)


@triton.jit
def _propose(
    logits, tokens, feature, anchors, keys, ids, counts, step, label, slot, key, C, D, E, stride_t,
    STRATEGY: tl.constexpr, TERM: tl.constexpr, M: tl.constexpr, SLOTS: tl.constexpr, LAYERS: tl.constexpr,
    CLASSES: tl.constexpr, WIDTH: tl.constexpr, EMBED: tl.constexpr,
):  # fmt: skip
    c = tl.arange(0, CLASSES)
    z = tl.load(logits + c, mask=c < C, other=float("-inf"))
    some = tl.where(z == z, z, float("-inf"))  # a NaN would spoil the search for the maximum
    top = tl.max(some, axis=0)
    index = tl.argmax(some, axis=0)
    p = tl.exp(z - top)
    p = p / tl.sum(p, axis=0)
    terms = tl.where(p > 0, -p * tl.log(tl.maximum(p, 1e-38)), 0.0)
    if TERM:
        terms = tl.where(c == index, terms, 0.0)
    reliability = tl.sum(terms, axis=0)
    e = tl.arange(0, EMBED)
    # 0 · NaN and 0 · ∞ are NaN, so one value that is not finite makes the whole sum NaN.
    sound = tl.sum(tl.load(feature + e, mask=e < E, other=0) * 0.0, axis=0) + tl.sum(tl.where(c < C, z * 0.0, 0.0), 0)
    # Tokens of the newcomer and of the M entries of its class, summed over layers.
    m = tl.arange(0, SLOTS)
    d = tl.arange(0, WIDTH)
    new = tl.zeros([WIDTH], tl.float32)
    old = tl.zeros([SLOTS, WIDTH], tl.float32)
    first = anchors + index.to(tl.int64) * M * LAYERS * D
    for layer in tl.static_range(LAYERS):
        token = tl.load(tokens + layer * stride_t + d, mask=d < D, other=0).to(tl.float32)
        new += token
        if STRATEGY >= 2:
            place = first + (m[:, None] * LAYERS + layer) * D + d[None, :]
            old += tl.load(place, mask=(m < M)[:, None] & (d < D)[None, :], other=0).to(tl.float32)
    sound += tl.sum(new * 0.0, axis=0)
    H = tl.load(keys + index * M + m, mask=m < M, other=0)
    age = tl.load(ids + index * M + m, mask=m < M, other=0)
    count = tl.load(counts + index)
    mine, theirs = reliability, H
    if STRATEGY == 0:
        mine, theirs = -tl.load(step).to(tl.float32), -age.to(tl.float32)
    if STRATEGY >= 2:
        sign = 1.0 if STRATEGY == 3 else -1.0
        new = new / tl.maximum(tl.sqrt(tl.sum(new * new, axis=0)), 1e-12)
        old = old / tl.maximum(tl.sqrt(tl.sum(old * old, axis=1)), 1e-12)[:, None]
        close = tl.sum(old * new[None, :], axis=1)
        everyone = tl.sum(old, axis=0) + new
        # The sum of a slot's cosines to the others: its product with the sum of all, less its own.
        own = tl.sum(old * old, axis=1)
        theirs = theirs + sign * (tl.sum(old * everyone[None, :], axis=1) - own) / M
        mine = mine + sign * tl.sum(tl.where(m < M, close, 0.0), axis=0) / M
    theirs = tl.where((m < M) & (theirs == theirs), theirs, float("-inf"))
    worst = tl.max(theirs, axis=0)
    evicted = tl.argmax(theirs, axis=0)
    taken = tl.where(count < M, count.to(tl.int32), tl.where(mine >= worst, -1, evicted))
    tl.store(label, index)
    tl.store(slot, tl.where(sound == 0.0, taken, -1))
    tl.store(key, reliability)


@triton.jit
def _store(
    tokens, anchors, means, index, place, count, layer, D, stride_t,
    M: tl.constexpr, SLOTS: tl.constexpr, LAYERS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One layer of the sample's tokens into its slot, and the class anchor from all slots."""
    d = tl.arange(0, WIDTH)
    m = tl.arange(0, SLOTS)
    here = d < D
    first = anchors + index.to(tl.int64) * M * LAYERS * D
    entry = tl.load(tokens + layer * stride_t + d, mask=here, other=0).to(anchors.dtype.element_ty)
    others = ((m < M) & (m != place))[:, None] & here[None, :]
    rest = tl.load(first + (m[:, None] * LAYERS + layer) * D + d[None, :], mask=others, other=0).to(tl.float32)
    # Another program may have raised the count already: the larger of the two is right either way.
    mean = (tl.sum(rest, axis=0) + entry.to(tl.float32)) / tl.maximum(count, place + 1).to(tl.float32)
    tl.store(first + (place * LAYERS + layer) * D + d, entry, mask=here)
    tl.store(means + (index * LAYERS + layer) * D + d, mean.to(means.dtype.element_ty), mask=here)


@triton.jit
def _correct(
    logits, debiased, affinity, trust, ids, scores, zero_shot, index, place, lam, sharpness, C,
    FIRST: tl.constexpr, EXCLUDE: tl.constexpr, EXP: tl.constexpr, SUM: tl.constexpr, TRUSTED: tl.constexpr,
    PROBABILITIES: tl.constexpr, M: tl.constexpr, SLOTS: tl.constexpr, CLASSES: tl.constexpr,
):  # fmt: skip
    """Zero-shot and corrected probabilities of all classes; the ids are still those before the sample."""
    c = tl.arange(0, CLASSES)
    _, plain = _softmax(logits, c, C)
    z, p = _softmax(debiased, c, C)
    m = tl.arange(0, SLOTS)
    slot = c[:, None] * M + m[None, :]
    here = (c < C)[:, None] & (m < M)[None, :]
    a = tl.load(affinity + slot, mask=here, other=0)
    used = tl.load(ids + slot, mask=here, other=-1) >= 0
    if FIRST:
        own = (c == index)[:, None] & (m == place)[None, :]
        a = tl.where(own, 1.0, a)  # a sample's affinity to itself: the layer weights sum to one
        used = (used & (own == 0)) if EXCLUDE else (used | own)
    if EXP:
        a = tl.exp(-sharpness * (1 - a))
    total = tl.sum(tl.where(used, a, 0.0), axis=1)
    if not SUM:
        total = total / tl.maximum(tl.sum(used.to(tl.float32), axis=1), 1.0)
    if TRUSTED:
        total *= tl.load(trust + c, mask=c < C, other=0)
    if PROBABILITIES:
        corrected = p + lam * total
        low = tl.min(tl.where(c < C, corrected, 0.0), axis=0)
        corrected = tl.where(c < C, corrected - tl.minimum(low, 0.0), 0.0)
    else:
        corrected = z + lam * total
        corrected = tl.exp(corrected - tl.max(corrected, axis=0))
    tl.store(scores + c, corrected / tl.sum(corrected, axis=0), mask=c < C)
    tl.store(zero_shot + c, plain, mask=c < C)


@triton.jit
def _finish(
    logits, debiased, tokens, affinity, trust, anchors, keys, ids, counts, step, means, label, slot,
    key, scores, zero_shot, lam, sharpness, C, D, stride_t,
    FIRST: tl.constexpr, EXCLUDE: tl.constexpr, EXP: tl.constexpr, SUM: tl.constexpr, TRUSTED: tl.constexpr,
    PROBABILITIES: tl.constexpr, M: tl.constexpr, SLOTS: tl.constexpr, LAYERS: tl.constexpr, CLASSES: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    layer = tl.program_id(0)
    index = tl.load(label)
    place = tl.load(slot)
    count = tl.load(counts + index).to(tl.int32)
    if layer < LAYERS:
        if place >= 0:
            _store(tokens, anchors, means, index, place, count, layer, D, stride_t, M, SLOTS, LAYERS, WIDTH)
    else:
        _correct(logits, debiased, affinity, trust, ids, scores, zero_shot, index, place, lam, sharpness, C,
                 FIRST, EXCLUDE, EXP, SUM, TRUSTED, PROBABILITIES, M, SLOTS, CLASSES)  # fmt: skip
        number = tl.load(step)
        tl.debug_barrier()  # nothing of the old state is read from here on
        tl.store(step, number + 1)
        if place >= 0:
            tl.store(keys + index * M + place, tl.load(key))
            tl.store(ids + index * M + place, number)
            tl.store(counts + index, tl.maximum(count, place + 1).to(tl.int64))


class StepBuffers(NamedTuple):
    """Where `fused_settle` leaves its results."""

    label: Tensor
    """[] int32"""
    slot: Tensor
    """[] int32; −1 if the sample was not stored."""
    key: Tensor
    """[] float32"""
    affinity: Tensor
    """[C, M] float32, to the entries before the sample."""
    scores: Tensor
    """[C] float32"""
    zero_shot: Tensor
    """[C] float32"""

    @classmethod
    def of(cls, C: int, M: int, device: torch.device) -> StepBuffers:
        """New buffers.

        Args:
            C: Number of classes.
            M: Slots per class.
            device: Where to put them.
        """
        whole = torch.zeros(2, dtype=torch.int32, device=device)
        key, affinity = torch.zeros((), device=device), torch.zeros(C, M, device=device)
        return cls(whole[0], whole[1], key, affinity, torch.zeros(C, device=device), torch.zeros(C, device=device))


def fused_settle(
    logits: Tensor, debiased: Tensor, tokens: Tensor, feature: Tensor, state: Reservoir, config: Adaptation,
    sample: StepBuffers, trust: Tensor | None = None,
) -> StepBuffers:  # fmt: skip
    """Let a sample into the reservoir, in place, and correct its answer.

    Args:
        logits: Zero-shot logits, `[C]` float32.
        debiased: The logits that label, reliability and correction are taken from, `[C]` float32.
        tokens: Summary tokens, `[L, D]`; rows may be strided.
        feature: Image feature, `[E]` float32; only checked for being finite.
        state: The reservoir.
        config: The adaptation.
        sample: Where to leave the results; `sample.affinity` is an input.
        trust: `debias.trust`, `[1, C]`; None if debiasing is off.

    Returns:
        `sample`.
    """
    C, M, L, D = state.anchors.shape
    E, slots, classes = len(feature), max(triton.next_power_of_2(M), 2), max(triton.next_power_of_2(C), 16)
    shapes = {"M": M, "SLOTS": slots, "LAYERS": L, "CLASSES": classes, "WIDTH": triton.next_power_of_2(D)}
    _propose[(1,)](
        debiased, tokens, feature, state.anchors, state.keys, state.ids, state.counts, state.step, sample.label,
        sample.slot, sample.key, C, D, E, tokens.stride(0), STRATEGY=STRATEGIES[config.strategy],
        TERM=config.key == "class_term", EMBED=triton.next_power_of_2(E), num_warps=min(max(4, classes // 512), 16),
        **shapes,
    )  # fmt: skip
    _finish[(L + 1,)](
        logits, debiased, tokens, sample.affinity, logits if trust is None else trust, state.anchors, state.keys,
        state.ids, state.counts, state.step, state.means, sample.label, sample.slot, sample.key, sample.scores,
        sample.zero_shot, config.lam, config.sharpness, C, D, tokens.stride(0),
        FIRST=config.order == "update_first", EXCLUDE=config.exclude_own, EXP=config.kernel == "exp",
        SUM=config.over == "sum", TRUSTED=trust is not None, PROBABILITIES=config.domain == "probabilities",
        num_warps=min(max(4, classes * slots // 1024), 32), **shapes,
    )  # fmt: skip
    return sample
