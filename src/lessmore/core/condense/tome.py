"""ToMe's bipartite matching: similar tokens become one, weighted by how many patches each stands for."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lessmore.core.condense.coreset import Condensed, gather_tokens
from lessmore.core.condense.schedule import Stage


class Matching(NamedTuple):
    """Which tokens at even places, the class token among them, are merged into tokens at odd places."""

    stay: Tensor
    """[B, a − r] int64: even tokens that remain, numbered among the even ones, in their new order."""
    away: Tensor
    """[B, r]: even tokens that are merged, the most similar pair first."""
    partner: Tensor
    """[B, r]: the odd token each of them is merged into, numbered among the odd ones."""


def match(metric: Tensor, r: int, class_token: bool) -> Matching:
    """The r most similar pairs of an even token and the odd token most similar to it.

    The class token is never merged. If there is one, the remaining even tokens keep their order; otherwise they are
    ordered by similarity, as published.

    Args:
        metric: What tokens are compared by, `[B, N, d]`.
        r: Pairs to find.
        class_token: Whether the first token is one.
    """
    unit = F.normalize(metric.detach().to(torch.promote_types(metric.dtype, torch.float32)), dim=-1)
    similarity = unit[:, ::2] @ unit[:, 1::2].transpose(1, 2)
    if class_token:
        similarity[:, 0] = -torch.inf
    best, partner = similarity.max(dim=-1)
    order = best.argsort(dim=-1, descending=True, stable=True)
    away, stay = order[:, :r], order[:, r:]
    return Matching(stay.sort(dim=1).values if class_token else stay, away, partner.gather(1, away))


def merge(x: Tensor, matching: Matching) -> Tensor:
    """Add matched tokens up.

    Args:
        x: Tokens, `[B, N, D]`.
        matching: The pairs.

    Returns:
        `[B, N − r, D]`: the even tokens that stay, then the odd ones.
    """
    even, odd = x[:, ::2], x[:, 1::2]
    pairs = F.one_hot(matching.partner, odd.shape[1]).to(x.dtype)
    return torch.cat(
        [gather_tokens(even, matching.stay), odd + pairs.transpose(1, 2) @ gather_tokens(even, matching.away)], dim=1
    )


def targets(matching: Matching, N: int) -> Tensor:
    """Where each token went: its position among those that `merge` returns, `[B, N]` int64.

    Args:
        matching: The pairs.
        N: Tokens before merging.
    """
    stay, away, partner = matching
    left = stay.shape[1]
    target = stay.new_empty(len(stay), N)
    target[:, 1::2] = torch.arange(left, left + N // 2, device=stay.device)
    target.scatter_(1, 2 * stay, torch.arange(left, device=stay.device).expand_as(stay))
    return target.scatter_(1, 2 * away, left + partner)


def homes(matching: Matching, N: int) -> Tensor:
    """Which token each one that `merge` returns was, `[B, N − r]` int64: the reverse of `targets`.

    Args:
        matching: The pairs.
        N: Number of tokens before merging.
    """
    odd = torch.arange(1, N, 2, device=matching.stay.device)
    return torch.cat([2 * matching.stay, odd.expand(len(matching.stay), -1)], dim=1)


def merge_pairs(x: Tensor, metric: Tensor, size: Tensor | None, stage: Stage, class_token: bool) -> Condensed:
    """Merge `stage.ambiguous` of the tokens into others, by size-weighted means.

    Args:
        x: Tokens, `[B, N, D]`.
        metric: What they are compared by, `[B, N, d]`.
        size: How many patches each token stands for, `[B, N]`; None if each is one.
        stage: The counts.
        class_token: Whether the first token is one; it is never merged.

    Returns:
        Tokens in the order of `merge`, with their sizes.
    """
    matching = match(metric, stage.ambiguous, class_token)
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    size = torch.ones_like(wide[..., 0]) if size is None else size
    merged = merge(torch.cat([wide * size.unsqueeze(-1), size.unsqueeze(-1)], dim=-1), matching)
    tokens, size = merged[..., :-1] / merged[..., -1:], merged[..., -1]
    first, N = int(class_token), x.shape[1]
    target, centre = targets(matching, N), homes(matching, N)
    return Condensed(tokens.to(x.dtype), target[:, first:] - first, stage, size, centre[:, first:] - first)
