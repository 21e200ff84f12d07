"""Logits self-correction (section 3.5): the stored tokens as a second, token-level classifier."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lessmore.config import Adaptation, Domain, LayerWeights
from lessmore.core.reservoir import Reservoir
from lessmore.core.token_mean import cosine


def layer_weights(L: int, beta: float, rule: LayerWeights, like: Tensor) -> Tensor:
    """P, one weight per layer, summing to 1: [L], in the precision and on the device of `like`.

    `linspace`: softmax(linspace(0, 1, L)/β). `index`: the paper's exp(l/β) normalised, as softmax(l/β) so that it does
    not overflow. Small β favours deep layers.
    """
    depth = torch.linspace(0, 1, L) if rule == "linspace" else torch.arange(1.0, L + 1)
    return (depth.double() / beta).softmax(dim=0).to(like)


def affinities(tokens: Tensor, stored: Tensor, weights: Tensor, middle: Tensor | None = None) -> Tensor:
    """Σ_l P_l cos(v^l, A^l) between a sample's tokens [L, D] and entries [C, M, L, D] → [C, M].

    middle: of the stream's tokens [L, D], taken off both before their cosine as `lessmore.core.token_mean` has it.
    """
    unit = F.normalize(tokens.to(weights.dtype), dim=-1)
    rows = unit[:, None] if middle is None else torch.stack([unit, middle], dim=1)
    rows = rows * weights[:, None, None]
    entries = stored.to(weights.dtype).flatten(0, 1)  # [C·M, L, D]
    dots = rows @ entries.permute(1, 2, 0)  # rows times matrices: far faster on CPUs
    norms = torch.linalg.vector_norm(entries, dim=-1).clamp_min(torch.finfo(weights.dtype).tiny)
    along = (dots / norms.T[:, None]).sum(dim=0).view(-1, *stored.shape[:2])
    if middle is None:
        return along[0]
    return cosine(along[0], (rows[:, 0] * middle).sum(), along[1], (rows[:, 1] * middle).sum())


def token_scores(
    tokens: Tensor, weights: Tensor, state: Reservoir, own: Tensor, config: Adaptation, middle: Tensor | None = None
) -> Tensor:
    """p^token: what the entries of each class say of a sample with tokens [L, D]; 0 for a class without entries, [C].

    weights: `layer_weights`, [L]. own: number of the sample in the stream, [], whose entry `exclude_own` leaves out.
    middle: of the stream's tokens where it is to be taken off, [L, D].
    """
    counted = (state.ids >= 0) & (state.ids != own) if config.exclude_own else state.ids >= 0
    return class_scores(affinities(tokens, state.anchors, weights, middle), counted, config)


def class_scores(affinity: Tensor, counted: Tensor, config: Adaptation) -> Tensor:
    """Affinities of entries [..., C, M] through the kernel and over the entries that count (bool) → [..., C]."""
    score = torch.exp(-config.sharpness * (1 - affinity)) if config.kernel == "exp" else affinity
    total = (score * counted).sum(dim=-1)
    return total if config.over == "sum" else total / counted.sum(dim=-1).clamp_min(1)


def correct(logits: Tensor, scores: Tensor, config: Adaptation, trust: Tensor | None = None) -> Tensor:
    """p̃ = p + λ p^token, on logits or on probabilities; logits and scores [..., C] → [..., C].

    trust: how much each class's score counts, [..., C], see `centre.trust`.
    """
    base = logits if config.domain == "logits" else logits.softmax(dim=-1)
    trusted = scores if trust is None else trust * scores
    return base + config.lam * trusted.to(base.dtype)


def probabilities(corrected: Tensor, domain: Domain) -> Tensor:
    """Corrected scores [..., C] as a distribution over classes in the same order.

    Logits go through softmax. Corrected probabilities need not sum to one, nor be positive: they are shifted up to
    zero where negative and divided by their sum.
    """
    if domain == "logits":
        return corrected.softmax(dim=-1)
    positive = corrected - corrected.amin(dim=-1, keepdim=True).clamp_max(0)
    return positive / positive.sum(dim=-1, keepdim=True)
