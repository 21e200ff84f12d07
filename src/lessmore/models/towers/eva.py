"""timm's Eva inside open_clip (`TimmModel`): EVA01-CLIP, EVA02-CLIP and PE-Core."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lessmore.core.rope import Rope
from lessmore.core.vit import BlockShape, ViT
from lessmore.models.towers.timm import POOLS, TRUNK, conv_sizes, finish_trunk, read_embedding
from lessmore.models.towers.weights import Weights, activation_name, layer_norm_eps, square, the_one, unsupported_model


def _check(trunk: Any) -> None:
    if trunk.global_pool not in POOLS:
        raise unsupported_model(f"a timm Eva tower pooled by {trunk.global_pool!r}")
    kind = the_one((type(block.mlp).__name__ for block in trunk.blocks), "MLPs")
    if kind not in ("Mlp", "SwiGLU"):
        raise unsupported_model(f"a timm Eva tower with MLPs of type {kind}")


def _rope(trunk: Any) -> Rope | None:
    """The place of a patch is its index plus an offset, scaled to the grid that the tower was trained with."""
    rope = trunk.rope
    if rope is None:
        return None
    if type(rope).__name__ != "RotaryEmbeddingCat" or rope.in_pixels or getattr(rope, "rotate_half", False):
        raise unsupported_model(f"a timm Eva tower with positions of type {type(rope).__name__}")
    side = square(trunk.patch_embed.grid_size, "patch grid")
    trained = side if rope.ref_feat_shape is None else square(rope.ref_feat_shape, "patch grid")
    start, step = rope.grid_offset * trained / side, trained / side
    return Rope(start, step, columns_first=rope.grid_indexing == "xy", base=float(rope.temperature))


def _block_shape(trunk: Any, weights: Weights) -> BlockShape:
    blocks, first = trunk.blocks, f"{TRUNK}blocks.0."
    gated = type(blocks[0].mlp).__name__ == "SwiGLU"
    up = blocks[0].mlp.fc1_x if gated else blocks[0].mlp.fc1
    return BlockShape(
        width=up.in_features,
        depth=len(blocks),
        heads=the_one((block.attn.num_heads for block in blocks), "head counts"),
        mlp=up.out_features,
        activation=the_one((activation_name(block.mlp.act) for block in blocks), "activations"),
        eps=layer_norm_eps(trunk),
        layer_scale=weights.has(f"{first}gamma_1"),
        gated=gated,
        inner_norm=weights.has(f"{first}attn.norm.weight"),
        post_norm=type(blocks[0]).__name__ == "EvaBlockPostNorm",
    )


def _read_attention(weights: Weights, source: str, target: str, out: dict[str, Tensor]) -> None:
    """q, k and v as one; a part without a bias, such as EVA's keys, gets one of zeros."""
    if weights.has(f"{source}qkv.weight"):
        out[f"{target}qkv.weight"] = weights.take(f"{source}qkv.weight")
        biases = [weights.optional(f"{source}{part}_bias") for part in "qkv"]
        whole = weights.optional(f"{source}qkv.bias")
    else:
        out[f"{target}qkv.weight"] = weights.pack(f"{source}{part}_proj.weight" for part in "qkv")
        biases, whole = [weights.optional(f"{source}{part}_proj.bias") for part in "qkv"], None
    width = len(out[f"{target}qkv.weight"]) // 3
    none = out[f"{target}qkv.weight"].new_zeros(width)
    out[f"{target}qkv.bias"] = torch.cat([none if b is None else b for b in biases]) if whole is None else whole
    weights.copy_into(out, {"out": "proj"}, source, target)


def _read_blocks(weights: Weights, shape: BlockShape) -> dict[str, Tensor]:
    names = {"norm1": "norm1", "norm2": "norm2", "mlp.down": "mlp.fc2"}
    names |= {"mlp.up": "mlp.fc1_x", "mlp.gate": "mlp.fc1_g"} if shape.gated else {"mlp.up": "mlp.fc1"}
    names |= {"attn.norm": "attn.norm", "mlp.norm": "mlp.norm"} if shape.inner_norm else {}
    out: dict[str, Tensor] = {}
    for i in range(shape.depth):
        source, target = f"{TRUNK}blocks.{i}.", f"blocks.{i}."
        weights.copy_into(out, names, source, target)
        _read_attention(weights, f"{source}attn.", f"{target}attn.", out)
        for half in ("1", "2") if shape.layer_scale else ():
            out[f"{target}scale{half}"] = weights.take(f"{source}gamma_{half}")
    return out


def import_eva(host: Any, weights: Weights) -> ViT:
    """Our vision tower around an open_clip `TimmModel` of an `Eva`.

    Args:
        host: The `TimmModel`, read for its shape.
        weights: The weights of the whole open_clip model; those of the trunk are taken.

    Raises:
        ModelError: The trunk does something our tower does not.
    """
    trunk = host.trunk
    _check(trunk)
    blocks = _block_shape(trunk, weights)
    out = _read_blocks(weights, blocks)
    read_embedding(trunk, weights, out)
    return finish_trunk(trunk, weights, out, blocks, conv_sizes(trunk), _rope(trunk))
