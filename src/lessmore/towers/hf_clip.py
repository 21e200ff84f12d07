"""transformers' CLIPModel, versions 4.57 to 5."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from lessmore.text import TextPool, TextShape, TextTower
from lessmore.towers.registry import Towers, is_a, register
from lessmore.towers.weights import (
    Weights,
    activation_name,
    build_text,
    build_vision,
    layer_norm_eps,
    square,
    the_one,
)
from lessmore.vit import BlockShape, ViT, ViTShape

# transformers 4.2x and older wrote this id into every CLIP config and pooled at the largest id instead.
_LEGACY_EOS = 2


def block_shape(tower: Any) -> BlockShape:
    """Shape of the blocks of a transformers CLIP or SigLIP tower, read off its modules."""
    layers = tower.encoder.layers
    up = layers[0].mlp.fc1
    return BlockShape(
        width=up.in_features,
        depth=len(layers),
        heads=the_one((layer.self_attn.num_heads for layer in layers), "head counts"),
        mlp=up.out_features,
        activation=the_one((activation_name(layer.mlp.activation_fn) for layer in layers), "activations"),
        eps=layer_norm_eps(tower),
    )


def read_blocks(weights: Weights, prefix: str, depth: int) -> dict[str, Tensor]:
    """Weights of all blocks under our names; q, k and v are packed into one copy."""
    names = {"norm1": "layer_norm1", "norm2": "layer_norm2", "attn.out": "self_attn.out_proj"}
    names |= {"mlp.up": "mlp.fc1", "mlp.down": "mlp.fc2"}
    out: dict[str, Tensor] = {}
    for i in range(depth):
        source, target = f"{prefix}.encoder.layers.{i}.", f"blocks.{i}."
        weights.copy_into(out, names, source, target)
        for part in ("weight", "bias"):
            out[f"{target}attn.qkv.{part}"] = weights.pack(f"{source}self_attn.{p}_proj.{part}" for p in "qkv")
    return out


def _vision(model: Any, weights: Weights) -> ViT:
    host = model.vision_model
    blocks = block_shape(host)
    shape = ViTShape(
        blocks=blocks,
        image_size=square(host.embeddings.image_size, "image size"),
        patch=square(host.embeddings.patch_size, "patch size"),
        embed=model.visual_projection.out_features,
    )
    out = read_blocks(weights, "vision_model", blocks.depth)
    weights.copy_into(out, {"norm_pre": "pre_layrnorm", "norm_post": "post_layernorm"}, "vision_model.")
    out["patch_embed.weight"] = weights.take("vision_model.embeddings.patch_embedding.weight")
    out["class_embed"] = weights.take("vision_model.embeddings.class_embedding")
    out["positions"] = weights.take("vision_model.embeddings.position_embedding.weight")
    out["projection.weight"] = weights.take("visual_projection.weight")
    return build_vision(shape, out)


def _text(model: Any, weights: Weights) -> TextTower:
    host = model.text_model
    blocks = block_shape(host)
    eos = int(host.eos_token_id)
    pool: TextPool = "eos_argmax" if eos == _LEGACY_EOS else "eos_id"
    out = read_blocks(weights, "text_model", blocks.depth)
    weights.copy_into(out, {"norm_post": "final_layer_norm"}, "text_model.")
    out["tokens.weight"] = weights.take("text_model.embeddings.token_embedding.weight")
    out["positions"] = weights.take("text_model.embeddings.position_embedding.weight")
    out["projection.weight"] = weights.take("text_projection.weight")
    (vocab, _), (context, _) = out["tokens.weight"].shape, out["positions"].shape
    shape = TextShape(blocks, vocab, context, model.text_projection.out_features, pool=pool, eos_id=eos)
    return build_text(shape, out)


@register(lambda model: is_a(model, "transformers", "CLIPModel"))
def import_clip(model: nn.Module) -> Towers:
    """Our towers around a transformers CLIPModel."""
    weights = Weights(model)
    vision, text = _vision(model, weights), _text(model, weights)
    scale = math.exp(weights.number("logit_scale"))
    weights.finish()
    return Towers(vision, text, scale, 0.0, "clip")
