"""PE-Core and EVA-CLIP: the real towers where they are small, and small ones with the same parts where they are not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

TEXT = {"context_length": 16, "vocab_size": 64, "width": 32, "heads": 2, "layers": 2}
SMALL = {"img_size": 56, "patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 3}
"""7 × 7 patches, heads of 16 dimensions."""
PE = {
    "attn_type": "rope",
    "use_pre_transformer_norm": True,
    "use_rot_pos_emb": True,
    "rope_grid_indexing": "xy",
    "attn_pool_num_heads": 8,
    "attn_pool_mlp_ratio": 4.0,
    "norm_layer": partial(nn.LayerNorm, eps=1e-5),
    "global_pool": "map",
}
EVA02 = {
    "qkv_fused": False,
    "mlp_ratio": 4 * 2 / 3,
    "swiglu_mlp": True,
    "scale_mlp": True,
    "scale_attn_inner": True,
    "use_rot_pos_emb": True,
    "ref_feat_shape": (16, 16),
    "global_pool": "token",
}
SHAPES: dict[str, dict[str, Any]] = {
    "PE-class-token": SMALL | PE | {"rope_grid_offset": 1.0, "ref_feat_shape": (5, 5)},
    "PE-without-class-token": SMALL | PE | {"class_token": False, "mlp_ratio": 5.5, "ref_feat_shape": (7, 7)},
    "EVA02-B": SMALL | EVA02,
    "EVA02-L-packed": SMALL | EVA02 | {"qkv_fused": True, "rope_grid_indexing": "ij"},
    "EVA02-E-post-norm": SMALL | {"use_post_norm": True, "mlp_ratio": 8.5, "global_pool": "token"},
    "EVA01-g": SMALL | {"global_pool": "token", "mlp_ratio": 4.36},
    "layer-scale-registers-mean": SMALL
    | {"use_rot_pos_emb": True, "init_values": 0.1, "num_reg_tokens": 4, "no_embed_class": True, "global_pool": "avg"},
    "no-positions-but-places": SMALL | {"use_rot_pos_emb": True, "use_abs_pos_emb": False, "global_pool": "token"},
}


def _custom_text_clip(timm_name: str, pool: str, embed: int, image_size: int) -> nn.Module:
    import open_clip

    vision = {"timm_model_name": timm_name, "timm_pool": pool, "timm_proj": None, "image_size": image_size}
    model: nn.Module = open_clip.CustomTextCLIP(embed_dim=embed, vision_cfg=vision, text_cfg=TEXT)
    return model


def small(name: str) -> nn.Module:
    """An open_clip model around a small Eva trunk."""
    from timm.models.eva import Eva

    model: Any = _custom_text_clip("eva02_tiny_patch14_224", "token", 24, 224)
    model.visual.trunk = Eva(num_classes=24, **SHAPES[name])
    return model


EVA: dict[str, Callable[[], nn.Module]] = {
    **{f"timm/{name}": partial(small, name) for name in SHAPES},
    "open_clip/PE-Core-T-16-384": partial(_custom_text_clip, "vit_pe_core_tiny_patch16_384", "map", 512, 384),
    "open_clip/PE-Core-B-16": partial(_custom_text_clip, "vit_pe_core_base_patch16_224", "map", 1024, 224),
    "open_clip/EVA02-B-16": partial(_custom_text_clip, "eva02_base_patch16_clip_224", "token", 512, 224),
}
"""Makers of models by name; the text towers are small ones, all else is the real thing where it says so."""
