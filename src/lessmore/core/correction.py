"""Logits self-correction (section 3.5): the stored tokens as a second, token-level classifier."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lessmore.config import Adaptation, Domain, LayerWeights
from lessmore.core.token_mean import debiased_cosine


def layer_weights(L: int, beta: float, rule: LayerWeights, like: Tensor) -> Tensor:
    """Weights P of the layers, which sum to 1.

    Args:
        L: Number of blocks.
        beta: Layer temperature β; a small one favours deep layers.
        rule: `linspace` is softmax(linspace(0, 1, L)/β). `index` is the paper's exp(l/β), normalised as softmax(l/β) so
            that it does not overflow.
        like: A tensor of the precision and device to use.

    Returns:
        `[L]`.
    """
    # In float64: a small β leaves float32 few digits for the shallow layers.
    depth = torch.linspace(0, 1, L) if rule == "linspace" else torch.arange(1.0, L + 1)
    return (depth.double() / beta).softmax(dim=0).to(like)


def affinities(tokens: Tensor, stored: Tensor, weights: Tensor, token_mean: Tensor | None = None) -> Tensor:
    """Σ_l P_l cos(v^l, A^l) between a sample and stored entries.

    Args:
        tokens: Summary tokens of the sample, `[L, D]`.
        stored: Entries, `[C, M, L, D]`.
        weights: Layer weights P, `[L]`.
        token_mean: The stream's mean token, removed from both before their cosine, `[L, D]`; None removes nothing. See
            `lessmore.core.token_mean`.

    Returns:
        `[C, M]`.
    """
    # Products with sample and mean are taken at once, so that the entries, the largest tensors here, are read once.
    unit = F.normalize(tokens.to(weights.dtype), dim=-1)
    rows = unit[:, None] if token_mean is None else torch.stack([unit, token_mean], dim=1)
    rows = rows * weights[:, None, None]
    entries = stored.to(weights.dtype).flatten(0, 1)  # [C·M, L, D]
    dots = rows @ entries.permute(1, 2, 0)  # rows times matrices: far faster on CPUs
    # The division comes after the product: normalised entries would be a second copy of the whole reservoir.
    norms = torch.linalg.vector_norm(entries, dim=-1).clamp_min(torch.finfo(weights.dtype).tiny)
    along = (dots / norms.T[:, None]).sum(dim=0).view(-1, *stored.shape[:2])
    if token_mean is None:
        return along[0]
    return debiased_cosine(along[0], (rows[:, 0] * token_mean).sum(), along[1], (rows[:, 1] * token_mean).sum())


def votes(ids: Tensor, own: Tensor, config: Adaptation) -> Tensor:
    """Which entries vote on a sample, `[..., C, M]` bool: all of them, except its own if `exclude_own` is set.

    Args:
        ids: Sample numbers of the entries, `[..., C, M]`; −1 marks an empty slot.
        own: Number of the sample, `[...]`.
        config: The adaptation.
    """
    stored = ids >= 0
    # By number, not by slot: the sample may have taken no slot at all.
    return stored & (ids != own[..., None, None]) if config.exclude_own else stored


def class_scores(affinity: Tensor, counted: Tensor, config: Adaptation) -> Tensor:
    """p^token: the score of each class by its entries; 0 for a class without any.

    Args:
        affinity: Affinities with the entries, `[..., C, M]`.
        counted: Which entries vote, `[..., C, M]` bool; see `votes`.
        config: The kernel, and whether votes are summed or averaged.

    Returns:
        `[..., C]`.
    """
    total = (_kernel(affinity, config) * counted).sum(dim=-1)
    return total if config.over == "sum" else total / counted.sum(dim=-1).clamp_min(1)


def _kernel(affinity: Tensor, config: Adaptation) -> Tensor:
    return torch.exp(-config.sharpness * (1 - affinity)) if config.kernel == "exp" else affinity


def contributions(affinity: Tensor, counted: Tensor, config: Adaptation, trust: Tensor | None = None) -> Tensor:
    """What each entry adds to the score of its class, `[..., C, M]`; their sums are what `correct` adds.

    Args:
        affinity: Affinities with the entries, `[..., C, M]`.
        counted: Which entries vote, `[..., C, M]` bool.
        config: λ, the kernel, and whether votes are summed or averaged.
        trust: How much each class counts, `[..., C]`; None counts all fully.
    """
    parts = config.lam * _kernel(affinity, config) * counted
    if config.over == "mean":
        parts = parts / counted.sum(dim=-1, keepdim=True).clamp_min(1)
    return parts if trust is None else trust.unsqueeze(-1) * parts


def correct(logits: Tensor, scores: Tensor, config: Adaptation, trust: Tensor | None = None) -> Tensor:
    """p̃ = p + λ p^token, on logits or on probabilities.

    Args:
        logits: Zero-shot or debiased logits, `[..., C]`.
        scores: p^token, `[..., C]`.
        config: λ and the domain of the sum.
        trust: How much the score of each class counts, `[..., C]`; see `debias.trust`.

    Returns:
        `[..., C]`.
    """
    base = logits if config.domain == "logits" else logits.softmax(dim=-1)
    trusted = scores if trust is None else trust * scores
    return base + config.lam * trusted.to(base.dtype)


def probabilities(corrected: Tensor, domain: Domain) -> Tensor:
    """Corrected scores as a distribution over the classes, in the same order.

    Logits go through softmax. Corrected probabilities may be negative and need not sum to one: if any is negative, all
    are raised until the lowest is zero; then they are divided by their sum.

    Args:
        corrected: Corrected scores, `[..., C]`.
        domain: Whether they are logits or probabilities.

    Returns:
        `[..., C]`.
    """
    if domain == "logits":
        return corrected.softmax(dim=-1)
    positive = corrected - corrected.amin(dim=-1, keepdim=True).clamp_max(0)
    return positive / positive.sum(dim=-1, keepdim=True)
