"""Self-attention on packed q, k, v; in condensing blocks it also scores the patches.

Parallel over images, heads and tiles of queries, as softmax rows are independent; each program runs over the keys with
an online softmax. In a condensing block, one extra program per head and image writes the class token's row (and the
anchor's) as scores and ranks the patches within the head. Scoring thus runs beside the attention, without a launch of
its own.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lessmore.config import QueryRows

_ROWS = {"class": 0, "anchor": 1, "both": 2}


@triton.jit
def _bias(size, n, first_key, N, SLOT: tl.constexpr):
    """What sizes add to the logits of keys n: a patch's logarithm, and −∞ for a masked key."""
    bias = tl.load(size + n - SLOT - 1, mask=(n > SLOT) & (n < N), other=0.0)
    return tl.where((n < N) & (n >= first_key), bias, float("-inf"))


@triton.jit
def _flash(
    qkv, out, size, tile, first_key, N, stride, out_stride, scale, SLOT: tl.constexpr, SIZES: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, HEAD: tl.constexpr, WIDTH: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Online softmax over blocks of keys; queries `tile`·ROWS onwards."""
    precision: tl.constexpr = "ieee" if EXACT else None
    m = tile * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, HEAD)
    q = tl.load(qkv + m[:, None] * stride + d[None, :], mask=(m < N)[:, None], other=0)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    result = tl.zeros([ROWS, HEAD], tl.float32)
    if SIZES:
        ahead = _bias(size, tl.arange(0, KEYS), first_key, N, SLOT)
    for start in range(0, N, KEYS):
        n = start + tl.arange(0, KEYS)
        k = tl.load(qkv + WIDTH + n[None, :] * stride + d[:, None], mask=(n < N)[None, :], other=0)
        v = tl.load(qkv + 2 * WIDTH + n[:, None] * stride + d[None, :], mask=(n < N)[:, None], other=0)
        logits = tl.dot(q, k, input_precision=precision) * scale
        if SIZES:
            logits += ahead[None, :]
            ahead = _bias(size, n + KEYS, first_key, N, SLOT)  # a block before it is needed
        else:
            logits = tl.where(((n < N) & (n >= first_key))[None, :], logits, float("-inf"))
        new = tl.maximum(top, tl.max(logits, axis=1))
        old = tl.exp(top - new)
        p = tl.exp(logits - new[:, None])
        total = total * old + tl.sum(p, axis=1)
        result = tl.dot(p.to(v.dtype), v, result * old[:, None], input_precision=precision)
        top = new
    place = out + m[:, None] * out_stride + d[None, :]
    tl.store(place, (result / total[:, None]).to(out.dtype.element_ty), mask=(m < N)[:, None])


@triton.jit
def _first_rows(
    qkv, size, first_key, N, stride, scale, SLOT: tl.constexpr, SIZES: tl.constexpr,
    ALL: tl.constexpr, HEAD: tl.constexpr, WIDTH: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """softmax(q kᵀ/√d) of the first 16 queries, among them the anchor's and the class token's, over all keys."""
    m = tl.arange(0, 16)
    n = tl.arange(0, ALL)
    d = tl.arange(0, HEAD)
    q = tl.load(qkv + m[:, None] * stride + d[None, :], mask=(m < N)[:, None], other=0)
    k = tl.load(qkv + WIDTH + n[None, :] * stride + d[:, None], mask=(n < N)[None, :], other=0)
    logits = tl.dot(q, k, input_precision="ieee" if EXACT else None) * scale
    if SIZES:
        logits += _bias(size, n, first_key, N, SLOT)[None, :]
    else:
        logits = tl.where(((n < N) & (n >= first_key))[None, :], logits, float("-inf"))
    p = tl.exp(logits - tl.max(logits, axis=1)[:, None])
    return p / tl.sum(p, axis=1)[:, None]


@triton.jit
def _ranks(scores, ranks, n, ALL: tl.constexpr, PART: tl.constexpr):
    """The rank of each of n scores (0 = largest, ties by position), by counting; scores are read back from memory.

    Scores are never negative, so their bit patterns sort like integers. Adding 1 to the bits of an earlier score
    breaks ties by position.
    """
    i = tl.arange(0, ALL)
    mine = tl.load(scores + i, mask=i < n, other=-1.0).to(tl.int32, bitcast=True)
    rank = tl.zeros([ALL], tl.int32)
    for start in range(0, n, PART):
        j = start + tl.arange(0, PART)
        other = tl.load(scores + j, mask=j < n, other=-1.0).to(tl.int32, bitcast=True)
        ahead = other[None, :] + (j[None, :] < i[:, None]).to(tl.int32) > mine[:, None]
        rank += tl.sum(ahead.to(tl.int32), axis=1)
    tl.store(ranks + i, rank, mask=i < n)


@triton.jit
def _attention(
    qkv, out, scores, ranks, label, size, N, heads, scale,
    SLOT: tl.constexpr, SIZES: tl.constexpr, KEY: tl.constexpr, QUERIES: tl.constexpr, SCORE: tl.constexpr,
    RANK: tl.constexpr, EXACT: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, ALL: tl.constexpr, HEAD: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    tile, h, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    stride = 3 * WIDTH
    anchored = False
    if QUERIES > 0 or KEY:
        anchored = tl.load(label + b) >= 0
    first_key = SLOT
    if KEY:
        first_key = tl.where(anchored, 0, 1)
    if SIZES:
        size += b * (N - 1 - SLOT)
    mine = qkv + b.to(tl.int64) * N * stride + h * HEAD
    if SCORE and tile == tl.num_programs(0) - 1:
        rows = _first_rows(mine, size, first_key, N, stride, scale, SLOT, SIZES, ALL, HEAD, WIDTH, EXACT)
        m = tl.arange(0, 16)[:, None]
        row = tl.sum(tl.where(m == SLOT, rows, 0), axis=0)
        if QUERIES > 0:
            mixed = tl.sum(tl.where(m == 0, rows, 0), axis=0)
            if QUERIES == 2:
                mixed = (row + mixed) / 2
            row = tl.where(anchored, mixed, row)
        n = N - 1 - SLOT
        i = tl.arange(0, ALL)
        first = (b * heads + h) * n
        tl.store(scores + first + i - SLOT - 1, row, mask=(i > SLOT) & (i < N))
        if RANK:
            tl.debug_barrier()  # the ranks read what the whole program has just written
            _ranks(scores + first, ranks + first, n, ALL, 32)
    else:
        place = out + b.to(tl.int64) * N * WIDTH + h * HEAD
        _flash(mine, place, size, tile, first_key, N, stride, WIDTH, scale, SLOT, SIZES,
               ROWS, KEYS, HEAD, WIDTH, EXACT)  # fmt: skip


def blocks(heads: int, N: int) -> tuple[int, int, int]:
    """Queries per program, keys per step of its loop, and its warps; measured on an H200.

    Args:
        heads: Heads of all images together.
        N: Tokens per image.
    """
    return (32, 128, 4) if heads * triton.cdiv(N, 64) < 256 else (64, 64, 4)


def faster(qkv: Tensor, heads: int) -> bool:
    """Whether `attention` beats cuDNN's, whose tiles have 128 rows; measured on an H200.

    Args:
        qkv: Packed q, k, v, `[B, N, 3·D]`.
        heads: Number of heads.
    """
    B, N, _ = qkv.shape
    return 128 < N <= 192 and qkv.dtype != torch.float32 and blocks(B * heads, N)[0] == 64


def attention(
    qkv: Tensor, out: Tensor, heads: int, slot: bool = False, scores: Tensor | None = None,
    ranks: Tensor | None = None, label: Tensor | None = None, rows: QueryRows = "class", anchor_kv: bool = False,
    size: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Attention, written into `out`. Tokens are the anchor's place if there is one, the class token, then n patches.

    Args:
        qkv: Packed q, k, v, `[B, N, 3·D]`.
        out: Where to leave the result, `[B, N, D]`.
        heads: Number of heads, H.
        slot: Whether the first token is a place for the anchor.
        scores: Where to leave the patches' scores, `[B, H, n]` float32; None scores nothing.
        ranks: Where to leave their ranks within each head, `[B, H, n]` int32; None ranks nothing.
        label: The anchor's class for each image, −1 for none, `[B]` int32; None where no anchor takes part.
        rows: The query rows that scores are read from.
        anchor_kv: Whether the anchor is a key and value of the other tokens, in images that have one.
        size: Logarithm of how often each patch counts as a key, `[B, n]` float32; None counts each once.

    Returns:
        `out`.
    """
    B, N, D = out.shape
    queries, keys, warps = blocks(B * heads, N)
    nothing = out
    _attention[(triton.cdiv(N, queries) + (scores is not None), heads, B)](
        qkv, out, nothing if scores is None else scores, nothing if ranks is None else ranks,
        nothing if label is None else label, nothing if size is None else size, N, heads, (D // heads) ** -0.5,
        SLOT=int(slot), SIZES=size is not None, KEY=anchor_kv and label is not None,
        QUERIES=0 if label is None else _ROWS[rows], SCORE=scores is not None, RANK=ranks is not None,
        EXACT=out.dtype == torch.float32, ROWS=queries, KEYS=keys, ALL=triton.next_power_of_2(N), HEAD=D // heads,
        WIDTH=D, num_warps=warps, num_stages=2,
    )  # fmt: skip
    return out


def scores(
    qkv: Tensor, heads: int, ranked: bool = True, slot: bool = False, label: Tensor | None = None,
    rows: QueryRows = "class", anchor_kv: bool = False, size: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Only the scores of `attention`. In large batches this is faster: programs that only attend need fewer registers.

    Args:
        qkv: Packed q, k, v, `[B, N, 3·D]`.
        heads: Number of heads, H.
        ranked: Whether to rank the patches as well.
        slot: Whether the first token is a place for the anchor.
        label: The anchor's class for each image, −1 for none, `[B]` int32; None where no anchor takes part.
        rows: The query rows that scores are read from.
        anchor_kv: Whether the anchor is a key of the other tokens.
        size: Logarithm of how often each patch counts as a key, `[B, n]` float32; None counts each once.

    Returns:
        Scores `[B, H, n]` float32, and ranks within each head `[B, H, n]` int32, or None.
    """
    B, N, D = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    found = torch.empty(B, heads, N - 1 - slot, device=qkv.device)
    ranks = torch.empty_like(found, dtype=torch.int32) if ranked else None
    _attention[(1, heads, B)](
        qkv, qkv, found, found if ranks is None else ranks, qkv if label is None else label,
        qkv if size is None else size, N, heads, (D // heads) ** -0.5, SLOT=int(slot), SIZES=size is not None,
        KEY=anchor_kv and label is not None, QUERIES=0 if label is None else _ROWS[rows], SCORE=True, RANK=ranked,
        EXACT=qkv.dtype == torch.float32, ROWS=16, KEYS=64, ALL=triton.next_power_of_2(N), HEAD=D // heads, WIDTH=D,
        num_warps=4, num_stages=2,
    )  # fmt: skip
    return found, ranks
