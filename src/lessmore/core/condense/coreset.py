"""Token condensation (section 3.4, Algorithm 1, and the supplement): prune, then merge around coreset centres."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lessmore.config import Condensation, Merge
from lessmore.core.condense.schedule import Stage


class Condensed(NamedTuple):
    """The tokens after condensing, and where each token before it went."""

    tokens: Tensor
    """[B, out, D]: kept ones in order of importance, then the merged ones, then the fused one."""
    target: Tensor
    """[B, n] int64: for each patch before, its position among the patches after; −1 if it was dropped."""
    stage: Stage
    """The counts."""
    size: Tensor | None = None
    """How many patches each of `tokens` stands for, [B, out]; None if nobody asks."""
    centre: Tensor | None = None
    """[B, out]: the patch, by its position among those that came in, that each of `tokens` was formed around."""


def gather_tokens(x: Tensor, index: Tensor) -> Tensor:
    """Rows of x by position.

    Args:
        x: `[B, n, D]`.
        index: Positions, `[B, k]` int64.

    Returns:
        `[B, k, D]`.
    """
    return x.gather(1, index.unsqueeze(-1).expand(-1, -1, x.shape[-1]))


def condense(
    x: Tensor, order: Tensor, attention: Tensor, stage: Stage, config: Condensation, size: Tensor | None = None
) -> Condensed:
    """f_merge ∘ f_prune: the first `keep` stay, the next are merged into centres, the last are fused or dropped.

    Args:
        x: Patch tokens after attention, `[B, n, D]`.
        order: Positions, most important first, `[B, n]` int64.
        attention: Attention of each patch, averaged over heads, `[B, n]`.
        stage: The counts.
        config: How tokens are merged and pruned.
        size: How many patches each token stands for, `[B, n]`; merged tokens are then means of patches. None makes
            them means of tokens.
    """
    # All counts are known before anything runs, so shapes are static and whole batches condense alike.
    kept, ambiguous, pruned = order.split([stage.keep, stage.ambiguous, stage.pruned], dim=1)
    tokens, grown = [gather_tokens(x, kept)], [kept]
    slots = [torch.arange(stage.keep, device=x.device).expand(len(x), -1)]
    if stage.centres:
        weight = None if size is None else size.gather(1, ambiguous)
        merged, cluster, centres = merge_coreset(gather_tokens(x, ambiguous), stage.centres, config.merge, weight)
        tokens.append(merged)
        grown.append(ambiguous.gather(1, centres))
        slots.append(stage.keep + cluster)
    if stage.fused:
        tokens.append(fuse(gather_tokens(x, pruned), attention.gather(1, pruned)))
        grown.append(pruned[:, :1])
    # `slots` follows the order of importance; scattering by `order` puts it back to the order of the patches.
    slots.append(torch.full_like(pruned, stage.out - 1 if stage.fused else -1))
    target = torch.empty_like(order).scatter_(1, order, torch.cat(slots, dim=1))
    carried = None if size is None else carry(size, target, stage)
    centre = torch.cat(grown, dim=1) if config.place == "centre" else None
    return Condensed(torch.cat(tokens, dim=1), target, stage, carried, centre)


def carry(weight: Tensor, target: Tensor, stage: Stage) -> Tensor:
    """Weights of the patches, summed over the tokens they went into.

    Args:
        weight: `[B, n]`.
        target: As in `Condensed`, `[B, n]`.
        stage: The counts.

    Returns:
        `[B, out]`.
    """
    out = weight.new_zeros(len(weight), stage.out)
    return out.scatter_add_(1, target.clamp_min(0), weight.masked_fill(target < 0, 0))


def fuse(x: Tensor, attention: Tensor) -> Tensor:
    """The pruned tokens as one, their sum weighted by attention, as in EViT.

    Args:
        x: The pruned tokens, `[B, p, D]`.
        attention: Their attention, `[B, p]`.

    Returns:
        `[B, 1, D]`.
    """
    return attention.to(x.dtype).unsqueeze(1) @ x


def squared_distances(x: Tensor) -> Tensor:
    """Squared Euclidean distances [B, A, A] between tokens [B, A, D], by matrix product in float32 at least.

    The mean is subtracted first. That changes no distance, but a large common part would cost digits by cancellation.
    """
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    x = x - x.mean(dim=1, keepdim=True)
    gram = x @ x.transpose(1, 2)
    square = gram.diagonal(dim1=1, dim2=2)
    distance = (square.unsqueeze(1) + square.unsqueeze(2) - 2 * gram).clamp_min(0)
    # Rounding leaves a small distance between equal tokens; remove it.
    noise = 8 * torch.finfo(x.dtype).eps * square.amax(dim=1)
    return distance.masked_fill(distance <= noise[:, None, None], 0)


def k_centres(distance: Tensor, K: int) -> Tensor:
    """Greedy k-centre: start with the most important token, then always take the one farthest from the centres so far.

    Args:
        distance: Between tokens in order of importance, `[B, A, A]`.
        K: Number of centres, at most A.

    Returns:
        Positions, all different, `[B, K]` int64.
    """
    # Only distances to the nearest centre so far are needed, so a step costs A comparisons, not A·K.
    centres = torch.zeros(len(distance), 1, dtype=torch.int64, device=distance.device)
    nearest = distance[:, 0]
    for _ in range(1, K):
        chosen = centres.shape[1]
        # A centre has distance 0 to itself, as has its duplicate; −1 keeps a centre from being chosen twice.
        farthest = nearest.scatter(1, centres, -torch.ones_like(nearest[:, :chosen])).argmax(dim=1, keepdim=True)
        nearest = torch.minimum(nearest, gather_tokens(distance, farthest).squeeze(1))
        centres = torch.cat([centres, farthest], dim=1)
    return centres


class Merged(NamedTuple):
    """What became of A ambiguous tokens."""

    tokens: Tensor
    """[B, K, D]"""
    cluster: Tensor
    """[B, A]: the one of `tokens` that each went into."""
    centres: Tensor
    """[B, K]: the ambiguous token that each of `tokens` was formed around."""


def merge_coreset(x: Tensor, K: int, merge: Merge, size: Tensor | None = None) -> Merged:
    """Merge the ambiguous tokens into K.

    Args:
        x: Ambiguous tokens in order of importance, `[B, A, D]`.
        K: Number of centres.
        merge: `mean`, or weights 1/distance from the centre.
        size: How much each token counts, `[B, A]`; None counts each once.
    """
    squared = squared_distances(x)
    centres = k_centres(squared, K)
    to_centre = gather_tokens(squared, centres)  # [B, K, A]
    cluster = to_centre.argmin(dim=1)
    own = torch.arange(K, device=x.device).expand(len(x), -1)
    cluster = cluster.scatter(1, centres, own)  # a centre belongs to its own cluster even if another one is equal
    weight = (cluster.unsqueeze(1) == own.unsqueeze(-1)).to(squared.dtype)
    if merge == "inverse_distance":
        distance = to_centre.sqrt()
        weight = weight * torch.where(distance > 0, 1 / distance, 1.0)
    if size is not None:
        weight = weight * size.unsqueeze(1)
    weight = weight / weight.sum(dim=2, keepdim=True)
    return Merged(weight.to(x.dtype) @ x, cluster, centres)
