"""transformers' Siglip2Model, SigLIP 2 NaFlex: images keep their aspect ratio, and patches enter a linear layer."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from torch import nn

from lessmore.core.vit import ViTShape
from lessmore.models.towers.hf_clip import block_shape
from lessmore.models.towers.hf_siglip import check_head, siglip_text_of, siglip_towers, siglip_vision_shape
from lessmore.models.towers.registry import Towers, is_a, register_family
from lessmore.models.towers.weights import Weights, unsupported_model


def _vision_shape(model: Any) -> ViTShape:
    host = model.vision_model
    blocks, patch = block_shape(host), int(host.embeddings.patch_size)
    check_head(host, blocks)
    side = math.isqrt(host.embeddings.num_patches)
    if side**2 != host.embeddings.num_patches:
        raise unsupported_model(f"a Siglip2Model with {host.embeddings.num_patches} positions, which are no square,")
    return replace(siglip_vision_shape(blocks, side * patch, patch), flexible=True)


@register_family("transformers-siglip2", lambda model: is_a(model, "transformers", "Siglip2Model"))
def import_siglip2(model: nn.Module) -> Towers:
    """Our towers around a transformers Siglip2Model."""
    return siglip_towers(_vision_shape(model), siglip_text_of(model), Weights(model.state_dict()))
