"""PiToMe: tokens that resemble many others are merged, tokens that stand alone are protected.

Tran et al., "Accelerating Transformers with Spectrum-Preserving Token Merging", NeurIPS 2024. The energy of a token is
its mean resemblance to all other patches; resemblance below a margin m counts against it:

    E_i = 1/n · Σ_{j≠i} f(cos(k_i, k_j)),    f(x) = x where x ≥ m, exp(x − m) − 1 elsewhere

The 2r tokens of highest energy are dealt alternately, in falling order, into two sides of r. Every token of the first
side is merged into its most similar one of the second.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lessmore.core.condense.coreset import Condensed, gather_tokens
from lessmore.core.condense.schedule import Stage


def energy(similarity: Tensor, margin: float) -> Tensor:
    """How much each token resembles the others.

    Args:
        similarity: Cosines, `[B, n, n]`.
        margin: m, below which two tokens count as different.

    Returns:
        Energies, `[B, n]`.
    """
    near = torch.where(similarity >= margin, similarity, torch.expm1(similarity - margin))
    return (near.sum(dim=-1) - near.diagonal(dim1=-2, dim2=-1)) / similarity.shape[-1]


def merge_alike(x: Tensor, metric: Tensor, size: Tensor | None, stage: Stage, class_token: bool) -> Condensed:
    """Merge `stage.ambiguous` of the patches by size-weighted means; the class token does not take part.

    Args:
        x: Tokens, `[B, N, D]`.
        metric: What they are compared by, `[B, N, d]`.
        size: How many patches each token stands for, `[B, N]`; None if each is one.
        stage: The counts, and the margin of the block.
        class_token: Whether the first token is one.

    Returns:
        The class token, the protected patches by falling energy, then those that others were merged into.
    """
    first, r = int(class_token), stage.ambiguous
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    size = torch.ones_like(wide[..., 0]) if size is None else size
    unit = F.normalize(metric.detach()[:, first:].to(wide.dtype), dim=-1)
    similarity = unit @ unit.transpose(1, 2)
    order = energy(similarity, stage.margin).argsort(dim=1, descending=True, stable=True)
    away, home, safe = order[:, : 2 * r : 2], order[:, 1 : 2 * r : 2], order[:, 2 * r :]
    towards = gather_tokens(similarity, away).gather(2, home.unsqueeze(1).expand(-1, r, -1))
    partner = towards.argmax(dim=2) if r else away
    weighted = torch.cat([wide * size.unsqueeze(-1), size.unsqueeze(-1)], dim=-1)
    patches, pairs = weighted[:, first:], F.one_hot(partner, max(r, 1))[..., :r].to(wide.dtype)
    merged = gather_tokens(patches, home) + pairs.transpose(1, 2) @ gather_tokens(patches, away)
    out = torch.cat([weighted[:, :first], gather_tokens(patches, safe), merged], dim=1)
    places, stays = torch.arange(stage.out, device=x.device).expand(len(x), -1), torch.cat([safe, home], dim=1)
    target = torch.empty_like(order).scatter_(1, stays, places)
    target = target.scatter_(1, away, stage.out - r + partner)
    return Condensed((out[..., :-1] / out[..., -1:]).to(x.dtype), target, stage, out[..., -1], stays)
