"""transformers' SiglipModel, versions 4.57 to 5; SigLIP 2 checkpoints of fixed resolution are SiglipModels too."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from lessmore.text import TextShape, TextTower
from lessmore.towers.hf_clip import block_shape, read_blocks
from lessmore.towers.registry import Towers, is_a, register
from lessmore.towers.weights import Weights, activation_name, build_text, build_vision, square, the_one, unsupported
from lessmore.vit import BlockShape, ViT, ViTShape


def _read_head(weights: Weights, out: dict[str, Tensor], width: int) -> None:
    source, target = "vision_model.head.", "map_pool."
    out[f"{target}probe"] = weights.take(f"{source}probe").view(width)
    for part in ("weight", "bias"):
        packed = weights.take(f"{source}attention.in_proj_{part}")
        out[f"{target}q.{part}"], out[f"{target}kv.{part}"] = packed[:width], packed[width:]
    names = {"out": "attention.out_proj", "norm": "layernorm", "mlp.up": "mlp.fc1", "mlp.down": "mlp.fc2"}
    weights.copy_into(out, names, source, target)


def _check_head(host: Any, blocks: BlockShape) -> None:
    head = getattr(host, "head", None)
    if head is None:
        raise unsupported("a SiglipModel without its pooling head (vision_use_head=False)")
    the_one((blocks.heads, head.attention.num_heads), "head counts")
    the_one((blocks.activation, activation_name(head.mlp.activation_fn)), "activations")


def _vision(model: Any, weights: Weights) -> ViT:
    host = model.vision_model
    blocks = block_shape(host)
    _check_head(host, blocks)
    shape = ViTShape(
        blocks=blocks,
        image_size=square(host.embeddings.image_size, "image size"),
        patch=square(host.embeddings.patch_size, "patch size"),
        embed=blocks.width,
        class_token=False,
        pre_norm=False,
        patch_bias=True,
        pool="map",
        norm_then_pool=True,
        projection=False,
    )
    out = read_blocks(weights, "vision_model", blocks.depth)
    names = {"patch_embed": "embeddings.patch_embedding", "norm_post": "post_layernorm"}
    weights.copy_into(out, names, "vision_model.")
    out["positions"] = weights.take("vision_model.embeddings.position_embedding.weight")
    _read_head(weights, out, blocks.width)
    return build_vision(shape, out)


def _text(model: Any, weights: Weights) -> TextTower:
    blocks = block_shape(model.text_model)
    out = read_blocks(weights, "text_model", blocks.depth)
    weights.copy_into(out, {"norm_post": "final_layer_norm", "projection": "head"}, "text_model.")
    out["tokens.weight"] = weights.take("text_model.embeddings.token_embedding.weight")
    out["positions"] = weights.take("text_model.embeddings.position_embedding.weight")
    (vocab, _), (context, _) = out["tokens.weight"].shape, out["positions"].shape
    embed = len(out["projection.weight"])
    shape = TextShape(blocks, vocab, context, embed, causal=False, pool="last", projection_bias=True)
    return build_text(shape, out)


@register(lambda model: is_a(model, "transformers", "SiglipModel"))
def import_siglip(model: nn.Module) -> Towers:
    """Our towers around a transformers SiglipModel."""
    weights = Weights(model)
    vision, text = _vision(model, weights), _text(model, weights)
    scale, bias = math.exp(weights.number("logit_scale")), weights.number("logit_bias")
    weights.finish()
    return Towers(vision, text, scale, bias, "siglip")
