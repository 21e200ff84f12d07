"""timm's NaFlexVit inside open_clip (`TimmModel`): SigLIP 2 NaFlex, whose images keep their aspect ratio."""

from __future__ import annotations

from typing import Any

from lessmore.core.vit import ViT
from lessmore.models.towers.timm import TRUNK, finish_trunk, read_trunk_blocks, trunk_block_shape
from lessmore.models.towers.weights import Weights, patch_kernel, square, unsupported_model


def _check(trunk: Any) -> None:
    embeds = trunk.embeds
    parts = {
        "class or register tokens": trunk.num_prefix_tokens > 0,
        "rotary positions": trunk.rope is not None,
        f"{embeds.pos_embed_type} positions": embeds.pos_embed_type != "learned",
        f"positions interpolated as {embeds.pos_embed_interp_mode}": embeds.pos_embed_interp_mode != "bilinear",
        "positions that keep their aspect ratio": embeds.pos_embed_ar_preserving or embeds.pos_embed_use_grid_sample,
        "patches that are no linear layer's, or are normed": not embeds.is_linear or embeds.norm_input is not None,
        "patches of several sizes, or with colours first": embeds.enable_patch_interpolator or not embeds.channels_last,
        f"pooling by {trunk.global_pool!r}": trunk.global_pool != "map",
    }
    found = next((part for part, there in parts.items() if there), None)
    if found is not None:
        raise unsupported_model(f"a timm NaFlexVit with {found}")


def import_naflex(host: Any, weights: Weights) -> ViT:
    """Our vision tower around an open_clip `TimmModel` of a `NaFlexVit`.

    Args:
        host: The `TimmModel`, read for its shape.
        weights: The weights of the whole open_clip model; those of the trunk are taken.

    Raises:
        ModelError: The trunk does something our tower does not.
    """
    trunk = host.trunk
    _check(trunk)
    patch = square(trunk.embeds.patch_size, "patch size")
    blocks = trunk_block_shape(trunk, weights)
    out = read_trunk_blocks(weights, blocks)
    weights.copy_into(out, {"patch_embed": "embeds.proj"}, TRUNK)
    out["patch_embed.weight"] = patch_kernel(out["patch_embed.weight"], patch)
    out["positions"] = weights.take(f"{TRUNK}embeds.pos_embed").flatten(0, 2)
    side = square(trunk.embeds.pos_embed_grid_size, "grid of positions")
    return finish_trunk(trunk, weights, out, blocks, (side * patch, patch), flexible=True)
