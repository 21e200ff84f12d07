"""timm vision transformers inside open_clip (`TimmModel`): SigLIP and SigLIP 2 with MAP pooling, and plain ones."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

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

_POOLS: dict[str, Pool] = {"map": "map", "token": "class", "avg": "mean"}
_TRUNK = "visual.trunk."


def _block_shape(trunk: Any, layer_scale: bool) -> BlockShape:
    up = trunk.blocks[0].mlp.fc1
    return BlockShape(
        width=up.in_features,
        depth=len(trunk.blocks),
        heads=the_one((block.attn.num_heads for block in trunk.blocks), "head counts"),
        mlp=up.out_features,
        activation=the_one((activation_name(block.mlp.act) for block in trunk.blocks), "activations"),
        eps=layer_norm_eps(trunk),
        layer_scale=layer_scale,
    )


def _read_blocks(weights: Weights, shape: BlockShape) -> dict[str, Tensor]:
    names = {"norm1": "norm1", "norm2": "norm2", "attn.qkv": "attn.qkv", "attn.out": "attn.proj"}
    names |= {"mlp.up": "mlp.fc1", "mlp.down": "mlp.fc2"}
    out: dict[str, Tensor] = {}
    for i in range(shape.depth):
        weights.copy_into(out, names, f"{_TRUNK}blocks.{i}.", f"blocks.{i}.")
        for half in ("1", "2") if shape.layer_scale else ():
            out[f"blocks.{i}.scale{half}"] = weights.take(f"{_TRUNK}blocks.{i}.ls{half}.gamma")
    return out


def _read_map(trunk: Any, weights: Weights, out: dict[str, Tensor], blocks: BlockShape) -> None:
    pool = trunk.attn_pool
    the_one((blocks.heads, pool.num_heads), "head counts")
    the_one((blocks.activation, activation_name(pool.mlp.act)), "activations")
    latent = weights.take(f"{_TRUNK}attn_pool.latent")
    if latent.numel() != blocks.width:
        raise unsupported_model("a timm tower that pools with several queries")
    out["map_pool.probe"] = latent.view(-1)
    names = {"q": "q", "kv": "kv", "out": "proj", "norm": "norm", "mlp.up": "mlp.fc1", "mlp.down": "mlp.fc2"}
    weights.copy_into(out, names, f"{_TRUNK}attn_pool.", "map_pool.")


def _read_projection(weights: Weights, out: dict[str, Tensor]) -> None:
    """The trunk's own classifier or open_clip's linear head; at most one of them exists."""
    for source in (f"{_TRUNK}head", "visual.head.proj"):
        for part in ("weight", "bias"):
            tensor = weights.optional(f"{source}.{part}")
            if tensor is not None:
                out[f"projection.{part}"] = tensor


def _check(trunk: Any) -> None:
    if not is_a(trunk, "timm", "VisionTransformer") or trunk.global_pool not in _POOLS:
        raise unsupported_model(f"an open_clip model with a timm {type(trunk).__name__} trunk")
    tokens = 1 if getattr(trunk, "cls_token", None) is not None else 0
    if trunk.num_prefix_tokens != tokens or (tokens and trunk.no_embed_class):
        raise unsupported_model("a timm tower with register tokens or a class token without a position")
    if tokens and (trunk.global_pool == "map" or getattr(trunk, "pool_include_prefix", False)):
        raise unsupported_model("a timm tower that pools its class token together with the patches")
    block = type(trunk.blocks[0]).__name__
    if block != "Block" or not isinstance(trunk.patch_embed.proj, nn.Conv2d):
        raise unsupported_model(f"a timm tower of {block} blocks")


def _shape(trunk: Any, weights: Weights, out: dict[str, Tensor], blocks: BlockShape) -> ViTShape:
    projection = out.get("projection.weight")
    pool = _POOLS[trunk.global_pool]
    return ViTShape(
        blocks=blocks,
        image_size=square(trunk.patch_embed.img_size, "image size"),
        patch=square(trunk.patch_embed.patch_size, "patch size"),
        embed=blocks.width if projection is None else len(projection),
        class_token="class_embed" in out,
        pre_norm="norm_pre.weight" in out,
        patch_bias="patch_embed.bias" in out,
        pool=pool,
        norm_then_pool=pool != "class" and weights.has(f"{_TRUNK}norm.weight"),
        projection=projection is not None,
        projection_bias="projection.bias" in out,
    )


def import_trunk(host: Any, weights: Weights) -> ViT:
    """Our vision tower around an open_clip `TimmModel`.

    Args:
        host: The `TimmModel`, read for its shape.
        weights: The weights of the whole open_clip model; those of the trunk are taken.

    Raises:
        ModelError: The trunk does something our tower does not, such as register tokens.
    """
    trunk = host.trunk
    _check(trunk)
    blocks = _block_shape(trunk, weights.has(f"{_TRUNK}blocks.0.ls1.gamma"))
    out = _read_blocks(weights, blocks)
    out["positions"] = weights.take(f"{_TRUNK}pos_embed").squeeze(0)
    out["patch_embed.weight"] = weights.take(f"{_TRUNK}patch_embed.proj.weight")
    patch_bias = weights.optional(f"{_TRUNK}patch_embed.proj.bias")
    if patch_bias is not None:
        out["patch_embed.bias"] = patch_bias
    if weights.has(f"{_TRUNK}cls_token"):
        out["class_embed"] = weights.take(f"{_TRUNK}cls_token").view(-1)
    if weights.has(f"{_TRUNK}norm_pre.weight"):
        weights.copy_into(out, {"norm_pre": "norm_pre"}, _TRUNK)
    norm_post = "norm" if weights.has(f"{_TRUNK}norm.weight") else "fc_norm"
    weights.copy_into(out, {"norm_post": norm_post}, _TRUNK)
    if trunk.global_pool == "map":
        _read_map(trunk, weights, out, blocks)
    _read_projection(weights, out)
    return build_vision(_shape(trunk, weights, out, blocks), out)
