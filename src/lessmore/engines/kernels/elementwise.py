"""Small kernels on rows: patches from pixels, embedding, LayerNorm, activation, and logits from pooled rows.

Rows are independent, so programs are parallel over rows (for logits also over tiles of classes) and hold a whole row in
registers. Each kernel joins operations between two matrix products, which would otherwise be several launches and
several trips of the same row through memory.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from lessmore.engines.kernels.linear import CODES, Sums, activate


@triton.jit
def _unfold(pixels, y, side, grid, P: tl.constexpr, AREA: tl.constexpr, LENGTH: tl.constexpr):
    patch, c, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i = tl.arange(0, AREA)
    here = i < P * P
    line = (patch // grid) * P + i // P
    place = ((b * 3 + c) * side + line) * side + (patch % grid) * P + i % P
    values = tl.load(pixels + place, mask=here, other=0)
    tl.store(y + (b * grid * grid + patch) * LENGTH + c * P * P + i, values, mask=here)


def unfold(pixels: Tensor, y: Tensor, patch: int) -> Tensor:
    """Cut images into patches, with values in the order of a convolution's weight.

    Args:
        pixels: Images, `[B, 3, S, S]`.
        y: Where to leave the patches, `[B·n, 3·patch²]`.
        patch: Side of a patch.

    Returns:
        `y`.
    """
    B, _, side, _ = pixels.shape
    grid = side // patch
    area = triton.next_power_of_2(patch * patch)
    _unfold[(grid * grid, 3, B)](pixels, y, side, grid, P=patch, AREA=area, LENGTH=y.shape[1], num_warps=2)
    return y


@triton.jit
def _embed(
    patches, class_embed, positions, weight, bias, y, sums, stride_s, tokens, D, eps,
    SLOT: tl.constexpr, CLASS: tl.constexpr, NORM: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    i, b = tl.program_id(0), tl.program_id(1)
    d = tl.arange(0, WIDTH)
    here = d < D
    n = tokens - CLASS
    x = tl.zeros([WIDTH], tl.float32)
    if i >= SLOT:
        token = i - SLOT
        if CLASS and token == 0:
            x = tl.load(class_embed + d, mask=here, other=0).to(tl.float32)
        else:
            x = tl.load(patches + (b * n + token - CLASS) * D + d, mask=here, other=0).to(tl.float32)
        x = x + tl.load(positions + token * D + d, mask=here, other=0).to(tl.float32)
    if NORM:
        x = x.to(y.dtype.element_ty).to(tl.float32)
        mean = tl.sum(x, axis=0) / D
        centred = tl.where(here, x - mean, 0.0)
        rise = tl.rsqrt(tl.sum(centred * centred, axis=0) / D + eps)
        x = centred * rise * tl.load(weight + d, mask=here, other=0).to(tl.float32)
        x += tl.load(bias + d, mask=here, other=0).to(tl.float32)
    row = b.to(tl.int64) * (tokens + SLOT) + i
    written = tl.where(here, x, 0.0).to(y.dtype.element_ty)
    tl.store(y + row * D + d, written, mask=here)
    value = written.to(tl.float32)
    tl.store(sums + row, tl.sum(value, axis=0))
    tl.store(sums + stride_s + row, tl.sum(value * value, axis=0))


def embed(
    patches: Tensor, class_embed: Tensor | None, positions: Tensor, norm: nn.Module, y: Tensor, sums: Sums
) -> Tensor:
    """Tokens from embedded patches: class token in front, positions added, the first LayerNorm applied.

    Args:
        patches: Embedded patches, `[B·n, D]`.
        class_embed: The class token, `[D]`; None if the tower has none.
        positions: Positions, `[N, D]`.
        norm: The LayerNorm before the first block; any other module is no norm.
        y: Where to leave the tokens, `[B, N, D]`, or `[B, 1 + N, D]` with the anchor's place in front, which is
            filled with finite values.
        sums: Where to leave the sums of the rows, `[2, rows, 1]`.

    Returns:
        `y`.
    """
    B, total, D = y.shape
    layer = norm if isinstance(norm, nn.LayerNorm) else None
    first = positions if class_embed is None else class_embed
    affine = (positions, positions) if layer is None else (layer.weight, layer.bias)
    _embed[(total, B)](
        patches, first, positions, *affine, y, sums, sums.stride(0), len(positions), D,
        0.0 if layer is None else layer.eps, SLOT=total - len(positions), CLASS=int(class_embed is not None),
        NORM=layer is not None, WIDTH=triton.next_power_of_2(D), num_warps=4,
    )  # fmt: skip
    return y


@triton.jit
def _add_norm(
    x, delta, lead, weight, bias, total, y, rows, tokens, D, eps,
    ADD: tl.constexpr, LEAD: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, WIDTH)
    inside = (m < rows)[:, None] & (d < D)[None, :]
    here, place = inside, m[:, None] * D + d[None, :]
    if LEAD:
        image = m // tokens
        first = (m % tokens == 0)[:, None]
        here, place = inside & ~first, (m - image - 1)[:, None] * D + d[None, :]
    value = tl.load(x + place, mask=here, other=0).to(tl.float32)
    if ADD:
        added = (value + tl.load(delta + place, mask=here, other=0).to(tl.float32)).to(x.dtype.element_ty)
        tl.store(total + place, added, mask=here)
        value = added.to(tl.float32)
    if LEAD:
        value += tl.load(lead + image[:, None] * D + d[None, :], mask=inside & first, other=0).to(tl.float32)
    mean = tl.sum(value, axis=1) / D
    centred = tl.where((d < D)[None, :], value - mean[:, None], 0.0)
    rise = tl.rsqrt(tl.sum(centred * centred, axis=1) / D + eps)
    scale = tl.load(weight + d, mask=d < D, other=0).to(tl.float32)
    shift = tl.load(bias + d, mask=d < D, other=0).to(tl.float32)
    result = centred * rise[:, None] * scale[None, :] + shift[None, :]
    tl.store(y + m[:, None] * D + d[None, :], result.to(y.dtype.element_ty), mask=inside)


def add_norm(x: Tensor, delta: Tensor | None, norm: nn.LayerNorm, lead: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """A residual sum and its LayerNorm; all tensors are contiguous.

    Args:
        x: The residual stream, `[..., D]`; it stays as it is.
        delta: What to add, of the same shape; None adds nothing.
        norm: The LayerNorm.
        lead: A row per image, `[B, 1, D]`, that is normalised as well and put before the image's rows.

    Returns:
        x + delta, and its norm: of the same shape, or `[B, 1 + N, D]` with `lead`.
    """
    D = x.shape[-1]
    y = torch.empty_like(x) if lead is None else x.new_empty(len(x), 1 + x.shape[1], D)
    total, rows, lines = x if delta is None else torch.empty_like(x), y.numel() // D, 4
    _add_norm[(triton.cdiv(rows, lines),)](
        x, x if delta is None else delta, x if lead is None else lead, norm.weight, norm.bias, total, y, rows,
        y.shape[-2], D, norm.eps, ADD=delta is not None, LEAD=lead is not None, WIDTH=triton.next_power_of_2(D),
        ROWS=lines, num_warps=4,
    )  # fmt: skip
    return total, y


@triton.jit
def _activation(x, size, CODE: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = activate(tl.load(x + i, mask=i < size, other=0).to(tl.float32), CODE)
    tl.store(x + i, value.to(x.dtype.element_ty), mask=i < size)


def activation(x: Tensor, name: str) -> Tensor:
    """Apply an activation in place.

    Args:
        x: A contiguous tensor.
        name: A key of `CODES`.

    Returns:
        `x`.
    """
    block = 4096
    _activation[(triton.cdiv(x.numel(), block),)](x, x.numel(), CODE=CODES[name], BLOCK=block, num_warps=4)
    return x


@triton.jit
def _logits(
    pooled, text, feature, logits, C, E, scale, CLASSES: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    t, b = tl.program_id(0), tl.program_id(1)
    e = tl.arange(0, WIDTH)
    value = tl.load(pooled + b * E + e, mask=e < E, other=0).to(tl.float32)
    value = value / tl.maximum(tl.sqrt(tl.sum(value * value, axis=0)), 1e-12)
    if t == 0:
        tl.store(feature + b * E + e, value, mask=e < E)
    c = t * CLASSES + tl.arange(0, CLASSES)
    here = (c < C)[:, None] & (e < E)[None, :]
    rows = tl.load(text + c[:, None] * E + e[None, :], mask=here, other=0).to(tl.float32)
    tl.store(logits + b * C + c, scale * tl.sum(rows * value[None, :], axis=1), mask=c < C)


def logits(pooled: Tensor, text: Tensor, scale: float, feature: Tensor, out: Tensor) -> Tensor:
    """Normalise pooled features and compare them with the class embeddings.

    Args:
        pooled: Pooled features, `[B, E]`.
        text: Class embeddings, `[C, E]`.
        scale: The logits' scale.
        feature: Where to leave the normalised features, `[B, E]` float32.
        out: Where to leave the zero-shot logits, `[B, C]` float32.

    Returns:
        `out`.
    """
    B, C = out.shape
    E = pooled.shape[1]
    block = 8
    _logits[(triton.cdiv(C, block), B)](
        pooled, text, feature, out, C, E, scale, CLASSES=block, WIDTH=triton.next_power_of_2(E), num_warps=4
    )
    return out
