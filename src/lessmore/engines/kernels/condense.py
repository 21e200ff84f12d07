"""Order, keep, merge and prune tokens: `scoring.token_order` and `condense.coreset` on the device.

Parallel over images and tiles of tokens. With few images everything is one launch, because launches dominate: each
program finds its tokens' places by counting the tokens before them and moves those that are kept. The last program of
an image to finish knows that the order is complete; it finds the coreset centres and writes the merged and fused
tokens. With many images counting dominates: one launch finds the order of each image, another moves, merges and prunes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lessmore.config import Condensation
from lessmore.core.condense.schedule import Stage
from lessmore.engines.kernels.linear import Sums

PRODUCTS = tl.constexpr(64)
"""Up to this many ambiguous tokens, a program holds all their products; beyond, distances to one centre at a time."""


@triton.jit
def _keys(scores, ranks, j, n, HEADS: tl.constexpr, RANK: tl.constexpr):
    """Summed rank and summed attention of tokens j, head after head so that every program gets the same bits."""
    rank = tl.zeros_like(j)
    score = tl.zeros_like(j).to(tl.float32)
    for h in tl.static_range(HEADS):
        score += tl.load(scores + h * n + j, mask=j < n, other=0.0)
        if RANK:
            rank += tl.load(ranks + h * n + j, mask=j < n, other=0)
    return rank, score


@triton.jit
def _position(scores, ranks, i, n, HEADS: tl.constexpr, RANK: tl.constexpr, ALL: tl.constexpr, PART: tl.constexpr):
    """Place of tokens i in the order (rank sum, then attention, then position), by counting those before."""
    rank, score = _keys(scores, ranks, i, n, HEADS, RANK)
    place = tl.zeros_like(i)
    for start in range(0, ALL, PART):
        j = start + tl.arange(0, PART)
        r, s = _keys(scores, ranks, j, n, HEADS, RANK)
        tied = (s[None, :] > score[:, None]) | ((s[None, :] == score[:, None]) & (j[None, :] < i[:, None]))
        before = (r[None, :] < rank[:, None]) | ((r[None, :] == rank[:, None]) & tied)
        place += tl.sum((before & (j < n)[None, :]).to(tl.int32), axis=1)
    return place


@triton.jit
def _load(x, delta, index, d, valid, D, ADD: tl.constexpr):
    """Rows (x + delta)[index, d], zero where not valid."""
    place = index[:, None] * D + d[None, :]
    here = valid[:, None] & (d < D)[None, :]
    rows = tl.load(x + place, mask=here, other=0)
    if ADD:
        rows = (rows.to(tl.float32) + tl.load(delta + place, mask=here, other=0).to(tl.float32)).to(rows.dtype)
    return rows


@triton.jit
def _distances(
    x, delta, index, valid, chosen, D, AMBIGUOUS: tl.constexpr, WIDTH: tl.constexpr, PART: tl.constexpr,
    ADD: tl.constexpr,
):  # fmt: skip
    """Squared distances [A] of the tokens (x + delta)[index] to the one chosen among them."""
    centre = tl.sum(tl.where(tl.arange(0, AMBIGUOUS) == chosen, index, 0), axis=0) + tl.arange(0, 1)
    total = tl.zeros([AMBIGUOUS, PART], tl.float32)
    for start in range(0, WIDTH, PART):
        d = start + tl.arange(0, PART)
        own = _load(x, delta, centre, d, centre >= 0, D, ADD).to(tl.float32)
        apart = _load(x, delta, index, d, valid, D, ADD).to(tl.float32) - own
        total += apart * apart
    return tl.sum(total, axis=1)


@triton.jit
def _products(
    x, delta, index, valid, D, AMBIGUOUS: tl.constexpr, WIDTH: tl.constexpr, PART: tl.constexpr, ADD: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    """Products [A, A] of the tokens (x + delta)[index]."""
    gram = tl.zeros([AMBIGUOUS, AMBIGUOUS], tl.float32)
    for start in range(0, WIDTH, PART):
        rows = _load(x, delta, index, start + tl.arange(0, PART), valid, D, ADD)
        gram = tl.dot(rows, tl.trans(rows), gram, input_precision="ieee" if EXACT else None)
    return gram


@triton.jit
def _clusters(
    x, delta, index, valid, D, CENTRES: tl.constexpr, AMBIGUOUS: tl.constexpr, WIDTH: tl.constexpr,
    PART: tl.constexpr, ADD: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Greedy k-centre of the tokens (x + delta)[index]: each one's cluster and squared distance to its centre."""
    a = tl.arange(0, AMBIGUOUS)
    if AMBIGUOUS <= PRODUCTS:
        gram = _products(x, delta, index, valid, D, AMBIGUOUS, WIDTH, PART, ADD, EXACT)
        square = tl.sum(tl.where(a[:, None] == a[None, :], gram, 0.0), axis=0)
    nearest = tl.full([AMBIGUOUS], float("inf"), tl.float32)
    cluster = tl.zeros([AMBIGUOUS], tl.int32)
    free = valid
    chosen = 0
    for c in tl.static_range(CENTRES):
        if AMBIGUOUS <= PRODUCTS:
            product = tl.sum(tl.where(a[:, None] == chosen, gram, 0.0), axis=0)
            own = tl.sum(tl.where(a == chosen, square, 0.0), axis=0)
            distance = tl.where(a == chosen, 0.0, tl.maximum(square + own - 2 * product, 0.0))
        else:
            distance = _distances(x, delta, index, valid, chosen, D, AMBIGUOUS, WIDTH, PART, ADD)
        closer = distance < nearest
        # A centre belongs to its own cluster even if another centre is equal to it.
        cluster = tl.where((closer & free) | (a == chosen), c, cluster)
        nearest = tl.where(closer, distance, nearest)
        free = free & (a != chosen)
        chosen = tl.argmax(tl.where(free, nearest, -1.0), axis=0)
    return cluster, nearest


@triton.jit
def _count(size, i, valid, SIZES: tl.constexpr):
    """How many patches tokens i stand for: one without sizes, none where not valid."""
    count = tl.where(valid, 1.0, 0.0)
    if SIZES == 2:
        count = tl.exp(tl.load(size + i, mask=valid, other=float("-inf")))
    return count


@triton.jit
def _mix(
    x, delta, y, sums, stride_s, index, valid, share, first, count, D,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, PART: tl.constexpr, ADD: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """share [ROWS, A] @ (x + delta)[index] as rows first … first + count − 1 of y, with their sums."""
    r = tl.arange(0, ROWS)
    total = tl.zeros([ROWS, PART], tl.float32)
    square = tl.zeros([ROWS, PART], tl.float32)
    for start in range(0, WIDTH, PART):
        d = start + tl.arange(0, PART)
        rows = _load(x, delta, index, d, valid, D, ADD)
        mixed = tl.dot(share.to(rows.dtype), rows, input_precision="ieee" if EXACT else None)
        written = mixed.to(y.dtype.element_ty)
        tl.store(y + (first + r)[:, None] * D + d[None, :], written, mask=(r < count)[:, None] & (d < D)[None, :])
        value = written.to(tl.float32)
        total += value
        square += value * value
    tl.store(sums + first + r, tl.sum(total, axis=1), mask=r < count)
    tl.store(sums + stride_s + first + r, tl.sum(square, axis=1), mask=r < count)


@triton.jit
def _merge(
    x, delta, size, y, sums, stride_s, carried, order, target, keep, ambiguous, D,
    CENTRES: tl.constexpr, INVERSE: tl.constexpr, SIZES: tl.constexpr, AMBIGUOUS: tl.constexpr, WIDTH: tl.constexpr,
    PART: tl.constexpr, ADD: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Each cluster of the ambiguous tokens becomes one token, rows keep … of y."""
    a = tl.arange(0, AMBIGUOUS)
    valid = a < ambiguous
    index = tl.load(order + keep + a, mask=valid, other=0, volatile=True)
    cluster, nearest = _clusters(x, delta, index, valid, D, CENTRES, AMBIGUOUS, WIDTH, PART, ADD, EXACT)
    tl.store(target + index, (keep + cluster).to(target.dtype.element_ty), mask=valid)
    count = _count(size, index, valid, SIZES)
    weight = count
    if INVERSE:
        weight = tl.where(nearest > 0, count / tl.sqrt(tl.maximum(nearest, 1e-37)), count)
    r = tl.arange(0, 16)
    member = cluster[None, :] == r[:, None]
    if SIZES > 0:
        total = tl.sum(tl.where(member, count[None, :], 0.0), axis=1)
        tl.store(carried + keep + r, tl.log(tl.maximum(total, 1.0)), mask=r < CENTRES)
    share = tl.where(member, weight[None, :], 0.0)
    share = share / tl.maximum(tl.sum(share, axis=1), 1e-37)[:, None]
    _mix(x, delta, y, sums, stride_s, index, valid, share, keep, CENTRES, D, 16, WIDTH, PART, ADD, EXACT)


@triton.jit
def _prune(
    x, delta, size, y, sums, stride_s, carried, order, scores, ranks, target, first, n, out, D,
    FUSED: tl.constexpr, SIZES: tl.constexpr, HEADS: tl.constexpr, PRUNED: tl.constexpr, WIDTH: tl.constexpr,
    PART: tl.constexpr, ADD: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """The pruned tokens, from place `first` on: fused by attention into the last row of y, or dropped."""
    p = tl.arange(0, PRUNED)
    valid = first + p < n
    index = tl.load(order + first + p, mask=valid, other=0, volatile=True)
    gone = tl.zeros_like(index) - 1
    if FUSED:
        gone += out
        _rank, score = _keys(scores, ranks, index, n, HEADS, False)
        weight = tl.where(valid, score / HEADS, 0.0)
        share = tl.where(tl.arange(0, 16)[:, None] == 0, weight[None, :], 0.0)
        _mix(x, delta, y, sums, stride_s, index, valid, share, out - 1, 1, D, 16, WIDTH, PART, ADD, EXACT)
        if SIZES > 0:
            tl.store(carried + out - 1, tl.log(tl.sum(_count(size, index, valid, SIZES), axis=0)))
    tl.store(target + index, gone.to(target.dtype.element_ty), mask=valid)


@triton.jit
def _keep(
    x, delta, size, y, sums, stride_s, carried, row, place, stays, D,
    LEAD: tl.constexpr, SIZES: tl.constexpr, WIDTH: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """Copy the kept rows to their places in y, with their sums and sizes."""
    d = tl.arange(0, WIDTH)
    rows = _load(x, delta, row, d, stays, D, ADD)
    tl.store(y + place[:, None] * D + d[None, :], rows, mask=stays[:, None] & (d < D)[None, :])
    value = rows.to(tl.float32)
    tl.store(sums + place, tl.sum(value, axis=1), mask=stays)
    tl.store(sums + stride_s + place, tl.sum(value * value, axis=1), mask=stays)
    if SIZES > 0:
        patch = stays & (row >= LEAD)
        own = tl.load(size + row - LEAD, mask=patch, other=0.0) if SIZES == 2 else tl.zeros_like(row).to(tl.float32)
        tl.store(carried + place - LEAD, own, mask=patch)


@triton.jit
def _move(
    x, delta, size, y, sums, stride_s, carried, scores, ranks, order, target, t, n, keep, D,
    LEAD: tl.constexpr, SIZES: tl.constexpr, RANK: tl.constexpr, HEADS: tl.constexpr, ALL: tl.constexpr,
    TILE: tl.constexpr, WIDTH: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """Find the places of the rows of tile t, leading tokens included, and copy the kept ones into y."""
    row = t * TILE + tl.arange(0, TILE)
    i = tl.maximum(row - LEAD, 0)
    place = tl.where(row < LEAD, row, LEAD + _position(scores, ranks, i, n, HEADS, RANK, ALL, 128))
    stays = (row < n + LEAD) & (place < keep + LEAD)
    _keep(x, delta, size, y, sums, stride_s, carried, row, place, stays, D, LEAD, SIZES, WIDTH, ADD)
    tl.store(target + i, (place - LEAD).to(target.dtype.element_ty), mask=stays & (row >= LEAD))
    tl.store(order + place - LEAD, i, mask=(row >= LEAD) & (row < n + LEAD))


@triton.jit
def _rest(
    x, delta, size, y, sums, stride_s, carried, scores, ranks, order, target, n, keep, ambiguous, out, D,
    LEAD: tl.constexpr, CENTRES: tl.constexpr, FUSED: tl.constexpr, PRUNES: tl.constexpr, INVERSE: tl.constexpr,
    SIZES: tl.constexpr, HEADS: tl.constexpr, AMBIGUOUS: tl.constexpr, PRUNED: tl.constexpr, LENGTH: tl.constexpr,
    ADD: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Merge and prune the tokens that are not kept; needs the complete order."""
    if CENTRES > 0:
        _merge(x + LEAD * D, delta + LEAD * D, size, y + LEAD * D, sums + LEAD, stride_s, carried, order, target,
               keep, ambiguous, D, CENTRES, INVERSE, SIZES, AMBIGUOUS, LENGTH, min(128, 8192 // AMBIGUOUS), ADD,
               EXACT)  # fmt: skip
    if PRUNES:
        _prune(x + LEAD * D, delta + LEAD * D, size, y + LEAD * D, sums + LEAD, stride_s, carried, order, scores,
               ranks, target, keep + ambiguous, n, out, D,
               FUSED, SIZES, HEADS, PRUNED, LENGTH, min(128, 8192 // PRUNED), ADD, EXACT)  # fmt: skip


@triton.jit(do_not_specialize=["stride_s"])  # it depends on the batch, and compiling takes seconds
def _condense(
    x, delta, stride_d, size, y, sums, stride_s, carried, scores, ranks, order, target, ticket, n, keep, ambiguous,
    out, D, LEAD: tl.constexpr, CENTRES: tl.constexpr, FUSED: tl.constexpr, PRUNES: tl.constexpr,
    INVERSE: tl.constexpr, SIZES: tl.constexpr, RANK: tl.constexpr, HEADS: tl.constexpr, ALL: tl.constexpr,
    AMBIGUOUS: tl.constexpr, PRUNED: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr, LENGTH: tl.constexpr,
    ADD: tl.constexpr, EXACT: tl.constexpr, ORDERED: tl.constexpr,
):  # fmt: skip
    t, b = tl.program_id(0), tl.program_id(1)
    x += b.to(tl.int64) * (n + LEAD) * D
    delta += b.to(tl.int64) * stride_d
    size += b * n
    carried += b * out
    y += b.to(tl.int64) * (out + LEAD) * D
    sums += b * (out + LEAD)
    scores += b * HEADS * n
    ranks += b * HEADS * n
    order += b * n
    target += b * n
    if ORDERED:
        last = t == 0  # it takes longest, so it starts first
        if t > 0:
            row = (t - 1) * TILE + tl.arange(0, TILE)
            i = tl.load(order + row - LEAD, mask=(row >= LEAD) & (row < keep + LEAD), other=0) + LEAD
            _keep(x, delta, size, y, sums, stride_s, carried, tl.where(row < LEAD, row, i), row, row < keep + LEAD, D,
                  LEAD, SIZES, WIDTH, ADD)  # fmt: skip
    else:
        _move(x, delta, size, y, sums, stride_s, carried, scores, ranks, order, target, t, n, keep, D,
              LEAD, SIZES, RANK, HEADS, ALL, TILE, WIDTH, ADD)  # fmt: skip
        tl.debug_barrier()
        last = tl.atomic_add(ticket + b, 1, sem="acq_rel") == tl.num_programs(0) - 1
        if last:
            tl.store(ticket + b, 0)
    if last:
        _rest(x, delta, size, y, sums, stride_s, carried, scores, ranks, order, target, n, keep, ambiguous, out, D,
              LEAD, CENTRES, FUSED, PRUNES, INVERSE, SIZES, HEADS, AMBIGUOUS, PRUNED, LENGTH, ADD, EXACT)  # fmt: skip


@triton.jit
def _find_order(
    scores, ranks, order, target, n, keep,
    RANK: tl.constexpr, ALL: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    t, b = tl.program_id(0), tl.program_id(1)
    i = t * TILE + tl.arange(0, TILE)
    place = _position(scores + b * n, ranks + b * n, i, n, 1, RANK, ALL, 128)  # of all heads together
    tl.store(order + b * n + place, i, mask=i < n)
    tl.store(target + b * n + i, place.to(target.dtype.element_ty), mask=(i < n) & (place < keep))


MANY = 8
"""From this many images on, the order is found in a launch of its own."""


def distance_tiles(B: int) -> tuple[int, int]:
    """Tokens per program and its warps for B images; measured on an H200."""
    return (8, 4) if B >= MANY else (4, 4)


def fused_condense(
    x: Tensor, y: Tensor, sums: Sums, scores: Tensor, ranks: Tensor | None, order: Tensor, target: Tensor,
    ticket: Tensor, stage: Stage, config: Condensation, delta: Tensor | None = None, size: Tensor | None = None,
    carried: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Condense the n patches of every image; the `lead` tokens before them (anchor's place, class token) are copied.

    Args:
        x: Tokens, `[B, lead + n, D]`.
        y: Where to leave the result, `[B, lead + out, D]`.
        sums: Where to leave the sums of its rows, `[2, B·(lead + out), 1]`.
        scores: Attention per head, `[B, H, n]` float32.
        ranks: Ranks within each head, `[B, H, n]` int32; None scores by the head mean.
        order: Where to leave the patches from most to least important, `[B, n]` int32.
        target: Where to leave the place each patch goes to, −1 if it is dropped, `[B, n]` int64.
        ticket: Work space, `[B]` int32, zero before and after.
        stage: How many tokens are kept, merged and pruned.
        config: How they are merged and pruned.
        delta: Added to x, of its shape; images may be strided. None adds nothing.
        size: Logarithm of the number of patches each token stands for, `[B, n]` float32; None if each is one.
        carried: Where to leave the same for the remaining tokens, `[B, out]`; None does not track it.

    Returns:
        `y`.
    """
    B, heads, n = scores.shape
    nothing = x
    added, ranked = x if delta is None else delta, scores if ranks is None else ranks
    lead, ordered, (tile, warps) = x.shape[1] - n, B >= MANY, distance_tiles(B)
    known = {"RANK": ranks is not None, "ALL": triton.next_power_of_2(n)}
    if ordered:
        sums_of = scores.sum(dim=1), ranked.sum(dim=1, dtype=ranked.dtype)
        _find_order[(triton.cdiv(n, 16), B)](*sums_of, order, target, n, stage.keep, TILE=16, **known)
    _condense[(triton.cdiv(lead + stage.keep, tile) + 1 if ordered else triton.cdiv(lead + n, tile), B)](
        x, added, added.stride(0), nothing if size is None else size, y, sums, sums.stride(0),
        nothing if carried is None else carried, scores, ranked, order, target, ticket, n, stage.keep,
        stage.ambiguous, stage.out, x.shape[2], LEAD=lead, CENTRES=stage.centres, FUSED=stage.fused,
        PRUNES=stage.pruned > 0, INVERSE=config.merge == "inverse_distance",
        SIZES=0 if carried is None else 1 if size is None else 2,
        AMBIGUOUS=max(triton.next_power_of_2(stage.ambiguous), 16),
        PRUNED=max(triton.next_power_of_2(stage.pruned), 16), TILE=tile, WIDTH=triton.next_power_of_2(x.shape[2]),
        LENGTH=x.shape[2] + -x.shape[2] % 128, ADD=delta is not None, EXACT=x.dtype == torch.float32,
        HEADS=heads, ORDERED=ordered, num_warps=warps, **known,
    )  # fmt: skip
    return y
