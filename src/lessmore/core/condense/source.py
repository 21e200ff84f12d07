"""Who went where: the fate of every input patch at every condensing block, for pictures and for checks."""

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
    """[B, n] position among the patch tokens that left the block, −1 where dropped."""
    anchor: Tensor | None
    """[B] class of the anchor that took part, −1 where there was none; None where no anchor was asked for."""


class SourceMap(NamedTuple):
    """For S condensing blocks and the n patches of the input."""

    blocks: tuple[int, ...]
    fate: Tensor
    """[B, S, n] KEPT, MERGED or PRUNED at that block, or GONE: pruned at an earlier one."""
    token: Tensor
    """[B, S, n] which patch token leaving the block carries the input patch; −1 where pruned or gone."""
    centre: Tensor
    """[B, S, n] the coreset centre 0…K−1 the patch was merged into at that block; −1 where it was into none."""
    left: Tensor
    """[B, S] patch tokens that left the block."""


def fate_of(target: Tensor, stage: Stage) -> Tensor:
    """KEPT, MERGED (into a centre, or with another patch) or PRUNED for each patch that entered a block, [..., n]."""
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
        fate = torch.where(alive, fate_of(step.target, step.stage).gather(1, position), GONE)
        where = torch.where(fate <= MERGED, step.target.gather(1, position), -1)
        fates.append(fate)
        tokens.append(where)
        centres.append(torch.where(fate == MERGED, where - step.stage.keep, -1).clamp_min(-1))
        left.append(step.target.amax(dim=1) + 1)  # behind every token that leaves there is a patch that came
    blocks = tuple(step.block for step in steps)
    return SourceMap(blocks, *(torch.stack(rows, dim=1) for rows in (fates, tokens, centres, left)))
