"""open_clip's CLIP and CustomTextCLIP with a native or a timm vision transformer."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from lessmore.core.text import TextPool, TextShape, TextTower
from lessmore.core.vit import BlockShape, Pool, ViT, ViTShape
from lessmore.errors import ModelError
from lessmore.models.towers import eva, naflex, timm
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

_POOLS: dict[str, Pool] = {"tok": "class", "avg": "mean"}
_TEXT_POOLS: dict[str, TextPool] = {"argmax": "eos_argmax", "eos": "eos_id", "last": "last"}


def _block_shape(transformer: Any, eps: float, layer_scale: bool) -> BlockShape:
    blocks = transformer.resblocks
    up = blocks[0].mlp.c_fc
    return BlockShape(
        width=up.in_features,
        depth=len(blocks),
        heads=the_one((block.attn.num_heads for block in blocks), "head counts"),
        mlp=up.out_features,
        activation=the_one((activation_name(block.mlp.gelu) for block in blocks), "activations"),
        eps=eps,
        layer_scale=layer_scale,
    )


def _read_blocks(weights: Weights, prefix: str, shape: BlockShape) -> dict[str, Tensor]:
    names = {"norm1": "ln_1", "norm2": "ln_2", "attn.out": "attn.out_proj", "mlp.up": "mlp.c_fc"}
    names |= {"mlp.down": "mlp.c_proj"}
    out: dict[str, Tensor] = {}
    for i in range(shape.depth):
        source, target = f"{prefix}transformer.resblocks.{i}.", f"blocks.{i}."
        weights.copy_into(out, names, source, target)
        for part in ("weight", "bias"):
            out[f"{target}attn.qkv.{part}"] = weights.take(f"{source}attn.in_proj_{part}")
        for half in ("1", "2") if shape.layer_scale else ():
            out[f"{target}scale{half}"] = weights.take(f"{source}ls_{half}.gamma")
    return out


def _native_vision(host: Any, weights: Weights) -> ViT:
    if getattr(host, "attn_pool", None) is not None or host.pool_type not in _POOLS:
        raise unsupported_model("an open_clip tower with an attentional pooler")
    pool = _POOLS[host.pool_type]
    blocks = _block_shape(
        host.transformer, layer_norm_eps(host), weights.has("visual.transformer.resblocks.0.ls_1.gamma")
    )
    out = _read_blocks(weights, "visual.", blocks)
    pre_norm = weights.has("visual.ln_pre.weight")
    names = {"norm_post": "ln_post"} | ({"norm_pre": "ln_pre"} if pre_norm else {})
    weights.copy_into(out, names, "visual.")
    out["patch_embed.weight"] = weights.take("visual.conv1.weight")
    out["class_embed"] = weights.take("visual.class_embedding")
    out["positions"] = weights.take("visual.positional_embedding")
    projection = weights.optional("visual.proj")
    if projection is not None:
        out["projection.weight"] = projection.t()
    shape = ViTShape(
        blocks=blocks,
        image_size=square(host.image_size, "image size"),
        patch=square(host.patch_size, "patch size"),
        embed=blocks.width if projection is None else projection.shape[1],
        pre_norm=pre_norm,
        pool=pool,
        # A class token is one token: normed before or after picking it, the numbers are the same.
        norm_then_pool=pool == "mean" and not host.final_ln_after_pool,
        projection=projection is not None,
    )
    return build_vision(shape, out)


def _vision(host: Any, weights: Weights) -> ViT:
    if is_a(host, "open_clip", "VisionTransformer"):
        return _native_vision(host, weights)
    if is_a(host, "open_clip", "TimmModel"):
        kinds = {"Eva": eva.import_eva, "NaFlexVit": naflex.import_naflex}
        read = next((read for kind, read in kinds.items() if is_a(host.trunk, "timm", kind)), timm.import_trunk)
        return read(host, weights)
    raise unsupported_model(f"an open_clip model with a {type(host).__name__} vision tower")


def _read_projection(weights: Weights, prefix: str, out: dict[str, Tensor]) -> None:
    matrix = weights.optional(f"{prefix}text_projection")
    if matrix is not None:
        out["projection.weight"] = matrix.t()
        return
    for part in ("weight", "bias"):
        tensor = weights.optional(f"{prefix}text_projection.{part}")
        if tensor is not None:
            out[f"projection.{part}"] = tensor


def _text(host: Any, weights: Weights, prefix: str, pool: str, eos_id: int) -> TextTower:
    """`host` holds the text modules: the model itself (CLIP) or its `text` (CustomTextCLIP)."""
    if pool not in _TEXT_POOLS:
        raise unsupported_model(f"an open_clip text tower pooled by {pool!r}")
    if getattr(host, "use_pad_mask", False):
        raise unsupported_model("an open_clip text tower that masks its padding")
    eps = the_one({layer_norm_eps(host.transformer), float(host.ln_final.eps)}, "LayerNorm epsilons")
    blocks = _block_shape(host.transformer, eps, weights.has(f"{prefix}transformer.resblocks.0.ls_1.gamma"))
    out = _read_blocks(weights, prefix, blocks)
    weights.copy_into(out, {"norm_post": "ln_final"}, prefix)
    out["tokens.weight"] = weights.take(f"{prefix}token_embedding.weight")
    out["positions"] = weights.take(f"{prefix}positional_embedding")
    _read_projection(weights, prefix, out)
    projection = out.get("projection.weight")
    shape = TextShape(
        blocks=blocks,
        vocab=len(out["tokens.weight"]),
        context=len(out["positions"]),
        embed=blocks.width if projection is None else len(projection),
        causal=host.attn_mask is not None,
        pool=_TEXT_POOLS[pool],
        eos_id=eos_id if pool == "eos" else -1,
        projection=projection is not None,
        projection_bias="projection.bias" in out,
    )
    return build_text(shape, out)


def _text_of(model: Any, weights: Weights) -> TextTower:
    if is_a(model, "open_clip", "CLIP"):
        return _text(model, weights, "", model.text_pool_type, getattr(model, "text_eos_id", -1))
    host = model.text
    if not is_a(host, "open_clip", "TextTransformer"):
        raise unsupported_model(f"an open_clip model with a {type(host).__name__} text tower")
    return _text(host, weights, "text.", host.pool_type, getattr(host, "eos_id", -1))


@register_family("open-clip", lambda model: is_a(model, "open_clip", "CLIP", "CustomTextCLIP"))
def import_open_clip(model: nn.Module) -> Towers:
    """Our towers around an open_clip model; the family is SigLIP where logits have a bias and text sees both ways."""
    weights = Weights(model.state_dict())
    vision, text = _vision(model.visual, weights), _text_of(model, weights)
    scale = math.exp(weights.number("logit_scale"))
    bias = weights.number("logit_bias") if weights.has("logit_bias") else None
    weights.finish()
    if vision.shape.embed != text.shape.embed:
        raise ModelError(
            f"image features have length {vision.shape.embed} and text features {text.shape.embed}; "
            "give a model whose two towers share one space"
        )
    siglip = bias is not None and not text.shape.causal
    return Towers(vision, text, scale, bias or 0.0, "siglip" if siglip else "clip")
