"""DINOv3.txt as its own repository defines it (`DINOTxt`): DINOv3, blocks of another kind behind it, and a text tower.

The published model is a ViT-L/16 with two such blocks, whose feature is the class token and the mean of the patches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lessmore.core.rope import Rope
from lessmore.core.text import TextPool, TextShape, TextTower
from lessmore.core.vit import BlockShape, Pool, ViT, ViTShape
from lessmore.models.preprocess import Preprocess
from lessmore.models.towers.registry import Towers, is_a, register_family
from lessmore.models.towers.weights import (
    Weights,
    activation_name,
    build_text,
    build_vision,
    layer_norm_eps,
    square,
    the_one,
    unsupported_model,
)

_BACKBONE, _HEAD, _TEXT = "visual_model.backbone.", "visual_model.head.", "text_model.backbone."
_POOLS: dict[tuple[bool, bool], Pool] = {(True, True): "class_mean", (True, False): "class", (False, True): "mean"}
_TEXT_POOLS: dict[str, TextPool] = {"argmax": "eos_argmax", "last": "last"}
_PICTURE = {"norm1": "norm1", "attn": "attn", "norm2": "norm2", "mlp": "mlp"}
_WORDS = {"norm1": "attention_norm", "attn": "attention", "norm2": "ffn_norm", "mlp": "feed_forward"}
"""Our names of the parts of a block with those of the definition, in its two kinds of blocks."""
_UNUSED = ("mask_token", "local_cls_norm.weight", "local_cls_norm.bias")
"""Only training reads these."""
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def dino_rope(side: int, periods: Sequence[float]) -> Rope:
    """DINOv3's rotary positions: a picture reaches from −1 to 1, and a patch lies at its middle.

    Args:
        side: Patches in a row and in a column.
        periods: How far apart two places are whose pair j is turned alike.
    """
    return Rope(1 / side - 1, 2 / side, turns=tuple(2 * math.pi / period for period in periods))


def _check(model: Any) -> None:
    seen, read = model.visual_model, model.text_model
    backbone = seen.backbone
    if not is_a(backbone, "dinov3", "DinoVisionTransformer"):
        raise unsupported_model(f"a DINOv3.txt model with a {type(backbone).__name__} backbone")
    pooled = seen.use_patch_tokens and seen.patch_tokens_pooler_type != "mean"
    parts = {
        "an untied norm of its class token": backbone.untie_cls_and_patch_norms,
        "rotary positions in half precision": backbone.rope_embed.dtype not in (None, torch.float32),
        "patches from an earlier block": seen.patch_token_layer != 1,
        f"patches pooled by {seen.patch_tokens_pooler_type!r}": pooled,
        "blocks behind its text backbone": read.head.num_blocks > 0,
        f"texts pooled by {read.tokens_pooler_type!r}": read.tokens_pooler_type not in _TEXT_POOLS,
    }
    for part, there in parts.items():
        if there:
            raise unsupported_model(f"a DINOv3.txt model with {part}")


def _block_shape(blocks: Any, names: dict[str, str], eps: float, turned: bool = False) -> BlockShape:
    attentions, mlps = ([getattr(block, names[part]) for block in blocks] for part in ("attn", "mlp"))
    kind = the_one((type(mlp).__name__ for mlp in mlps), "MLPs")
    if kind not in ("Mlp", "SwiGLUFFN"):
        raise unsupported_model(f"a DINOv3.txt model with MLPs of type {kind}")
    gated = kind == "SwiGLUFFN"
    up = mlps[0].w2 if gated else mlps[0].fc1
    return BlockShape(
        width=up.in_features,
        depth=len(blocks),
        heads=the_one((attention.num_heads for attention in attentions), "head counts"),
        mlp=up.out_features,
        activation="silu" if gated else the_one((activation_name(mlp.act) for mlp in mlps), "activations"),
        eps=eps,
        layer_scale=hasattr(blocks[0].ls1, "gamma"),
        gated=gated,
        turned=turned,
    )


def _neighbours(packed: Tensor, heads: int) -> Tensor:
    """Rows of q, k and v [3·D, ...] in our order: what turns together is side by side, not half a head apart."""
    turned, values = packed.tensor_split([2 * len(packed) // 3])
    return torch.cat([turned.unflatten(0, (2 * heads, 2, -1)).transpose(1, 2).flatten(0, 2), values])


def _read_qkv(weights: Weights, source: str) -> tuple[Tensor, Tensor]:
    """Weight and bias; a bias that does not exist or is masked, such as that of keys, is zero."""
    weight, bias = weights.take(f"{source}.weight"), weights.optional(f"{source}.bias")
    mask = weights.optional(f"{source}.bias_mask")
    if bias is None:
        return weight, weight.new_zeros(len(weight))
    return weight, bias if mask is None else bias * mask.to(bias.dtype)


def _read_blocks(
    weights: Weights, prefix: str, shape: BlockShape, names: dict[str, str], start: int = 0
) -> dict[str, Tensor]:
    linear = {"gate": "w1", "up": "w2", "down": "w3"} if shape.gated else {"up": "fc1", "down": "fc2"}
    modules = {"norm1": names["norm1"], "norm2": names["norm2"], "attn.out": f"{names['attn']}.proj"}
    modules |= {f"mlp.{ours}": f"{names['mlp']}.{theirs}" for ours, theirs in linear.items()}
    out: dict[str, Tensor] = {}
    for i in range(shape.depth):
        source, target = f"{prefix}blocks.{i}.", f"blocks.{start + i}."
        weights.copy_into(out, modules, source, target)
        qkv = _read_qkv(weights, f"{source}{names['attn']}.qkv")
        for part, tensor in zip(("weight", "bias"), qkv, strict=True):
            out[f"{target}attn.qkv.{part}"] = _neighbours(tensor, shape.heads) if shape.turned else tensor
        for half in ("1", "2") if shape.layer_scale else ():
            out[f"{target}scale{half}"] = weights.take(f"{source}ls{half}.gamma")
    return out


def _read_embedding(weights: Weights, patches: int) -> dict[str, Tensor]:
    out: dict[str, Tensor] = {}
    weights.copy_into(out, {"patch_embed": "patch_embed.proj"}, _BACKBONE)
    out["class_embed"] = weights.take(f"{_BACKBONE}cls_token").view(-1)
    registers = weights.optional(f"{_BACKBONE}storage_tokens")
    if registers is not None:
        out["registers"] = registers.squeeze(0)
    tokens = 1 + patches + (0 if registers is None else registers.shape[1])
    out["positions"] = out["class_embed"].new_zeros(tokens, len(out["class_embed"]))
    return out


def _periods(weights: Weights) -> list[float]:
    periods = weights.take(f"{_BACKBONE}rope_embed.periods")
    values: list[float] = [math.nan] * len(periods) if periods.is_meta else periods.tolist()
    return values


def _read_end(weights: Weights, out: dict[str, Tensor], border: int, head: BlockShape | None) -> None:
    """Everything behind the backbone's last block; without a head, its norm is the last one."""
    weights.copy_into(out, {"norm_post" if head is None else f"blocks.{border - 1}.norm_out": "norm"}, _BACKBONE)
    if head is not None:
        out |= _read_blocks(weights, _HEAD, head, _PICTURE, border)
        weights.copy_into(out, {"norm_post": "ln_final"}, _HEAD)
    projection = weights.optional(f"{_HEAD}linear_projection.weight")
    if projection is not None:
        out["projection.weight"] = projection


def _vision(model: Any, weights: Weights) -> ViT:
    tower = model.visual_model
    backbone, ahead = tower.backbone, tower.head
    patch, size = square(backbone.patch_size, "patch size"), int(model.model_config.vision_model_train_img_size)
    blocks = _block_shape(backbone.blocks, _PICTURE, layer_norm_eps(backbone), turned=True)
    head = _block_shape(ahead.blocks, _PICTURE, layer_norm_eps(ahead)) if ahead.num_blocks else None
    out = _read_embedding(weights, (size // patch) ** 2) | _read_blocks(weights, _BACKBONE, blocks, _PICTURE)
    _read_end(weights, out, blocks.depth, head)
    for name in _UNUSED:
        weights.optional(f"{_BACKBONE}{name}")
    pool = _POOLS[tower.use_class_token, tower.use_patch_tokens]
    length = len(out["projection.weight"]) if "projection.weight" in out else blocks.width
    shape = ViTShape(
        blocks=replace(blocks, depth=blocks.depth + (head.depth if head else 0)),
        image_size=size,
        patch=patch,
        embed=2 * length if pool == "class_mean" else length,
        registers=len(out["registers"]) if "registers" in out else 0,
        pre_norm=False,
        patch_bias=True,
        rope=dino_rope(size // patch, _periods(weights)),
        head=head,
        pool=pool,
        norm_then_pool=True,
        projection="projection.weight" in out,
    )
    return build_vision(shape, out)


def _text(model: Any, weights: Weights) -> TextTower:
    tower = model.text_model
    backbone = tower.backbone
    blocks = _block_shape(backbone.blocks, _WORDS, layer_norm_eps(backbone))
    out = _read_blocks(weights, _TEXT, blocks, _WORDS)
    weights.copy_into(out, {"norm_post": "ln_final"}, _TEXT)
    out["tokens.weight"] = weights.take(f"{_TEXT}token_embedding.weight")
    out["positions"] = weights.take(f"{_TEXT}positional_embedding")
    projection = weights.optional("text_model.head.linear_projection.weight")
    if projection is not None:
        out["projection.weight"] = projection
    shape = TextShape(
        blocks=blocks,
        vocab=len(out["tokens.weight"]),
        context=len(out["positions"]),
        embed=blocks.width if projection is None else len(projection),
        causal=the_one((bool(block.is_causal) for block in backbone.blocks), "causal and other blocks"),
        pool=_TEXT_POOLS[tower.tokens_pooler_type],
        projection=projection is not None,
    )
    return build_text(shape, out)


@register_family("dinov3-txt", lambda model: is_a(model, "dinov3", "DINOTxt"))
def import_dinotxt(model: Any) -> Towers:
    """Our towers around a `DINOTxt`, the class of facebookresearch/dinov3."""
    _check(model)
    weights = Weights(model.state_dict())
    scale = math.exp(weights.number("logit_scale"))
    vision, text = _vision(model, weights), _text(model, weights)
    weights.finish()
    size = vision.shape.image_size
    pixels = Preprocess(size, mean=IMAGENET_MEAN, std=IMAGENET_STD, short_side=256 * size // 224)
    return Towers(vision, text, scale, 0.0, "clip", pixels)
