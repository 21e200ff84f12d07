"""Images of none of the classes: how like its nearest class an image is, and how one that is too unlike stays out.

Likeness is the mean of the largest zero-shot logit and of the largest debiased logit. The first knows the level, which
images of another kind do not reach. The second knows what all images of the stream have in common, and has it removed.
Where nothing is debiased both are the same. An image whose likeness is below a floor takes no slot of the reservoir. It
is a draw of the stream in all else, or a change of domain would look unknown for ever.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lessmore.core.reservoir import Placement


def likeness(logits: Tensor, debiased: Tensor) -> Tensor:
    """How like its nearest class an image is, in units of logits, `[...]`.

    Args:
        logits: Zero-shot, `[..., C]`.
        debiased: Before any stored sample votes, `[..., C]`.
    """
    return (logits.amax(dim=-1) + debiased.amax(dim=-1)) / 2


def keep_out(placement: Placement, logits: Tensor, debiased: Tensor, floor: float | Tensor) -> Placement:
    """The placement of an image, without a slot if its likeness is below the floor.

    Args:
        placement: Where it would go.
        logits: Zero-shot, `[..., C]`.
        debiased: Before any stored sample votes, `[..., C]`.
        floor: The least likeness of what is stored; a number that float32 holds exactly, or one for each stream `[S]`.
    """
    known = likeness(logits, debiased) >= floor
    return placement._replace(slot=torch.where(known, placement.slot, -1))
