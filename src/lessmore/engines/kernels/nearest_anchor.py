"""The nearest class anchor: `scoring.nearest_anchor` in one launch, for a batch and for a single image.

For a batch, images are parallel and each program goes through all classes, also noting how far the nearest one leads.
For a single image that would leave the device idle, so classes are parallel in tiles; the program that finishes last
compares the tiles' winners and copies the anchor to its place among the tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from lessmore.core.reservoir import Reservoir
from lessmore.core.scoring import Candidates
from lessmore.engines.kernels.linear import Sums


@triton.jit
def _look_up(
    summary, means, rows, ready, label, token, lead, C, D, stride_v, stride_m, stride_r,
    ROWS: tl.constexpr, CLASSES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, WIDTH)
    v = tl.load(summary + b * stride_v + d, mask=d < D, other=0).to(tl.float32)
    length = tl.sqrt(tl.sum(v * v, axis=0))
    best, second, winner = float("-inf"), float("-inf"), 0
    for start in range(0, C, CLASSES):
        i = tl.arange(0, CLASSES)
        c = start + i
        row = tl.load(rows + b * C + c, mask=c < C, other=0) if ROWS else c.to(tl.int64)
        mask = (c < C)[:, None] & (d < D)[None, :]
        a = tl.load(means + row[:, None] * stride_m + d[None, :], mask=mask, other=0).to(tl.float32)
        norms = length * tl.sqrt(tl.sum(a * a, axis=1))
        cosine = tl.sum(a * v[None, :], axis=1) / tl.maximum(norms, 1e-24)
        usable = tl.load(ready + b * stride_r + c, mask=c < C, other=0) != 0
        cosine = tl.where(usable & (cosine == cosine), cosine, float("-inf"))
        top, first = tl.max(cosine, axis=0), tl.argmax(cosine, axis=0)
        others = tl.max(tl.where(i == first, float("-inf"), cosine), axis=0)
        second = tl.where(top > best, tl.maximum(best, others), tl.maximum(second, top))
        winner = tl.where(top > best, start + first, winner)
        best = tl.maximum(best, top)
    found = best > float("-inf")
    row = tl.load(rows + b * C + winner) if ROWS else winner
    tl.store(label + b, tl.where(found, winner, -1).to(tl.int64))
    tl.store(lead + b, tl.where(found, best - second, 0.0))
    tl.store(token + b * D + d, tl.load(means + row * stride_m + d, mask=d < D, other=0), mask=d < D)


def fused_look_up(summary: Tensor, anchors: Candidates) -> tuple[Tensor, Tensor, Tensor]:
    """The nearest anchors of a batch.

    Args:
        summary: Summary tokens, `[B, D]`; rows may be strided.
        anchors: The anchors to choose from.

    Returns:
        The class `[B]` int64, −1 if none is ready or no cosine is finite; its anchor `[B, D]`, then some finite row;
        and how far its cosine lies above the second nearest's, `[B]`.
    """
    B, D, C = *summary.shape, anchors.ready.shape[-1]
    label = torch.empty(B, dtype=torch.int64, device=summary.device)
    token, lead = anchors.means.new_empty(B, D), torch.empty(B, device=summary.device)
    rows, ready = anchors.rows, anchors.ready.contiguous()
    _look_up[(B,)](
        summary, anchors.means, label if rows is None else rows.contiguous(), ready, label, token, lead, C, D,
        summary.stride(0), anchors.means.stride(0), C if ready.ndim == 2 else 0, ROWS=rows is not None, CLASSES=16,
        WIDTH=triton.next_power_of_2(D), num_warps=8,
    )  # fmt: skip
    return label, token, lead


@triton.jit
def _usable(counts, c, C, ALL: tl.constexpr):
    """Which classes c may serve as anchors. ALL > 0 (then ALL ≥ C): none until every class has two entries."""
    if ALL > 0:
        i = tl.arange(0, ALL)
        least = tl.min(tl.load(counts + i, mask=i < C, other=2), axis=0)
        return (c < C) & (least >= 2)
    return (c < C) & (tl.load(counts + c, mask=c < C, other=0) >= 1)


@triton.jit
def _nearest(
    x, sums, means, counts, cosines, labels, label, ticket, C, D, stride_x, stride_c, stride_s, parts_s,
    SUMS: tl.constexpr, ALL: tl.constexpr, CLASSES: tl.constexpr, PARTS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    t, b = tl.program_id(0), tl.program_id(1)
    x += b * stride_x
    d = tl.arange(0, WIDTH)
    c = t * CLASSES + tl.arange(0, CLASSES)
    token = tl.load(x + D + d, mask=d < D, other=0).to(tl.float32)
    rows = tl.load(means + c[:, None] * stride_c + d[None, :], mask=(c < C)[:, None] & (d < D)[None, :], other=0)
    rows = rows.to(tl.float32)
    dots = tl.sum(rows * token[None, :], axis=1)
    norms = tl.sqrt(tl.sum(rows * rows, axis=1)) * tl.sqrt(tl.sum(token * token, axis=0))
    cosine = dots / tl.maximum(norms, 1e-24)
    cosine = tl.where(_usable(counts, c, C, ALL) & (cosine == cosine), cosine, float("-inf"))
    best = tl.argmax(cosine, axis=0)
    parts = tl.num_programs(0)
    tl.store(cosines + b * parts + t, tl.max(cosine, axis=0))
    tl.store(labels + b * parts + t, t * CLASSES + best)
    tl.debug_barrier()
    # The program that finishes last compares the winners of all tiles and puts the anchor into its place.
    if tl.atomic_add(ticket + b, 1, sem="acq_rel") == parts - 1:
        i = tl.arange(0, PARTS)
        values = tl.load(cosines + b * parts + i, mask=i < parts, other=float("-inf"), volatile=True)
        winner = tl.argmax(values, axis=0)
        found = tl.max(values, axis=0) > float("-inf")
        chosen = tl.load(labels + b * parts + winner, volatile=True)
        tl.store(label + b, tl.where(found, chosen, -1))
        row = tl.load(means + chosen * stride_c + d, mask=d < D, other=0)
        tl.store(x + d, row.to(x.dtype.element_ty), mask=d < D)
        value = row.to(x.dtype.element_ty).to(tl.float32)
        j = tl.arange(0, SUMS)
        tl.store(sums + j, tl.where(j == 0, tl.sum(value, axis=0), 0.0), mask=j < parts_s)
        tl.store(sums + stride_s + j, tl.where(j == 0, tl.sum(value * value, axis=0), 0.0), mask=j < parts_s)
        tl.store(ticket + b, 0)


class Search(NamedTuple):
    """Work space of `fused_nearest` for B images and C classes."""

    cosines: Tensor
    labels: Tensor
    ticket: Tensor
    """Programs of each image that are done; zero before and after a launch."""

    @classmethod
    def of(cls, B: int, C: int, device: torch.device) -> Search:
        """New work space.

        Args:
            B: Number of images.
            C: Number of classes.
            device: Where to put it.
        """
        parts = triton.cdiv(C, 8)
        labels = torch.zeros(B, parts, dtype=torch.int32, device=device)
        return cls(torch.zeros(B, parts, device=device), labels, torch.zeros(B, dtype=torch.int32, device=device))


def fused_nearest(
    x: Tensor, sums: Sums, state: Reservoir, layer: int, everyone: bool, label: Tensor, space: Search
) -> Tensor:
    """Put the class anchor nearest to the summary token `x[:, 1]` into its place, `x[:, 0]`.

    Args:
        x: Tokens, `[1, 1 + N, D]`.
        sums: The sums of their rows; those of the anchor are written.
        state: The reservoir.
        layer: The layer of the class means to compare with.
        everyone: Whether no class is ready before all have two entries.
        label: Where to leave its class, `[1]` int32; −1 if no class is ready, and then `x[:, 0]` is some finite row.
        space: Work space.

    Returns:
        `label`.
    """
    C, _, D = state.means.shape
    parts = space.cosines.shape[1]
    _nearest[(parts, len(x))](
        x, sums, state.means[:, layer], state.counts, space.cosines, space.labels, label, space.ticket, C, D,
        x.stride(0), state.means.stride(0), sums.stride(0), sums.shape[2], SUMS=triton.next_power_of_2(sums.shape[2]),
        ALL=triton.next_power_of_2(C) if everyone else 0, CLASSES=8,
        PARTS=triton.next_power_of_2(parts), WIDTH=triton.next_power_of_2(D), num_warps=4,
    )  # fmt: skip
    return label
