"""The encoder's loop, recorded: the tokens of every block and their fate."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lessmore.config import Condensation
from lessmore.core.condense.schedule import schedule
from lessmore.core.condense.source import fate_of
from lessmore.core.encoder import attend, pass_block, seen
from lessmore.core.rope import Places
from lessmore.core.scoring import Anchor, AnchorProvider, head_mean, nearest_anchor
from lessmore.core.vit import Block, ViT

ANCHOR_ROWS = Condensation(rows="anchor")
"""With this, scores are the anchor's own attention."""


class Station(NamedTuple):
    """One block, for a batch."""

    block: int
    tokens: Tensor
    """Patch tokens between attention and MLP, before they are condensed, [B, n, D]."""
    rows: Tensor
    """Per head, the scores of the patch tokens, [B, H, n]."""
    prior: Tensor | None
    """What the nearest class anchor attends to, averaged over heads and summing to 1, [B, n]; None without anchors."""
    fate: Tensor | None
    """KEPT, MERGED or PRUNED, [B, n]; None where the block condenses nothing."""


class BlockTrace(NamedTuple):
    """A batch all the way through the tower."""

    stations: list[Station]
    """One per block."""
    feature: Tensor
    """L2-normalised, `[B, E]`, as `encoder.encode` returns it."""

    def condensing(self) -> list[Station]:
        """The blocks that condense."""
        return [station for station in self.stations if station.fate is not None]


@torch.no_grad()
def trace_blocks(vit: ViT, pixels: Tensor, config: Condensation, anchors: AnchorProvider | None = None) -> BlockTrace:
    """Images through the tower, with a record of every block.

    Args:
        vit: The vision tower.
        pixels: `[B, 3, H, W]`.
        config: How to condense.
        anchors: They guide a condensation that uses anchors, and give every block its prior in any case.
    """
    first, places = vit.shape.first, vit.places()
    x, stations = vit.embed(pixels), []
    size: Tensor | None = None
    token: Tensor | None = None
    for i, stage in enumerate(schedule(vit.shape.patches, len(vit.blocks), config)):
        block = vit.blocks[i]
        assert isinstance(block, Block)
        near = None if anchors is None or token is None else nearest_anchor(token, anchors.at(i - 1, token))
        anchor = near if stage is not None and config.uses_anchor else None
        attended = attend(block, x, first, config, anchor, seen(size, config), places)
        prior = _prior(block, x, first, near, seen(size, config), places)
        x, token, size, done, places = pass_block(block, x, first, config, size, stage, anchor, places)
        fate = None if done is None else fate_of(done.target, done.stage)
        stations.append(Station(i, attended.x[:, first:], attended.scores, prior, fate))
    feature = vit.pool(x, seen(size, config))
    return BlockTrace(stations, F.normalize(feature.to(torch.promote_types(feature.dtype, torch.float32)), dim=-1))


def _prior(
    block: Block, x: Tensor, first: int, anchor: Anchor | None, size: Tensor | None, places: Places | None
) -> Tensor | None:
    if anchor is None or not bool(anchor.present.all()):
        return None
    attention = head_mean(attend(block, x, first, ANCHOR_ROWS, anchor, size, places).scores)
    return attention / attention.sum(dim=-1, keepdim=True)


def token_features(vit: ViT, tokens: Tensor) -> Tensor:
    """Every token alone through the tower's pooling and projection, L2-normalised, `[B, n, E]`.

    Args:
        vit: The vision tower.
        tokens: `[B, n, D]`.
    """
    B, n, D = tokens.shape
    # Once more for each token before the patches: poolings that skip those find it too.
    alone = tokens.reshape(B * n, 1, D).expand(-1, 1 + vit.shape.first, -1)
    features = vit.pool(alone)
    wide = features.to(torch.promote_types(features.dtype, torch.float32))
    return F.normalize(wide, dim=-1).view(B, n, -1)
