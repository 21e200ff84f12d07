"""Shapes of the towers people use, for counting costs without weights, under open_clip's names."""

from __future__ import annotations

from lessmore.assets import MODELS
from lessmore.core.text import TextShape
from lessmore.core.vit import BlockShape, ViTShape
from lessmore.models.towers.hf_siglip import siglip_text_shape, siglip_vision_shape


def _clip(image: int, patch: int, width: int, depth: int, text_width: int, embed: int) -> tuple[ViTShape, TextShape]:
    vision = BlockShape(width, depth, width // 64, 4 * width, "quick_gelu")
    text = BlockShape(text_width, 12, text_width // 64, 4 * text_width, "quick_gelu")
    return ViTShape(vision, image, patch, embed), TextShape(text, 49408, 77, embed)


def _siglip(image: int, patch: int, vocab: int) -> tuple[ViTShape, TextShape]:
    blocks = BlockShape(768, 12, 12, 3072, "gelu_tanh", eps=1e-6)
    return siglip_vision_shape(blocks, image, patch), siglip_text_shape(blocks, vocab, 64, 768)


SHAPES: dict[str, tuple[ViTShape, TextShape]] = {
    "ViT-B-32": _clip(224, 32, 768, 12, 512, 512),
    "ViT-B-16": _clip(224, 16, 768, 12, 512, 512),
    "ViT-L-14": _clip(224, 14, 1024, 24, 768, 768),
    "ViT-L-14-336": _clip(336, 14, 1024, 24, 768, 768),
    "ViT-B-16-SigLIP": _siglip(224, 16, 32000),
    "ViT-B-16-SigLIP2": _siglip(224, 16, 256000),
}


def list_models() -> list[str]:
    """Models known by name: the embedded ones, and tower shapes whose costs are known without their weights.

    `lessmore.load` takes any supported model, named here or not.

    Example:
        >>> import lessmore
        >>> lessmore.list_models()[:3]
        ['tiny', 'tiny-siglip', 'ViT-B-32']
    """
    return [*MODELS, *SHAPES]
