"""The nearest class anchor for each image of a batch, in one launch: `scoring.nearest_anchor` and how sure it is."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lessmore.core.scoring import Candidates


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
    """For summary tokens [B, D] (rows may be strided): the class, the anchor [B, D], and its lead over the next, [B].

    The class is −1 where none is ready or nothing is near; then the anchor is some finite row.
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
