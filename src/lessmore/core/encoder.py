"""The one loop: attend → score → condense → MLP, block by block.

Towers with a class token run every block in the fused attention kernel. Scores need only the class token's row (and the
anchor's), computed from the same q and k. Towers without one (SigLIP) have no such row: the summary of a block is the
mean of its tokens, and a token's score is the attention it receives, averaged over all queries. For that their
condensing blocks compute the attention map explicitly.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lessmore.config import PAIRING, Condensation
from lessmore.core.condense.ats import sample_tokens, significance
from lessmore.core.condense.coreset import Condensed, carry, condense
from lessmore.core.condense.pitome import merge_alike
from lessmore.core.condense.schedule import Stage, schedule
from lessmore.core.condense.source import Step
from lessmore.core.condense.tofu import fuse_pairs
from lessmore.core.condense.tome import merge_pairs
from lessmore.core.rope import Places
from lessmore.core.scoring import (
    Anchor,
    AnchorProvider,
    attention_rows,
    blend_rows,
    head_mean,
    key_bias,
    mean_row,
    nearest_anchor,
    token_order,
)
from lessmore.core.vit import Block, ViT, size_bias, weighted_mean

PLAIN = Condensation(R=1.0)
"""Condenses nothing."""


_PAIR = {"matching": merge_pairs, "fusion": fuse_pairs, "energy": merge_alike}
"""The function of each of the `PAIRING` rules."""


class Encoded(NamedTuple):
    """A batch after the vision tower."""

    feature: Tensor
    """L2-normalised feature, [B, E], float32 at least."""
    tokens: Tensor
    """Summary token after every block, [B, L, D]."""
    steps: list[Step]
    """What each condensing block did, shallow to deep."""
    length: Tensor | None = None
    """The feature's length before it was normalised, `[B]`; None where the encoder did not keep it."""


class Attended(NamedTuple):
    """A block after its attention half."""

    x: Tensor
    """Residual stream, [B, N, D]."""
    received: Tensor
    """Per head, the attention each patch receives from the class token or, without one, on average: [B, H, n]."""
    scores: Tensor
    """The same, with the anchor's row mixed in if the configuration asks for it: [B, H, n]."""
    values: Tensor
    """Of the patches, [B, H, n, d]."""


class BlockOutput(NamedTuple):
    """A batch after a block."""

    x: Tensor
    """Residual stream, [B, N, D]."""
    token: Tensor
    """Summary token, [B, D]."""
    size: Tensor | None = None
    """How many patches each token stands for, [B, N]: 0 for padding; None if all count as 1."""
    condensed: Condensed | None = None
    places: Places | None = None
    """Where the tokens lie, in towers that turn by places."""


class PrefixState(NamedTuple):
    """A batch before the first condensing block. Up to here, encoding does not depend on any anchor."""

    x: Tensor
    """Residual stream, [B, N, D]."""
    summaries: list[Tensor]
    """Summary token after every block so far, each [B, D]."""


def encode(vit: ViT, pixels: Tensor, config: Condensation = PLAIN, anchors: AnchorProvider | None = None) -> Encoded:
    """Encode images, condensing tokens on the way.

    Args:
        vit: The vision tower.
        pixels: Preprocessed images, `[B, 3, H, W]`.
        config: How tokens are condensed.
        anchors: Class anchors that guide condensing; None uses none.
    """
    return resume(vit, begin(vit, pixels, config), config, anchors)


def begin(vit: ViT, pixels: Tensor, config: Condensation) -> PrefixState:
    """Run the blocks before the first that condenses.

    Args:
        vit: The vision tower.
        pixels: Preprocessed images, `[B, 3, H, W]`.
        config: How tokens will be condensed.
    """
    x, places = vit.embed(pixels), vit.places()
    plan = schedule(x.shape[1] - vit.shape.first, len(vit.blocks), config)
    summaries: list[Tensor] = []
    for block, stage in zip(vit.blocks, plan, strict=True):
        if stage is not None:
            break
        x, token, *_ = pass_block(block, x, vit.shape.first, config, places=places)
        summaries.append(token)
    return PrefixState(x, summaries)


def resume(vit: ViT, begun: PrefixState, config: Condensation, anchors: AnchorProvider | None = None) -> Encoded:
    """Run the remaining blocks; may be repeated with other anchors.

    Args:
        vit: The vision tower.
        begun: What `begin` returned for the same tower and configuration.
        config: How tokens are condensed.
        anchors: Class anchors that guide condensing; None uses none.
    """
    plan = schedule(begun.x.shape[1] - vit.shape.first, len(vit.blocks), config)
    x, size, places, summaries = begun.x, None, vit.places(), list(begun.summaries)
    steps: list[Step] = []
    for i in range(len(summaries), len(plan)):
        stage, anchor = plan[i], None
        if stage is not None and anchors is not None and config.uses_anchor and i > 0:
            anchor = nearest_anchor(summaries[-1], anchors.at(i - 1, summaries[-1]))
        behind = pass_block(vit.blocks[i], x, vit.shape.first, config, size, stage, anchor, places)
        x, token, size, done, places = behind
        summaries.append(token)
        if done is not None:
            steps.append(Step(i, done.stage, done.target, None if anchor is None else anchor.label))
    feature = vit.pool(x, seen(size, config))
    wide = feature.to(torch.promote_types(feature.dtype, torch.float32))
    return Encoded(F.normalize(wide, dim=-1), torch.stack(summaries, dim=1), steps, wide.norm(dim=-1))


def seen(size: Tensor | None, config: Condensation) -> Tensor | None:
    """The sizes that attention and pooling use: none for matching without proportional attention.

    Args:
        size: How many patches each token stands for, `[B, N]`, or None.
        config: How tokens are condensed.
    """
    return None if config.rule == "matching" and not config.proportional else size


def pass_block(
    block: nn.Module,
    x: Tensor,
    first: int,
    config: Condensation,
    size: Tensor | None = None,
    stage: Stage | None = None,
    anchor: Anchor | None = None,
    places: Places | None = None,
) -> BlockOutput:
    """Run one block.

    Args:
        block: A `Block`.
        x: Tokens, `[B, N, D]`.
        first: Tokens before the patches, a class token and registers or none; they stay as they are.
        config: How tokens are condensed.
        size: How many patches each token stands for, `[B, N]`; None if all count as 1.
        stage: What to condense; None condenses nothing.
        anchor: The anchor of each image; None uses none.
        places: Where the tokens lie, in towers that turn by places; None in others.
    """
    assert isinstance(block, Block)
    weighted = not first and config.summary == "attn_pool"
    if stage is None and not weighted:
        x = block(x, bias=size_bias(seen(size, config), x.dtype), places=places)
        return BlockOutput(x, summary_token(x, first, seen(size, config)), size, None, places)
    if stage is not None and config.rule in PAIRING:
        x, metric = attend_metric(block, x, config, seen(size, config), places)
        done: Condensed | None = pair_tokens(x, metric, size, stage, first, config)
        weight = None
    else:
        attended = attend(block, x, first, config, anchor, size, places)
        x, weight = attended.x, head_mean(attended.received) if weighted else None
        done = None if stage is None else condense_patches(attended, first, size, stage, config)
    if done is not None:
        places = None if places is None else places.condensed(done, first, size, config)
        x, size = done.tokens, done.size
        weight = None if weight is None else carry(weight, done.target, done.stage)
    x = block.add_mlp(x)
    token = summary_token(x, first, seen(size, config) if weight is None else weight)
    return BlockOutput(x, token, size, done, places)


def without_registers(x: Tensor, first: int) -> Tensor:
    """Class token and patches, `[B, N', ...]`.

    Args:
        x: Something of every token, `[B, N, ...]`.
        first: Tokens before the patches: a class token, and registers after it.
    """
    return torch.cat([x[:, :1], x[:, first:]], dim=1)


def pair_tokens(
    x: Tensor, metric: Tensor, size: Tensor | None, stage: Stage, first: int, config: Condensation
) -> Condensed:
    """Merge tokens in pairs. The class token stands among them, as published; registers do not.

    Args:
        x: Tokens, `[B, N, D]`.
        metric: What they are compared by, `[B, N, d]`.
        size: How many patches each token stands for, `[B, N]`; None if all count as 1.
        stage: The counts.
        first: Tokens before the patches.
        config: The rule.
    """
    rule = _PAIR[config.rule]
    if first <= 1:
        return rule(x, metric, size, stage, first > 0)
    beside = without_registers(size, first) if size is not None else None
    done = rule(without_registers(x, first), without_registers(metric, first), beside, stage, True)
    assert done.size is not None
    tokens = torch.cat([done.tokens[:, :1], x[:, 1:first], done.tokens[:, 1:]], dim=1)
    sizes = torch.cat([done.size[:, :1].expand(-1, first), done.size[:, 1:]], dim=1)  # each of them counts as one
    return done._replace(tokens=tokens, size=sizes)


def summary_token(x: Tensor, first: int, weight: Tensor | None = None) -> Tensor:
    """The summary of a block, `[B, D]`: the class token, or the mean of all tokens.

    Args:
        x: Tokens, `[B, N, D]`.
        first: Tokens before the patches; the first of them is the class token.
        weight: How much each token counts in the mean, `[B, N]`; None counts all alike.
    """
    return x[:, 0] if first else weighted_mean(x, weight)


def attend_metric(
    block: Block, x: Tensor, config: Condensation, size: Tensor | None, places: Places | None = None
) -> tuple[Tensor, Tensor]:
    """The attention half of a block, and what matching compares its tokens by.

    Keys are compared as they were before their places turned them: likeness is of content.

    Args:
        block: The block.
        x: Tokens, `[B, N, D]`.
        config: The metric.
        size: How many patches each token stands for in attention, `[B, N]`; None if all count as 1.
        places: Where the tokens lie, in towers that turn by places; None in others.

    Returns:
        The residual stream `[B, N, D]` and the metric `[B, N, d]` or `[B, N, N]`.
    """
    q, keys, v = block.attn.project(block.attention_input(x))
    q, k = block.attn.turn(q, places), block.attn.turn(keys, places)
    bias = size_bias(size, q.dtype)
    heads = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    metric = keys if config.metric == "keys" else attention_rows(q, k, bias)
    return block.add_attention(x, block.attn.combine(heads)), metric.mean(dim=1)


def attend(
    block: Block,
    x: Tensor,
    first: int,
    config: Condensation,
    anchor: Anchor | None,
    size: Tensor | None,
    places: Places | None = None,
) -> Attended:
    """The attention half of a block, with the scores of its patches (domain-aware token evaluation).

    The anchor passes the block's norm like a token. With `anchor_kv`, all queries see its key and value. It has no
    output of its own.

    Args:
        block: The block.
        x: Tokens, `[B, N, D]`.
        first: Tokens before the patches.
        config: Which rows the scores are read from, and `anchor_kv`.
        anchor: The anchor of each image; None uses none.
        size: How many patches each token stands for, `[B, N]`; None if all count as 1.
        places: Where the tokens lie, in towers that turn by places; None in others.
    """
    if places is not None and anchor is not None:
        places = places.with_anchor(first, size)
    together = x if anchor is None else torch.cat([anchor.token, x], dim=1)
    q, k, v = block.attn.project(block.attention_input(together), places)
    bias, own = size_bias(size, q.dtype), q
    if anchor is not None:
        own = q[:, :, 1:]
        if config.anchor_kv:
            hidden = key_bias(anchor, k.shape[2], q.dtype)
            bias = hidden if bias is None else hidden + F.pad(bias, (1, 0))
        else:
            k, v = k[:, :, 1:], v[:, :, 1:]
    patches = slice(k.shape[2] - x.shape[1] + first, None)
    if first:
        heads = F.scaled_dot_product_attention(own, k, v, attn_mask=bias)
        received = attention_rows(own[:, :, :1], k, bias)[:, :, 0, patches]
    else:
        full = attention_rows(own, k, bias)
        heads = full.to(v.dtype) @ v
        received = mean_row(full, size)[..., patches]
    scores = received
    if anchor is not None and config.rows != "class":
        anchored = attention_rows(q[:, :, :1], k, bias)[:, :, 0, patches]
        scores = blend_rows(config.rows, received, anchored, anchor.present)
    return Attended(block.add_attention(x, block.attn.combine(heads)), received, scores, v[:, :, patches])


def condense_patches(
    attended: Attended, first: int, size: Tensor | None, stage: Stage, config: Condensation
) -> Condensed:
    """Condense the patches by their scores; the tokens before them stay as they are.

    Args:
        attended: The block after its attention half.
        first: Tokens before the patches.
        size: How many patches each token stands for, `[B, N]`; None if all count as 1.
        stage: The counts.
        config: The rules.
    """
    x, scores = attended.x, attended.scores
    if config.rule == "sampling":
        return sample_tokens(x, significance(scores, attended.values), size, stage)
    if size is None and config.proportional:
        size = scores.new_ones(x.shape[:2])
    order, attention = token_order(scores, config.score), head_mean(scores)
    patches = None if size is None else size[:, first:]
    condensed = condense(x[:, first:], order, attention, stage, config, patches)
    condensed = condensed._replace(tokens=torch.cat([x[:, :first], condensed.tokens], dim=1))
    if size is None or condensed.size is None:
        return condensed
    return condensed._replace(size=torch.cat([size[:, :first], condensed.size], dim=1))
