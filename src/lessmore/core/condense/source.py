"""The fate of every input patch at every condensing block, for pictures and for checks."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lessmore.core.condense.schedule import Stage

KEPT, MERGED, PRUNED, GONE = range(4)


class Step(NamedTuple):
    """What one condensing block did to a batch."""

    block: int
    stage: Stage
    target: Tensor
    """[B, n] position among the patch tokens that left the block, −1 if dropped."""
    anchor: Tensor | None
    """[B] class of the anchor that took part, −1 if none was ready; None if the block uses no anchor."""


class SourceMap(NamedTuple):
    """Where the n patches of the input went in S condensing blocks."""

    blocks: tuple[int, ...]
    """The condensing blocks, counted from 0."""
    fate: Tensor
    """[B, S, n] KEPT, MERGED or PRUNED at that block, or GONE: pruned at an earlier one."""
    token: Tensor
    """[B, S, n] which patch token leaving the block carries the input patch; −1 if pruned or gone."""
    centre: Tensor
    """[B, S, n] the coreset centre 0…K−1 the patch was merged into at that block; −1 if it was not merged."""
    left: Tensor
    """[B, S] patch tokens that left the block."""


def fate_of(target: Tensor, stage: Stage) -> Tensor:
    """KEPT, MERGED (into a centre, or with another patch) or PRUNED for each patch that entered a block.

    Args:
        target: As in `Step`, `[..., n]`.
        stage: The block's counts.

    Returns:
        `[..., n]` int64.
    """
    slot = target.clamp_min(0)
    members = torch.zeros_like(target).scatter_add_(-1, slot, (target >= 0).to(target.dtype))
    merged = (members.gather(-1, slot) > 1) | (target >= stage.keep)
    pruned = (target < 0) | (target >= stage.keep + stage.centres)
    return torch.where(pruned, PRUNED, torch.where(merged, MERGED, KEPT))


def source_map(steps: list[Step]) -> SourceMap:
    """Follow every input patch through the condensing blocks; needs at least one step."""
    first = steps[0].target
    where = torch.arange(first.shape[1], device=first.device).expand_as(first)
    fates, tokens, centres, left = [], [], [], []
    for step in steps:
        alive = where >= 0
        position = where.clamp_min(0)
        # A patch is followed by the token that carries it, which entered this block at another position than its own.
        fate = torch.where(alive, fate_of(step.target, step.stage).gather(1, position), GONE)
        where = torch.where(fate <= MERGED, step.target.gather(1, position), -1)
        fates.append(fate)
        tokens.append(where)
        centres.append(torch.where(fate == MERGED, where - step.stage.keep, -1).clamp_min(-1))
        left.append(step.target.amax(dim=1) + 1)  # every token that leaves comes from at least one patch
    blocks = tuple(step.block for step in steps)
    return SourceMap(blocks, *(torch.stack(rows, dim=1) for rows in (fates, tokens, centres, left)))
