"""Domain-aware token evaluation (section 3.4): the nearest class anchor, its attention rows, the cross-head rank."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from lessmore.config import QueryRows, Score


class Candidates(NamedTuple):
    """The class anchors that a block may choose from."""

    means: Tensor
    """[C, D]; with `rows`, [A, D] for any number A of them."""
    ready: Tensor
    """Which classes may serve, [C] bool, or [B, C] for each image of a batch."""
    rows: Tensor | None = None
    """The row of `means` that stands for each class, [B, C] int64, if images see different reservoirs; else None."""

    def tokens(self, label: Tensor) -> Tensor:
        """The anchor of one class for each image, [B] → [B, D]."""
        return self.means[label if self.rows is None else self.rows.gather(1, label.unsqueeze(1)).squeeze(1)]


class AnchorProvider(Protocol):
    """What the encoder sees of a reservoir."""

    def at(self, layer: int, summary: Tensor) -> Candidates:
        """The class anchors after a block.

        Args:
            layer: The block, counted from 0.
            summary: The batch's summary tokens after it, `[B, D]`.
        """


class Anchors(NamedTuple):
    """The anchors of a reservoir: class means [C, L, D] and which classes may serve, [C] bool."""

    means: Tensor
    ready: Tensor
    rows: Tensor | None = None
    """As in `Candidates`."""

    def at(self, layer: int, summary: Tensor) -> Candidates:
        """The class anchors after a block, the same for every batch.

        Args:
            layer: The block, counted from 0.
            summary: Not needed here.
        """
        return Candidates(self.means[:, layer], self.ready, self.rows)


class Anchor(NamedTuple):
    """The anchor chosen for each image of a batch."""

    token: Tensor
    """[B, 1, D], arbitrary where `label` is −1."""
    label: Tensor
    """Class the anchor stands for, [B] int64; −1 where no class is ready."""

    @property
    def present(self) -> Tensor:
        """[B] bool, whether an image has an anchor at all."""
        return self.label >= 0


def anchor_cosines(summary: Tensor, anchors: Candidates) -> Tensor:
    """cos(v, A_c) of summary tokens and class anchors, −∞ for classes that are not ready.

    Args:
        summary: Summary tokens, `[B, D]`.
        anchors: The class anchors.

    Returns:
        `[B, C]`.
    """
    wide = torch.promote_types(summary.dtype, torch.float32)
    cosine = F.normalize(summary.to(wide), dim=-1) @ F.normalize(anchors.means.to(wide), dim=-1).T
    if anchors.rows is not None:
        cosine = cosine.gather(1, anchors.rows)
    return cosine.masked_fill(~anchors.ready, -torch.inf)


def nearest_anchor(summary: Tensor, anchors: Candidates) -> Anchor:
    """c* = argmax_c cos(v, A_c) over the ready classes; ties go to the lowest class.

    Args:
        summary: Summary tokens, `[B, D]`.
        anchors: The class anchors.
    """
    index = anchor_cosines(summary, anchors).argmax(dim=-1)
    token = anchors.tokens(index).unsqueeze(1).to(summary.dtype)
    return Anchor(token, torch.where(anchors.ready.any(dim=-1), index, -1))


def key_bias(anchor: Anchor, keys: int, dtype: torch.dtype) -> Tensor:
    """Additive attention bias `[B, 1, 1, keys]` that masks the anchor (the first key) in images without one.

    Args:
        anchor: The anchor of each image.
        keys: Number of keys.
        dtype: Type of the bias.
    """
    # Masking keeps the shape of the batch: images with and without an anchor run in one product.
    bias = torch.zeros(len(anchor.label), 1, 1, keys, dtype=dtype, device=anchor.label.device)
    bias[..., 0] = bias[..., 0].masked_fill(~anchor.present[:, None, None], -torch.inf)
    return bias


def attention_rows(q: Tensor, k: Tensor, bias: Tensor | None = None) -> Tensor:
    """softmax(q kᵀ/√d) of the query rows given; the product in the tower's precision, the softmax in float32 at least.

    Args:
        q: Queries, `[B, H, Q, d]`.
        k: Keys, `[B, H, N, d]`.
        bias: Added to the logits, broadcast to `[B, H, Q, N]`; None adds nothing.

    Returns:
        `[B, H, Q, N]`.
    """
    logits = (q @ k.transpose(-2, -1)).to(torch.promote_types(q.dtype, torch.float32)) * q.shape[-1] ** -0.5
    return (logits if bias is None else logits + bias).softmax(dim=-1)


def mean_row(rows: Tensor, size: Tensor | None = None) -> Tensor:
    """The mean of the attention rows of all queries, `[B, H, n]`.

    Args:
        rows: Attention rows, `[B, H, N, n]`.
        size: How much each query counts, `[B, N]`; None counts all alike.
    """
    if size is None:
        return rows.mean(dim=2)
    share = size / size.sum(dim=1, keepdim=True)
    return (share.to(rows.dtype)[:, None, None] @ rows).squeeze(2)


def blend_rows(rows: QueryRows, summary: Tensor, anchored: Tensor, present: Tensor) -> Tensor:
    """Score rows from the summary's and the anchor's; images without an anchor use the summary's alone.

    The paper queries with [class token; anchor] and does not say how the two rows become one; `both` averages them.

    Args:
        rows: `anchor` or `both`.
        summary: Rows of the summary token, `[B, H, n]`.
        anchored: Rows of the anchor, `[B, H, n]`.
        present: Which images have an anchor, `[B]` bool.

    Returns:
        `[B, H, n]`.
    """
    mixed = anchored if rows == "anchor" else (summary + anchored) / 2
    return torch.where(present[:, None, None], mixed, summary)


def head_mean(rows: Tensor) -> Tensor:
    """S_i, the attention averaged over heads: [B, H, n] → [B, n]."""
    return rows.mean(dim=1)


def rank_sum(rows: Tensor) -> Tensor:
    """H · S_i^head: the rank of each token within each head (0 = most attended), summed over heads, [B, n] int64.

    Summed rather than averaged, so that comparing two tokens is exact; equal attention goes to the lower index.
    """
    # A permutation's inverse by scatter; a second argsort would cost as much as the first.
    order = rows.argsort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(rows.shape[-1], device=rows.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, ranks).sum(dim=1)


def token_order(rows: Tensor, score: Score) -> Tensor:
    """Patch positions from the most to the least important, `[B, n]` int64.

    Args:
        rows: Score rows, `[B, H, n]`.
        score: `rank` sorts by cross-head rank, then head-mean attention, then position; `mean` by head-mean attention,
            then position.
    """
    # Two stable sorts, the second key first, order by (rank, attention, position) without packing them into one number.
    order = head_mean(rows).argsort(dim=-1, descending=True, stable=True)
    if score == "mean":
        return order
    ranked = rank_sum(rows).gather(-1, order).argsort(dim=-1, stable=True)
    return order.gather(-1, ranked)
