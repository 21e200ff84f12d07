"""ATS: keep the tokens at which evenly spaced points hit the cumulative scores; how many depends on the image.

The number of points is the cap. Where attention is peaked, many points hit the same token and fewer tokens stay. So
shapes depend on the data: a batch is as long as its longest image, and the others are padded with tokens of size 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lessmore.core.condense.coreset import Condensed, gather_tokens
from lessmore.core.condense.schedule import Stage

LEAST = 8
"""Tokens that always stay, the class token included."""


def significance(received: Tensor, v: Tensor) -> Tensor:
    """A token's score: the attention it receives, summed over heads, times the length of its value.

    Absent tokens receive none, so their score is 0.

    Args:
        received: Attention received per head, `[B, H, n]`.
        v: Values, `[B, H, n, d]`.

    Returns:
        `[B, n]`.
    """
    length = torch.linalg.vector_norm(v.to(received.dtype), dim=(1, 3))
    return received.sum(dim=1) * length


def hit(score: Tensor, points: int) -> Tensor:
    """Which tokens are nearest to one of the points.

    The heights are the cumulative scores in ascending order, divided by their sum. The points are spread evenly from
    the lowest height above 0 to 1. Ties go to the lower height; a score of 0 is never hit.

    Args:
        score: Scores ≥ 0, `[B, n]`.
        points: Number of points.

    Returns:
        `[B, n]` bool.
    """
    ascending, order = score.sort(dim=1, stable=True)
    height = ascending.cumsum(dim=1)
    height = height / height[:, -1:].clamp_min(torch.finfo(height.dtype).tiny)
    start = height.masked_fill(height <= 0, 1.0).amin(dim=1, keepdim=True)
    grid = start + (1 - start) * torch.linspace(1, 0, points, dtype=height.dtype, device=height.device)
    nearest = (grid.unsqueeze(2) - height.unsqueeze(1)).abs().argmin(dim=2)
    return torch.zeros_like(score, dtype=torch.bool).scatter_(1, order.gather(1, nearest), True)


def hit_tokens(score: Tensor, points: int, least: int) -> Tensor:
    """The tokens that are hit, or the best ones if fewer than `least` are.

    Args:
        score: Scores ≥ 0, `[B, n]`.
        points: Number of points.
        least: Tokens that stay at least.

    Returns:
        `[B, n]` bool.
    """
    by_hit = hit(score, points)
    top = score.sort(dim=1, stable=True).indices[:, -least:]
    by_score = torch.zeros_like(by_hit).scatter_(1, top, True)
    return torch.where(by_hit.sum(dim=1, keepdim=True) < least, by_score, by_hit)


def sample_tokens(x: Tensor, score: Tensor, size: Tensor | None, stage: Stage) -> Condensed:
    """Keep the class token, if there is one, and the patches that are hit. Tokens keep their order.

    Args:
        x: Tokens, `[B, N, D]`.
        score: Scores of the patches, `[B, n]`.
        size: 0 for padding and 1 for other tokens, `[B, N]`; None if there is no padding.
        stage: The cap, `keep`.
    """
    n, first = score.shape[1], x.shape[1] - score.shape[1]
    keep = hit_tokens(score.detach(), stage.keep, min(LEAST - first, stage.keep, n))
    if size is not None:
        keep &= size[:, first:] > 0
    counts = keep.sum(dim=1, keepdim=True)
    out = int(counts.max())
    order = keep.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :out]
    tokens = torch.cat([x[:, :first], gather_tokens(x[:, first:], order)], dim=1)
    present = torch.arange(-first, out, device=x.device) < counts
    taken = Stage(patches=n, keep=out, ambiguous=0, pruned=n - out, centres=0, fused=0)
    target = torch.where(keep, keep.cumsum(dim=1) - 1, -1)
    return Condensed(tokens, target, taken, None if bool(present.all()) else present.to(score.dtype))
