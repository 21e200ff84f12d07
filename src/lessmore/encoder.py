"""The one loop: attend → score → condense → MLP, block by block.

Towers with a class token run every block in the fused attention kernel; scores need only the class token's row (and the
anchor's), computed from q and k that are there already. Towers without one (SigLIP) have no such row: the summary of a
block is the mean of its tokens, and a token's score is the attention it receives, averaged over all queries, for which
the condensing blocks compute their attention explicitly.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lessmore.condense.coreset import Condensed, condense
from lessmore.condense.schedule import Stage, schedule
from lessmore.condense.source import Step
from lessmore.config import Condensation
from lessmore.scoring import (
    Anchor,
    Anchors,
    attention_rows,
    blend_rows,
    head_mean,
    key_bias,
    nearest_anchor,
    token_order,
)
from lessmore.vit import Block, ViT

PLAIN = Condensation(R=1.0)
"""Condenses nothing."""


class Encoded(NamedTuple):
    """What the vision tower makes of a batch."""

    feature: Tensor
    """L2-normalised feature, [B, E], float32 at least."""
    tokens: Tensor
    """Summary token after every block, [B, L, D]."""
    steps: list[Step]
    """What each condensing block did, shallow to deep."""


class Attended(NamedTuple):
    """A block after its attention half."""

    x: Tensor
    """Residual stream, [B, N, D]."""
    received: Tensor
    """Per head, the attention each patch receives from the class token or, without one, on average: [B, H, n]."""
    scores: Tensor
    """The same with the anchor's row mixed in where that is asked for: [B, H, n]."""


def encode(vit: ViT, pixels: Tensor, config: Condensation = PLAIN, anchors: Anchors | None = None) -> Encoded:
    """Images [B, 3, H, W] → feature and summary tokens, condensing on the way; anchors guide it where given."""
    class_token = vit.shape.class_token
    plan = schedule(vit.shape.patches, len(vit.blocks), config)
    weighted = not class_token and config.summary == "attn_pool"
    x = vit.embed(pixels)
    summaries: list[Tensor] = []
    steps: list[Step] = []
    for i, (block, stage) in enumerate(zip(vit.blocks, plan, strict=True)):
        assert isinstance(block, Block)
        if stage is None and not weighted:
            x = block(x)
            summaries.append(summary(x, class_token))
            continue
        anchor = None
        if stage is not None and anchors is not None and config.uses_anchor and i > 0:
            anchor = nearest_anchor(summaries[-1], anchors, i - 1)
        x, received, scores = attend(block, x, class_token, config, anchor)
        weight = head_mean(received) if weighted else None
        if stage is not None:
            x, target = condense_patches(x, scores, class_token, stage, config)
            weight = None if weight is None else carry(weight, target, stage)
            steps.append(Step(i, stage, target, None if anchor is None else anchor.label))
        x = block.add_mlp(x)
        summaries.append(summary(x, class_token, weight))
    feature = vit.pool(x)
    wide = feature.to(torch.promote_types(feature.dtype, torch.float32))
    return Encoded(F.normalize(wide, dim=-1), torch.stack(summaries, dim=1), steps)


def summary(x: Tensor, class_token: bool, weight: Tensor | None = None) -> Tensor:
    """The block's summary [B, D] of tokens [B, N, D]: the class token, or the (weighted, [B, N]) mean of all."""
    if class_token:
        return x[:, 0]
    if weight is None:
        return x.mean(dim=1)
    weight = weight / weight.sum(dim=1, keepdim=True)
    return (weight.to(x.dtype).unsqueeze(1) @ x).squeeze(1)


def attend(block: Block, x: Tensor, class_token: bool, config: Condensation, anchor: Anchor | None) -> Attended:
    """The attention half of a block on x [B, N, D], with the scores of its patches (domain-aware token evaluation).

    The anchor passes the block's norm like a token; with `anchor_kv` its key and value join for all queries. It gives
    no output of its own.
    """
    q, k, v = block.attn.project(block.norm1(x if anchor is None else torch.cat([anchor.token, x], dim=1)))
    bias, own = None, q
    if anchor is not None:
        own = q[:, :, 1:]
        if config.anchor_kv:
            bias = key_bias(anchor, k.shape[2], q.dtype)
        else:
            k, v = k[:, :, 1:], v[:, :, 1:]
    patches = slice(k.shape[2] - x.shape[1] + int(class_token), None)
    if class_token:
        heads = F.scaled_dot_product_attention(own, k, v, attn_mask=bias)
        received = attention_rows(own[:, :, :1], k, bias)[:, :, 0, patches]
    else:
        full = attention_rows(own, k, bias)
        heads = full.to(v.dtype) @ v
        received = full.mean(dim=2)[..., patches]
    scores = received
    if anchor is not None and config.rows != "class":
        anchored = attention_rows(q[:, :, :1], k, bias)[:, :, 0, patches]
        scores = blend_rows(config.rows, received, anchored, anchor.present)
    return Attended(block.add_attention(x, block.attn.combine(heads)), received, scores)


def condense_patches(x: Tensor, scores: Tensor, class_token: bool, stage: Stage, config: Condensation) -> Condensed:
    """Condense the patches of x [B, N, D] by their per-head scores [B, H, n]; the class token is never touched."""
    first = int(class_token)
    order, attention = token_order(scores, config.score), head_mean(scores)
    condensed = condense(x[:, first:], order, attention, stage, config)
    return condensed._replace(tokens=torch.cat([x[:, :first], condensed.tokens], dim=1))


def carry(weight: Tensor, target: Tensor, stage: Stage) -> Tensor:
    """Weights [B, n] of the patches that came in, added up over the tokens [B, out] they went into."""
    dropped = target < 0
    out = weight.new_zeros(len(weight), stage.out)
    return out.scatter_add_(1, target.clamp_min(0), weight.masked_fill(dropped, 0))
