"""transformers' CLIPModel, versions 4.57 to 5, and MetaClip2Model, which names its weights alike."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from lessmore.core.text import TextPool, TextShape
from lessmore.core.vit import BlockShape, ViTShape
from lessmore.models.towers.registry import Towers, is_a, register_family
from lessmore.models.towers.weights import (
    Weights,
    activation_name,
    build_text,
    build_vision,
    layer_norm_eps,
    square,
    the_one,
)

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
    """Weights of all blocks under our names; q, k and v are packed into one copy.

    Args:
        weights: The host's weights.
        prefix: Where the tower is in them, such as `vision_model`.
        depth: Number of blocks.

    Raises:
        ModelError: A weight is missing or quantised.
    """
    names = {"norm1": "layer_norm1", "norm2": "layer_norm2", "attn.out": "self_attn.out_proj"}
    names |= {"mlp.up": "mlp.fc1", "mlp.down": "mlp.fc2"}
    out: dict[str, Tensor] = {}
    for i in range(depth):
        source, target = f"{prefix}.encoder.layers.{i}.", f"blocks.{i}."
        weights.copy_into(out, names, source, target)
        for part in ("weight", "bias"):
            out[f"{target}attn.qkv.{part}"] = weights.pack(f"{source}self_attn.{p}_proj.{part}" for p in "qkv")
    return out


def _vision_shape(model: Any) -> ViTShape:
    host = model.vision_model
    return ViTShape(
        blocks=block_shape(host),
        image_size=square(host.embeddings.image_size, "image size"),
        patch=square(host.embeddings.patch_size, "patch size"),
        embed=model.visual_projection.out_features,
    )


def _text_shape(model: Any) -> TextShape:
    host = model.text_model
    eos = int(host.eos_token_id)
    legacy = eos == _LEGACY_EOS and is_a(model, "transformers", "CLIPModel")
    pool: TextPool = "eos_argmax" if legacy else "eos_id"
    tokens, positions = host.embeddings.token_embedding, host.embeddings.position_embedding
    embed = model.text_projection.out_features
    return TextShape(block_shape(host), tokens.num_embeddings, positions.num_embeddings, embed, pool=pool, eos_id=eos)


def clip_towers(vision: ViTShape, text: TextShape, weights: Weights) -> Towers:
    """Our towers of the given shapes around weights under transformers' CLIP names.

    Args:
        vision: Shape of the vision tower.
        text: Shape of the text tower.
        weights: The host's weights; every one of them must be used.

    Raises:
        ModelError: The weights do not match the shapes.
    """
    seen = read_blocks(weights, "vision_model", vision.blocks.depth)
    weights.copy_into(seen, {"norm_pre": "pre_layrnorm", "norm_post": "post_layernorm"}, "vision_model.")
    seen["patch_embed.weight"] = weights.take("vision_model.embeddings.patch_embedding.weight")
    seen["class_embed"] = weights.take("vision_model.embeddings.class_embedding")
    seen["positions"] = weights.take("vision_model.embeddings.position_embedding.weight")
    seen["projection.weight"] = weights.take("visual_projection.weight")
    read = read_blocks(weights, "text_model", text.blocks.depth)
    weights.copy_into(read, {"norm_post": "final_layer_norm"}, "text_model.")
    read["tokens.weight"] = weights.take("text_model.embeddings.token_embedding.weight")
    read["positions"] = weights.take("text_model.embeddings.position_embedding.weight")
    read["projection.weight"] = weights.take("text_projection.weight")
    scale = math.exp(weights.number("logit_scale"))
    weights.finish()
    return Towers(build_vision(vision, seen), build_text(text, read), scale, 0.0, "clip")


@register_family("transformers-clip", lambda model: is_a(model, "transformers", "CLIPModel", "MetaClip2Model"))
def import_clip(model: nn.Module) -> Towers:
    """Our towers around a transformers CLIPModel or MetaClip2Model."""
    return clip_towers(_vision_shape(model), _text_shape(model), Weights(model.state_dict()))
