"""Shapes of the towers people use, for counting costs without weights, under open_clip's names.

Activations are those that the weights were published with; they do not change what anything costs.
"""

from __future__ import annotations

from dataclasses import replace

from lessmore.assets import MODELS
from lessmore.core.rope import Rope
from lessmore.core.text import TextShape
from lessmore.core.vit import BlockShape, ViTShape
from lessmore.models.towers.dinotxt import dino_rope
from lessmore.models.towers.hf_siglip import siglip_text_shape, siglip_vision_shape

DINOTXT = "dinov3_vitl16_dinotxt_tet1280d20h24l"
"""Under its repository's own name; open_clip does not have it."""
Shapes = tuple[ViTShape, TextShape]
_CLIP_WORDS, _SIGLIP_WORDS, _SIGLIP2_WORDS, _META2_WORDS = 49_408, 32_000, 256_000, 901_629


def _text(width: int, depth: int, embed: int, activation: str = "gelu", context: int = 77) -> TextShape:
    return TextShape(
        BlockShape(width, depth, width // 64, 4 * width, activation), _CLIP_WORDS, context=context, embed=embed
    )


def _clip(image: int, patch: int, width: int, depth: int, text_width: int, embed: int) -> Shapes:
    vision = BlockShape(width, depth, width // 64, 4 * width, "quick_gelu")
    return ViTShape(vision, image, patch, embed), _text(text_width, 12, embed, "quick_gelu")


def _worldwide(image: int, width: int, depth: int, heads: int, mlp: int, text_width: int) -> Shapes:
    """MetaCLIP 2."""
    vision, text = BlockShape(width, depth, heads, mlp), _text(text_width, 24 if text_width < 1280 else 32, text_width)
    return ViTShape(vision, image, 14, text_width), replace(text, vocab=_META2_WORDS, pool="eos_id", eos_id=2)


_SIGLIP = {
    "B": BlockShape(768, 12, 12, 3072, "gelu_tanh", 1e-6),
    "L": BlockShape(1024, 24, 16, 4096, "gelu_tanh", 1e-6),
    "SO400M": BlockShape(1152, 27, 16, 4304, "gelu_tanh", 1e-6),
}


def _siglip(size: str, image: int, patch: int, words: int = _SIGLIP_WORDS, context: int = 64) -> Shapes:
    blocks = _SIGLIP[size]
    return siglip_vision_shape(blocks, image, patch), siglip_text_shape(blocks, words, context, blocks.width)


def _siglip2(size: str, image: int, patch: int) -> Shapes:
    return _siglip(size, image, patch, _SIGLIP2_WORDS)


def _naflex(size: str) -> Shapes:
    """SigLIP 2 NaFlex; 256 positions are learned, and published for images of at most as many patches."""
    vision, text = _siglip2(size, 256, 16)
    return replace(vision, flexible=True), text


def _giant_siglip2(image: int) -> Shapes:
    """Its vision tower is wider than the text tower, so it projects."""
    vision = siglip_vision_shape(BlockShape(1536, 40, 16, 6144, "gelu_tanh", 1e-6), image, 16)
    text = siglip_text_shape(_SIGLIP["SO400M"], _SIGLIP2_WORDS, 64, 1536)
    return vision, text


def _perception(image: int, patch: int, width: int, depth: int, heads: int, embed: int, text: TextShape) -> Shapes:
    """PE-Core with a class token."""
    vision = ViTShape(
        BlockShape(width, depth, heads, 4 * width), image, patch, embed, rope=Rope(1.0, 1.0, columns_first=True),
        pool="map", pool_heads=8, norm_then_pool=True, projection_bias=True,
    )  # fmt: skip
    return vision, text


def _giant_perception() -> Shapes:
    vision = ViTShape(
        BlockShape(1536, 50, 16, 8960), 448, 14, 1280, class_token=False, rope=Rope(0.0, 1.0, columns_first=True),
        pool="map", pool_heads=8, pool_mlp=6144, norm_then_pool=True, projection_bias=True,
    )  # fmt: skip
    return vision, _text(1280, 24, 1280, context=72)


def _eva02(image: int, patch: int, width: int, depth: int, heads: int, mlp: int, text: TextShape) -> Shapes:
    """EVA02-CLIP; its places are those of the 16 × 16 patches it was pretrained with."""
    blocks = BlockShape(width, depth, heads, mlp, "silu", 1e-6, gated=True, inner_norm=True)
    rope = Rope(0.0, 16 / (image // patch))
    return ViTShape(
        blocks, image, patch, text.embed, pre_norm=False, patch_bias=True, rope=rope, projection_bias=True
    ), text  # fmt: skip


def _post_norm_eva(text: TextShape) -> Shapes:
    blocks = BlockShape(1792, 64, 16, 15360, eps=1e-6, post_norm=True)
    return ViTShape(blocks, 224, 14, text.embed, pre_norm=False, patch_bias=True, projection_bias=True), text


def _dinotxt() -> Shapes:
    """DINOv3.txt: a ViT-L/16 of 24 blocks and two behind it."""
    head = BlockShape(1024, 2, 16, 2752, "silu", layer_scale=True, gated=True, turned=False)
    vision = ViTShape(
        BlockShape(1024, 26, 16, 4096, layer_scale=True), 224, 16, 2048, registers=4, pre_norm=False, patch_bias=True,
        rope=dino_rope(14, [100 ** (j / 16) for j in range(16)]), head=head, pool="class_mean", norm_then_pool=True,
        projection=False,
    )  # fmt: skip
    return vision, _text(1280, 24, 2048)


SHAPES: dict[str, Shapes] = {
    "ViT-B-32": _clip(224, 32, 768, 12, 512, 512),
    "ViT-B-16": _clip(224, 16, 768, 12, 512, 512),
    "ViT-L-14": _clip(224, 14, 1024, 24, 768, 768),
    "ViT-L-14-336": _clip(336, 14, 1024, 24, 768, 768),
    "ViT-H-14-worldwide": _worldwide(224, 1280, 32, 16, 5120, 1024),
    "ViT-H-14-worldwide-378": _worldwide(378, 1280, 32, 16, 5120, 1024),
    "ViT-bigG-14-worldwide": _worldwide(224, 1664, 48, 16, 8192, 1280),
    "ViT-bigG-14-worldwide-378": _worldwide(378, 1664, 48, 16, 8192, 1280),
    "ViT-B-16-SigLIP": _siglip("B", 224, 16),
    "ViT-B-16-SigLIP-256": _siglip("B", 256, 16),
    "ViT-B-16-SigLIP-384": _siglip("B", 384, 16),
    "ViT-B-16-SigLIP-512": _siglip("B", 512, 16),
    "ViT-L-16-SigLIP-256": _siglip("L", 256, 16),
    "ViT-L-16-SigLIP-384": _siglip("L", 384, 16),
    "ViT-SO400M-14-SigLIP": _siglip("SO400M", 224, 14, context=16),
    "ViT-SO400M-14-SigLIP-378": _siglip("SO400M", 378, 14),
    "ViT-SO400M-14-SigLIP-384": _siglip("SO400M", 384, 14),
    "ViT-B-32-SigLIP2-256": _siglip2("B", 256, 32),
    "ViT-B-16-SigLIP2": _siglip2("B", 224, 16),
    "ViT-B-16-SigLIP2-256": _siglip2("B", 256, 16),
    "ViT-B-16-SigLIP2-384": _siglip2("B", 384, 16),
    "ViT-B-16-SigLIP2-512": _siglip2("B", 512, 16),
    "ViT-L-16-SigLIP2-256": _siglip2("L", 256, 16),
    "ViT-L-16-SigLIP2-384": _siglip2("L", 384, 16),
    "ViT-L-16-SigLIP2-512": _siglip2("L", 512, 16),
    "ViT-SO400M-14-SigLIP2": _siglip2("SO400M", 224, 14),
    "ViT-SO400M-14-SigLIP2-378": _siglip2("SO400M", 378, 14),
    "ViT-SO400M-16-SigLIP2-256": _siglip2("SO400M", 256, 16),
    "ViT-SO400M-16-SigLIP2-384": _siglip2("SO400M", 384, 16),
    "ViT-SO400M-16-SigLIP2-512": _siglip2("SO400M", 512, 16),
    "ViT-B-16-SigLIP2-naflex": _naflex("B"),
    "ViT-SO400M-16-SigLIP2-naflex": _naflex("SO400M"),
    "ViT-gopt-16-SigLIP2-256": _giant_siglip2(256),
    "ViT-gopt-16-SigLIP2-384": _giant_siglip2(384),
    "PE-Core-T-16-384": _perception(384, 16, 192, 12, 3, 512, _text(512, 12, 512, context=32)),
    "PE-Core-S-16-384": _perception(384, 16, 384, 12, 6, 512, _text(512, 12, 512, context=32)),
    "PE-Core-B-16": _perception(224, 16, 768, 12, 12, 1024, _text(1024, 24, 1024, context=32)),
    "PE-Core-L-14-336": _perception(336, 14, 1024, 24, 16, 1024, _text(1024, 24, 1024, context=32)),
    "PE-Core-bigG-14-448": _giant_perception(),
    "EVA02-B-16": _eva02(224, 16, 768, 12, 12, 2048, _text(512, 12, 512)),
    "EVA02-L-14": _eva02(224, 14, 1024, 24, 16, 2730, _text(768, 12, 768)),
    "EVA02-L-14-336": _eva02(336, 14, 1024, 24, 16, 2730, _text(768, 12, 768)),
    "EVA02-E-14": _post_norm_eva(_text(1024, 24, 1024)),
    "EVA02-E-14-plus": _post_norm_eva(_text(1280, 32, 1024)),
    DINOTXT: _dinotxt(),
}


def list_models() -> list[str]:
    """Models known by name: the embedded ones, and tower shapes whose costs are known without their weights.

    `lessmore.load` takes any supported model, named here or not.

    Examples:
        >>> import lessmore
        >>> lessmore.list_models()[:3]
        ['tiny', 'tiny-siglip', 'ViT-B-32']
    """
    return [*MODELS, *SHAPES]
