"""Small random towers and class embeddings for tests."""

from __future__ import annotations

import torch
from torch import Tensor

from lessmore.vit import BlockShape, ViT, ViTShape

BLOCKS = BlockShape(width=16, depth=5, heads=2, mlp=24, activation="quick_gelu")
CLASS = ViTShape(BLOCKS, image_size=24, patch=4, embed=8)
MAP = ViTShape(
    BlockShape(width=16, depth=5, heads=2, mlp=24, activation="gelu_tanh", eps=1e-6),
    image_size=24,
    patch=4,
    embed=16,
    class_token=False,
    pre_norm=False,
    patch_bias=True,
    pool="map",
    norm_then_pool=True,
    projection=False,
)
MEAN = ViTShape(
    BlockShape(width=16, depth=5, heads=4, mlp=24, layer_scale=True), image_size=24, patch=4, embed=8, pool="mean"
)
SHAPES = {"class": CLASS, "map": MAP, "mean": MEAN}


def make_vit(shape: ViTShape = CLASS, seed: int = 0, dtype: torch.dtype = torch.float64, spread: float = 0.3) -> ViT:
    """A tower in which no parameter keeps its neutral start."""
    generator = torch.Generator().manual_seed(seed)
    vit = ViT(shape).to(dtype).eval().requires_grad_(False)
    for name, parameter in vit.named_parameters():
        gain = 1.0 if "scale" in name or (parameter.ndim == 1 and name.endswith("weight")) else 0.0
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.copy_(gain + spread * noise)
    return vit


def make_images(count: int, size: int = 24, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    """Random images [count, 3, size, size]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, size, size, generator=generator, dtype=torch.float64).to(dtype)


def make_text(classes: int, embed: int = 8, seed: int = 2, dtype: torch.dtype = torch.float64) -> Tensor:
    """Random unit vectors [classes, embed]."""
    generator = torch.Generator().manual_seed(seed)
    text = torch.randn(classes, embed, generator=generator, dtype=torch.float64)
    return (text / text.norm(dim=1, keepdim=True)).to(dtype)
