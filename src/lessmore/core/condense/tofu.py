"""ToFu: of similar tokens one is dropped in early blocks; in later ones both become one that is as long as the longer.

Kim et al., "Token Fusion: Bridging the Gap between Token Pruning and Token Merging", WACV 2024. Pairs are ToMe's. A
block that responds to a mean of two tokens quite unlike the mean of its responses is better served by one of the two;
early blocks are of this kind. Where tokens are merged, their mean is stretched, since it is shorter than they are:

    u = Σ s_i x_i over tokens x_i of sizes s_i,    merged = max_i ‖x_i‖ · u/‖u‖
"""

from __future__ import annotations

import torch
from torch import Tensor

from lessmore.core.condense.coreset import Condensed, gather_tokens
from lessmore.core.condense.schedule import Stage
from lessmore.core.condense.tome import Matching, homes, match, merge, targets


def fuse_pairs(x: Tensor, metric: Tensor, size: Tensor | None, stage: Stage, class_token: bool) -> Condensed:
    """Drop `stage.pruned` of the tokens, or merge `stage.ambiguous` of them into others.

    Args:
        x: Tokens, `[B, N, D]`.
        metric: What they are compared by, `[B, N, d]`.
        size: How many patches each token stands for, `[B, N]`; None if each is one.
        stage: The counts; a block either drops or merges.
        class_token: Whether the first token is one; it is neither dropped nor merged.

    Returns:
        Tokens in ToMe's order.
    """
    matching = match(metric, stage.ambiguous + stage.pruned, class_token)
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    size = torch.ones_like(wide[..., 0]) if size is None else size
    target, first = targets(matching, x.shape[1]), int(class_token)
    if stage.pruned:
        target = target.scatter(1, 2 * matching.away, -1)
        tokens, size = _left(wide, matching), _left(size.unsqueeze(-1), matching)[..., 0]
    else:
        tokens, size = _stretched(wide, size, matching)
    target = torch.where(target < 0, -1, target - first)[:, first:]
    return Condensed(tokens.to(x.dtype), target, stage, size, homes(matching, x.shape[1])[:, first:] - first)


def _left(x: Tensor, matching: Matching) -> Tensor:
    """Tokens [B, N, D] that are not matched away, [B, N − r, D]."""
    return torch.cat([gather_tokens(x[:, ::2], matching.stay), x[:, 1::2]], dim=1)


def _stretched(x: Tensor, size: Tensor, matching: Matching) -> tuple[Tensor, Tensor]:
    """Merged tokens [B, N − r, D] and their sizes [B, N − r]."""
    merged = merge(torch.cat([x * size.unsqueeze(-1), size.unsqueeze(-1)], dim=-1), matching)
    length = x.norm(dim=-1, keepdim=True)
    away = gather_tokens(length[:, ::2], matching.away)[..., 0]
    home = matching.stay.shape[1] + matching.partner
    longest = _left(length, matching)[..., 0].scatter_reduce(1, home, away, "amax")
    total = merged[..., :-1]
    return total * (longest / total.norm(dim=-1).clamp_min(1e-12)).unsqueeze(-1), merged[..., -1]
