"""A linear layer with everything around it in a block: LayerNorm before, activation and residual after, in one launch.

Parallel over tiles of rows and columns of the product; tiles are small, so that even one image fills the device. With
small batches the number of launches is the limit, hence the fusion. LayerNorm is folded in by algebra: with
W' = W·diag(γ), LN(x) W = r (x W' − m s) + β W, where m and r are the row's mean and inverse deviation, and s is the row
sum of W'. A kernel that writes a row to be normalised also writes its `Sums`, so that the row is read only once.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

PREFETCH = not triton.knobs.runtime.interpret
"""Whether to prefetch the next weights; interpreted, there is no cache to fill."""
CODES = {"none": 0, "quick_gelu": 1, "gelu": 2, "gelu_tanh": 3, "relu": 4}


Sums = Tensor
"""Sum and sum of squares of each row of a tensor [rows, D], in parts that the reader adds: [2, rows, parts] float32."""


class Packed(NamedTuple):
    """Weights of norm + linear, ready for the kernel."""

    weight: Tensor
    """[N, K], the norm's scale multiplied in."""
    bias: Tensor
    """[N] float32, the norm's shift multiplied in."""
    sums: Tensor
    """[N] float32: row sums of `weight`."""
    eps: float
    """Of the norm; negative where there is none."""


def pack_weights(linear: nn.Linear, norm: nn.Module | None = None, scale: Tensor | None = None) -> Packed:
    """Fold a LayerNorm before and a LayerScale after a linear layer into its weights, computed in float64.

    Args:
        linear: The layer, K → N.
        norm: The LayerNorm before it; None or any other module is no norm.
        scale: The LayerScale after it, `[N]`; None is no scale.
    """
    weight = linear.weight.detach().double()
    bias = torch.zeros_like(weight[:, 0]) if linear.bias is None else linear.bias.detach().double()
    if scale is not None:
        weight, bias = weight * scale.detach().double()[:, None], bias * scale.detach().double()
    eps = -1.0
    if isinstance(norm, nn.LayerNorm):
        bias = bias + weight @ norm.bias.detach().double()
        weight, eps = weight * norm.weight.detach().double(), norm.eps
    weight = weight.to(linear.weight.dtype).contiguous()
    return Packed(weight, bias.float(), weight.double().sum(dim=1).float(), eps)


@triton.jit
def activate(x, CODE: tl.constexpr):
    """An activation, elementwise.

    Args:
        x: Values in float32.
        CODE: A value of `CODES`.
    """
    if CODE == 1:
        x = x * tl.sigmoid(1.702 * x)
    if CODE == 2:
        x = 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))
    if CODE == 3:
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        x = x * tl.sigmoid(2 * inner)
    if CODE == 4:
        x = tl.maximum(x, 0)
    return x


@triton.jit
def _fetch(ahead, lines, LINES: tl.constexpr):
    """Prefetch the cache lines that the next launch will read into L2."""
    program = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    i = program * LINES + tl.arange(0, LINES)
    address = tl.where(i < lines, ahead.to(tl.int64) + i.to(tl.int64) * 128, ahead.to(tl.int64))
    tl.inline_asm_elementwise(
        "{ prefetch.global.L2 [$1]; mov.u32 $0, 0; }", "=r,l", [address], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def _linear(
    x, weight, bias, columns, residual, y, moments, emitted, rows, N, K, stride_x, stride_r, stride_y,
    stride_m, stride_p, parts, stride_e, eps, ahead, lines,
    LINES: tl.constexpr, NORM: tl.constexpr, ACTIVATION: tl.constexpr, RESIDUAL: tl.constexpr, EMIT: tl.constexpr,
    PARTS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    n = tl.program_id(0) * COLS + tl.arange(0, COLS)
    k = tl.arange(0, DEPTH)
    if LINES > 0:
        _fetch(ahead, lines, LINES)
    result = tl.zeros([ROWS, COLS], tl.float32)
    for start in range(0, K, DEPTH):
        here = (start + k) < K
        a = tl.load(x + m[:, None] * stride_x + (start + k)[None, :], mask=(m < rows)[:, None] & here[None, :], other=0)
        w = tl.load(weight + n[None, :] * K + (start + k)[:, None], mask=(n < N)[None, :] & here[:, None], other=0)
        result = tl.dot(a, w, result, input_precision="ieee" if EXACT else None)
    if NORM:
        i = tl.arange(0, PARTS)
        place = moments + m[:, None] * stride_p + i[None, :]
        known = (m < rows)[:, None] & (i < parts)[None, :]
        mean = tl.sum(tl.load(place, mask=known, other=0), axis=1) / K
        square = tl.sum(tl.load(place + stride_m, mask=known, other=0), axis=1) / K
        rise = tl.rsqrt(tl.maximum(square - mean * mean, 0) + eps)
        result = rise[:, None] * (result - mean[:, None] * tl.load(columns + n, mask=n < N, other=0)[None, :])
    result = activate(result + tl.load(bias + n, mask=n < N, other=0)[None, :], ACTIVATION)
    inside = (m < rows)[:, None] & (n < N)[None, :]
    if RESIDUAL:
        result += tl.load(residual + m[:, None] * stride_r + n[None, :], mask=inside, other=0).to(tl.float32)
    written = result.to(y.dtype.element_ty)
    tl.store(y + m[:, None] * stride_y + n[None, :], written, mask=inside)
    if EMIT:
        value = tl.where(inside, written.to(tl.float32), 0.0)
        spot = emitted + m * tl.num_programs(0) + tl.program_id(0)
        tl.store(spot, tl.sum(value, axis=1), mask=m < rows)
        tl.store(spot + stride_e, tl.sum(value * value, axis=1), mask=m < rows)


class Tiles(NamedTuple):
    """How a product is tiled."""

    rows: int
    cols: int
    depth: int
    warps: int
    stages: int


def product_tiles(rows: int, N: int, K: int) -> Tiles:
    """Tiles that keep all multiprocessors busy with few rows; measured on an H200.

    Args:
        rows: Rows of the result.
        N: Columns of the result.
        K: Length of the products.
    """
    if rows <= 16:
        return Tiles(16, 32, 128, 4, 4)
    if N >= 1536:
        return Tiles(64, 128, 64, 8, 4)
    return Tiles(64, 32, 128, 4, 5 if K >= 1536 else 3)


def parts(rows: int, N: int, K: int) -> int:
    """Number of parts in the `Sums` that `linear` emits.

    Args:
        rows: Rows of the result.
        N: Columns of the result.
        K: Length of the products.
    """
    return triton.cdiv(N, product_tiles(rows, N, K).cols)


def linear(
    x: Tensor, packed: Packed, y: Tensor, activation: str = "none", residual: Tensor | None = None,
    sums: Sums | None = None, emit: Sums | None = None, ahead: Packed | None = None, cut: Tiles | None = None,
) -> Tensor:  # fmt: skip
    """y = act(norm(x) Wᵀ + b) + residual; the rows of x, y and residual may be strided.

    Args:
        x: Input, `[rows, K]`.
        packed: Weights of norm and linear layer.
        y: Where to leave the result, `[rows, N]`.
        activation: A key of `CODES`.
        residual: Added to the result, `[rows, N]`; None adds nothing.
        sums: Sums of the rows of x; needed if there is a norm.
        emit: Where to leave the sums of the rows of y; None computes none.
        ahead: Weights of the next product, to prefetch into the L2 cache.
        cut: How to tile the product; None takes `product_tiles`.

    Returns:
        `y`.
    """
    rows, K = x.shape
    N = len(packed.weight)
    cut = cut or product_tiles(rows, N, K)
    extra = y if residual is None else residual
    moments = packed.bias.view(1, 1, -1) if sums is None else sums
    emitted = packed.bias if emit is None else emit
    grid = triton.cdiv(N, cut.cols), triton.cdiv(rows, cut.rows)
    later = packed.weight if ahead is None else ahead.weight
    lines = 0 if ahead is None or not PREFETCH else later.numel() * later.element_size() // 128
    _linear[grid](
        x, packed.weight, packed.bias, packed.sums, extra, y, moments, emitted, rows, N, K, x.stride(0),
        extra.stride(0), y.stride(0), moments.stride(0), moments.stride(1), moments.shape[2], emitted.stride(0),
        packed.eps, later, lines, LINES=triton.next_power_of_2(triton.cdiv(lines, grid[0] * grid[1])) if lines else 0,
        NORM=packed.eps >= 0, ACTIVATION=CODES[activation], RESIDUAL=residual is not None,
        EMIT=emit is not None, PARTS=triton.next_power_of_2(moments.shape[2]) if packed.eps >= 0 else 1,
        ROWS=cut.rows, COLS=cut.cols, DEPTH=cut.depth, EXACT=x.dtype == torch.float32,
        num_warps=cut.warps, num_stages=cut.stages,
    )  # fmt: skip
    return y
