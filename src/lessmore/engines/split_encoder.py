"""Encoding batches in two halves, before and after the first condensing block, by what is fastest for the tower."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from lessmore.config import Condensation
from lessmore.core.encoder import Encoded, PrefixState, begin, resume
from lessmore.core.scoring import AnchorProvider
from lessmore.core.vit import ViT
from lessmore.engines.availability import has_triton

Prefix = Callable[[Tensor], PrefixState]
"""Pixels [B, 3, H, W] up to the first condensing block, as `encoder.begin`."""
Rest = Callable[[PrefixState, AnchorProvider | None], Encoded]
"""From there on, as `encoder.resume`."""


def split_encoder(vit: ViT, config: Condensation) -> tuple[Prefix, Rest]:
    """Both halves of the fused encoder if it can run the tower, else of the plain encoder.

    Args:
        vit: The tower.
        config: How it condenses.
    """
    if vit.positions.is_cuda and has_triton():
        from lessmore.engines import fused_encoder, fused_tower

        if fused_tower.cannot_fuse(vit, config) is None:
            fused = fused_encoder.Batched(vit, config)
            return fused.begin, fused.resume
    return partial(begin, vit, config=config), lambda begun, anchors: resume(vit, begun, config, anchors)
