"""Who enters the reservoir, decided on the device for a whole chunk of images: `engines.admission` in one launch.

Images depend on the ones before them, classes do not depend on each other. So there is one program per class, which
goes through the chunk's images in order and skips those of other classes. A program is one warp: a class has few slots.
"""

from __future__ import annotations

import sys

import torch
import triton
import triton.language as tl
from torch import Tensor

from lessmore.config import Strategy
from lessmore.core.reservoir import Reservoir
from lessmore.engines.kernels.reservoir import STRATEGIES


@triton.jit
def _best(own, theirs, key, near, close, M: tl.constexpr, STRATEGY: tl.constexpr):
    """The slot with the largest score, −1 if none is above the newcomer's."""
    mine = own.to(tl.float64) if STRATEGY == 0 else key
    if STRATEGY >= 2:
        sign = 1.0 if STRATEGY == 3 else -1.0
        mine += tl.sum(near, axis=0) * sign / M
        theirs += (near + tl.sum(close, axis=1)) * sign / M
    m = tl.arange(0, near.shape[0])
    scores = tl.where(m < M, theirs, float("-inf"))
    return tl.where(tl.max(scores, axis=0) > mine, tl.argmax(scores, axis=0), -1)


@triton.jit
def _admit(
    labels, reliabilities, sound, nears, cosines, keys, ids, counts, step, slots, entries, held, ready, P, C, never,
    STRATEGY: tl.constexpr, M: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    c = tl.program_id(0)
    m = tl.arange(0, SLOTS)
    here = m < M
    count = tl.load(counts + c).to(tl.int32)
    H = tl.load(keys + c * M + m, mask=here, other=0).to(tl.float64)
    age = tl.load(ids + c * M + m, mask=here, other=0)
    close = tl.zeros([SLOTS, SLOTS], tl.float64)
    if STRATEGY >= 2:
        square = here[:, None] & here[None, :]
        close = tl.load(cosines + (c * M + m[:, None]) * M + m[None, :], mask=square, other=0)
    row = tl.where(m < count, c * M + m, C * M + P)
    time = tl.where(count >= 2, 0, never).to(tl.int64)
    first = tl.load(step)
    for i in range(P):
        if tl.load(labels + i) == c:
            key = tl.load(reliabilities + i).to(tl.float64)
            near = tl.zeros([SLOTS], tl.float64)
            if STRATEGY >= 2:
                column = tl.where(row < C * M, row - c * M, row - C * M + M)
                near = tl.load(nears + i * (M + P) + column, mask=m < count, other=0)
            theirs = -age.to(tl.float64) if STRATEGY == 0 else H
            slot = _best(-(first + i), theirs, key, near, close, M, STRATEGY)
            slot = tl.where(count < M, count, slot)
            slot = tl.where(tl.load(sound + i), slot, -1)
            taken = m == slot
            others = tl.where(taken, 0.0, near)
            close = tl.where(taken[None, :], others[:, None], tl.where(taken[:, None], others[None, :], close))
            H = tl.where(taken, key, H)
            age = tl.where(taken, first + i, age)
            row = tl.where(taken, C * M + i, row)
            time = tl.where((slot == 1) & (count == 1), i + 1, time)
            count = tl.maximum(count, slot + 1)
            tl.store(slots + i, slot.to(tl.int64))
            tl.store(entries + i, tl.where(slot >= 0, count, 0).to(tl.int64))
            tl.store(held + i * M + m, tl.where(slot >= 0, row, C * M + P).to(tl.int64), mask=here)
    tl.store(ready + c, time)


def fused_admit(
    state: Reservoir, strategy: Strategy, labels: Tensor, keys: Tensor, sound: Tensor, near: Tensor | None,
    cosines: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Admit P images one after another; the reservoir stays as it is.

    Args:
        state: The reservoir before the images.
        strategy: How the leaving entry of a full class is chosen.
        labels: Predicted classes, `[P]` int64.
        keys: Reliabilities, `[P]`.
        sound: Which images may be stored, `[P]` bool.
        near: `ChunkInputs.near`, `[P, M + P]` float64; None for strategies that do not look at it.
        cosines: `ChunkInputs.cosines`, `[C, M, M]` float64; None likewise.

    Returns:
        `slot` `[P]`, `counts` `[P]` and `held` `[P, M]` of `chunk_replay.Admissions`, and for each class the first
        image that finds two entries in it, `[C]`.
    """
    (C, M), P = state.ids.shape, len(labels)
    slot, entries, held = torch.empty_like(labels), torch.empty_like(labels), labels.new_empty(P, M)
    ready = labels.new_empty(C)
    _admit[(C,)](
        labels, keys, sound, near, cosines, state.keys, state.ids, state.counts, state.step, slot, entries, held, ready,
        P, C, sys.maxsize, STRATEGY=STRATEGIES[strategy], M=M, SLOTS=max(triton.next_power_of_2(M), 2), num_warps=1,
    )  # fmt: skip
    return slot, entries, held, ready
