"""timm's VisionTransformer inside open_clip (`TimmModel`): SigLIP and SigLIP 2 with MAP pooling, and plain ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lessmore.core.rope import Rope
from lessmore.core.vit import BlockShape, Pool, ViT, ViTShape
from lessmore.models.towers.registry import is_a
from lessmore.models.towers.weights import (
    Weights,
    activation_name,
    build_vision,
    layer_norm_eps,
    square,
    the_one,
    unsupported_model,
)

POOLS: dict[str, Pool] = {"map": "map", "token": "class", "avg": "mean"}
TRUNK = "visual.trunk."


def trunk_block_shape(trunk: Any, weights: Weights) -> BlockShape:
    """Shape of the blocks of a plain timm trunk.

    Args:
        trunk: The timm model.
        weights: The weights of the whole open_clip model.

    Raises:
        ModelError: The blocks differ, or are of another kind.
    """
    kind = the_one((type(block).__name__ for block in trunk.blocks), "blocks")
    if kind != "Block":
        raise unsupported_model(f"a timm tower of {kind} blocks")
    up = trunk.blocks[0].mlp.fc1
    return BlockShape(
        width=up.in_features,
        depth=len(trunk.blocks),
        heads=the_one((block.attn.num_heads for block in trunk.blocks), "head counts"),
        mlp=up.out_features,
        activation=the_one((activation_name(block.mlp.act) for block in trunk.blocks), "activations"),
        eps=layer_norm_eps(trunk),
        layer_scale=weights.has(f"{TRUNK}blocks.0.ls1.gamma"),
    )


def read_trunk_blocks(weights: Weights, shape: BlockShape) -> dict[str, Tensor]:
    """Weights of all blocks of a plain timm trunk under our names.

    Args:
        weights: The weights of the whole open_clip model.
        shape: Shape of the blocks.

    Raises:
        ModelError: A weight is missing, or q, k and v are apart.
    """
    names = {"norm1": "norm1", "norm2": "norm2", "attn.out": "attn.proj", "mlp.up": "mlp.fc1", "mlp.down": "mlp.fc2"}
    out: dict[str, Tensor] = {}
    for i in range(shape.depth):
        weights.copy_into(out, names, f"{TRUNK}blocks.{i}.", f"blocks.{i}.")
        weight, bias = (weights.optional(f"{TRUNK}blocks.{i}.attn.qkv.{part}") for part in ("weight", "bias"))
        if weight is None:
            raise unsupported_model("a timm tower that does not keep q, k and v together")
        out[f"blocks.{i}.attn.qkv.weight"] = weight
        out[f"blocks.{i}.attn.qkv.bias"] = weight.new_zeros(len(weight)) if bias is None else bias
        for half in ("1", "2") if shape.layer_scale else ():
            out[f"blocks.{i}.scale{half}"] = weights.take(f"{TRUNK}blocks.{i}.ls{half}.gamma")
    return out


def _read_map(trunk: Any, weights: Weights, out: dict[str, Tensor], blocks: BlockShape) -> None:
    pool = trunk.attn_pool
    if not _activates_alike(pool.mlp, blocks):
        raise unsupported_model("a timm tower whose pooling has an activation of its own")
    latent = weights.take(f"{TRUNK}attn_pool.latent")
    if latent.numel() != blocks.width:
        raise unsupported_model("a timm tower that pools with several queries")
    out["map_pool.probe"] = latent.view(-1)
    names = {"q": "q", "kv": "kv", "out": "proj", "norm": "norm", "mlp.up": "mlp.fc1", "mlp.down": "mlp.fc2"}
    weights.copy_into(out, names, f"{TRUNK}attn_pool.", "map_pool.")


def _read_projection(weights: Weights, out: dict[str, Tensor]) -> None:
    """The trunk's own classifier or open_clip's linear head; at most one of them exists."""
    for source in (f"{TRUNK}head", "visual.head.proj"):
        for part in ("weight", "bias"):
            tensor = weights.optional(f"{source}.{part}")
            if tensor is not None:
                out[f"projection.{part}"] = tensor


def _activates_alike(mlp: Any, blocks: BlockShape) -> bool:
    return activation_name(mlp.act) == blocks.activation


def _check(trunk: Any) -> None:
    if not is_a(trunk, "timm", "VisionTransformer") or trunk.global_pool not in POOLS:
        raise unsupported_model(f"an open_clip model with a timm {type(trunk).__name__} trunk")
    if trunk.global_pool == "avg" and getattr(trunk, "pool_include_prefix", False):
        raise unsupported_model("a timm tower that averages its class token together with the patches")
    if trunk.global_pool == "map" and trunk.num_prefix_tokens and not trunk.pool_include_prefix:
        raise unsupported_model("a timm tower whose pooling leaves its class token out")
    if not isinstance(getattr(trunk.patch_embed, "proj", None), nn.Conv2d):
        raise unsupported_model("a timm hybrid, whose patches leave a stack of convolutions,")


def read_embedding(trunk: Any, weights: Weights, out: dict[str, Tensor]) -> None:
    """Take everything before the first block; tokens without a position get one of zeros.

    Args:
        trunk: The timm model.
        weights: The weights of the whole open_clip model.
        out: Our weights by name; those taken are added.
    """
    for part in ("weight", "bias"):
        tensor = weights.optional(f"{TRUNK}patch_embed.proj.{part}")
        if tensor is not None:
            out[f"patch_embed.{part}"] = tensor
    if weights.has(f"{TRUNK}cls_token"):
        out["class_embed"] = weights.take(f"{TRUNK}cls_token").view(-1)
    if weights.has(f"{TRUNK}reg_token"):
        if "class_embed" not in out:
            raise unsupported_model("a timm tower with register tokens but no class token")
        out["registers"] = weights.take(f"{TRUNK}reg_token").squeeze(0)
    like, tokens = out["patch_embed.weight"], trunk.patch_embed.num_patches + trunk.num_prefix_tokens
    positions = weights.optional(f"{TRUNK}pos_embed")
    positions = like.new_zeros(0, len(like)) if positions is None else positions.squeeze(0)
    missing = tokens - len(positions)
    out["positions"] = positions if not missing else torch.cat([positions.new_zeros(missing, len(like)), positions])
    if weights.has(f"{TRUNK}norm_pre.weight"):
        weights.copy_into(out, {"norm_pre": "norm_pre"}, TRUNK)


def conv_sizes(trunk: Any) -> tuple[int, int]:
    """Sides of image and patch of a timm trunk with a convolution for its patches, in pixels."""
    embed = trunk.patch_embed
    return square(embed.img_size, "image size"), square(embed.patch_size, "patch size")


def finish_trunk(
    trunk: Any,
    weights: Weights,
    out: dict[str, Tensor],
    blocks: BlockShape,
    sizes: tuple[int, int],
    rope: Rope | None = None,
    flexible: bool = False,
) -> ViT:
    """Take everything after the last block, and build our tower.

    Args:
        trunk: The timm model.
        weights: The weights of the whole open_clip model.
        out: Our weights by name, all but those after the last block.
        blocks: What the blocks look like.
        sizes: Sides of image and patch, in pixels.
        rope: How the tower turns by places; None where it does not.
        flexible: Whether images may have any shape.
    """
    normed = weights.has(f"{TRUNK}norm.weight")
    weights.copy_into(out, {"norm_post": "norm" if normed else "fc_norm"}, TRUNK)
    pool = POOLS[trunk.global_pool]
    if pool == "map":
        _read_map(trunk, weights, out, blocks)
    _read_projection(weights, out)
    projection = out.get("projection.weight")
    shape = ViTShape(
        blocks=blocks,
        image_size=sizes[0],
        patch=sizes[1],
        embed=blocks.width if projection is None else len(projection),
        class_token="class_embed" in out,
        registers=len(out["registers"]) if "registers" in out else 0,
        pre_norm="norm_pre.weight" in out,
        patch_bias="patch_embed.bias" in out,
        rope=rope,
        pool=pool,
        **_own_head(trunk, blocks),
        norm_then_pool=pool != "class" and normed,
        projection=projection is not None,
        projection_bias="projection.bias" in out,
        flexible=flexible,
    )
    return build_vision(shape, out)


def _own_head(trunk: Any, blocks: BlockShape) -> dict[str, Any]:
    """Heads and hidden width of a MAP head where they are not those of the blocks."""
    if trunk.global_pool != "map":
        return {}
    heads, hidden = trunk.attn_pool.num_heads, trunk.attn_pool.mlp.fc1.out_features
    return {
        "pool_heads": None if heads == blocks.heads else heads,
        "pool_mlp": None if hidden == blocks.mlp else hidden,
    }


def import_trunk(host: Any, weights: Weights) -> ViT:
    """Our vision tower around an open_clip `TimmModel` of a `VisionTransformer`.

    Args:
        host: The `TimmModel`, read for its shape.
        weights: The weights of the whole open_clip model; those of the trunk are taken.

    Raises:
        ModelError: The trunk does something our tower does not.
    """
    trunk = host.trunk
    _check(trunk)
    blocks = trunk_block_shape(trunk, weights)
    out = read_trunk_blocks(weights, blocks)
    read_embedding(trunk, weights, out)
    return finish_trunk(trunk, weights, out, blocks, conv_sizes(trunk))
