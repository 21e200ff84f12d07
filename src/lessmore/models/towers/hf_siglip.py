"""transformers' SiglipModel, versions 4.57 to 5; SigLIP 2 checkpoints of fixed resolution are SiglipModels too.

What the family shares with SigLIP 2 NaFlex (`hf_siglip2.py`) is public here.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from lessmore.core.text import TextShape
from lessmore.core.vit import BlockShape, ViTShape
from lessmore.models.towers.hf_clip import block_shape, read_blocks
from lessmore.models.towers.registry import Towers, is_a, register_family
from lessmore.models.towers.weights import (
    Weights,
    activation_name,
    build_text,
    build_vision,
    patch_kernel,
    square,
    the_one,
    unsupported_model,
)


def _read_head(weights: Weights, out: dict[str, Tensor], width: int) -> None:
    source, target = "vision_model.head.", "map_pool."
    out[f"{target}probe"] = weights.take(f"{source}probe").view(width)
    for part in ("weight", "bias"):
        packed = weights.take(f"{source}attention.in_proj_{part}")
        out[f"{target}q.{part}"], out[f"{target}kv.{part}"] = packed[:width], packed[width:]
    names = {"out": "attention.out_proj", "norm": "layernorm", "mlp.up": "mlp.fc1", "mlp.down": "mlp.fc2"}
    weights.copy_into(out, names, source, target)


def check_head(host: Any, blocks: BlockShape) -> None:
    """Refuse a transformers SigLIP tower whose MAP head is missing or unlike its blocks.

    Args:
        host: The vision tower.
        blocks: Shape of its blocks.

    Raises:
        ModelError: There is none, or its heads or its activation are others.
    """
    head = getattr(host, "head", None)
    if head is None:
        raise unsupported_model("a SigLIP model without its pooling head (vision_use_head=False)")
    the_one((blocks.heads, head.attention.num_heads), "head counts")
    the_one((blocks.activation, activation_name(head.mlp.activation_fn)), "activations")


def siglip_vision_shape(blocks: BlockShape, image_size: int, patch: int) -> ViTShape:
    """A SigLIP vision tower: no class token; all tokens are normed, then pooled by a MAP head.

    Args:
        blocks: Shape of the blocks; the embedding is as wide as they are.
        image_size: Side of the square input, in pixels.
        patch: Side of a patch, in pixels.
    """
    return ViTShape(
        blocks,
        image_size,
        patch,
        embed=blocks.width,
        class_token=False,
        pre_norm=False,
        patch_bias=True,
        pool="map",
        norm_then_pool=True,
        projection=False,
    )


def _vision_shape(model: Any) -> ViTShape:
    host = model.vision_model
    blocks = block_shape(host)
    check_head(host, blocks)
    patch = square(host.embeddings.patch_size, "patch size")
    return siglip_vision_shape(blocks, square(host.embeddings.image_size, "image size"), patch)


def siglip_text_shape(blocks: BlockShape, vocab: int, context: int, embed: int) -> TextShape:
    """A SigLIP text tower: attention is bidirectional and the last token is the feature.

    Args:
        blocks: Shape of the blocks.
        vocab: Number of token ids.
        context: Tokens per text.
        embed: Width of the embedding.
    """
    return TextShape(blocks, vocab, context, embed, causal=False, pool="last", projection_bias=True)


def siglip_text_of(model: Any) -> TextShape:
    """Shape of the text tower of a transformers SigLIP model, read off its modules."""
    host = model.text_model
    tokens, positions = host.embeddings.token_embedding, host.embeddings.position_embedding
    return siglip_text_shape(block_shape(host), tokens.num_embeddings, positions.num_embeddings, host.head.out_features)


def siglip_towers(vision: ViTShape, text: TextShape, weights: Weights) -> Towers:
    """Our towers of the given shapes around weights under transformers' SigLIP names.

    Args:
        vision: Shape of the vision tower.
        text: Shape of the text tower.
        weights: The host's weights; every one of them must be used.

    Raises:
        ModelError: The weights do not match the shapes.
    """
    seen = read_blocks(weights, "vision_model", vision.blocks.depth)
    names = {"patch_embed": "embeddings.patch_embedding", "norm_post": "post_layernorm"}
    weights.copy_into(seen, names, "vision_model.")
    seen["patch_embed.weight"] = patch_kernel(seen["patch_embed.weight"], vision.patch)
    seen["positions"] = weights.take("vision_model.embeddings.position_embedding.weight")
    _read_head(weights, seen, vision.blocks.width)
    read = read_blocks(weights, "text_model", text.blocks.depth)
    weights.copy_into(read, {"norm_post": "final_layer_norm", "projection": "head"}, "text_model.")
    read["tokens.weight"] = weights.take("text_model.embeddings.token_embedding.weight")
    read["positions"] = weights.take("text_model.embeddings.position_embedding.weight")
    scale, bias = math.exp(weights.number("logit_scale")), weights.number("logit_bias")
    weights.finish()
    return Towers(build_vision(vision, seen), build_text(text, read), scale, bias, "siglip")


@register_family("transformers-siglip", lambda model: is_a(model, "transformers", "SiglipModel"))
def import_siglip(model: nn.Module) -> Towers:
    """Our towers around a transformers SiglipModel."""
    return siglip_towers(_vision_shape(model), siglip_text_of(model), Weights(model.state_dict()))
