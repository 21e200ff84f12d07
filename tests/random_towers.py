"""Small random towers and class embeddings for tests."""

from __future__ import annotations

import itertools
from dataclasses import replace

import torch
from torch import Tensor

from lessmore.core.rope import Rope
from lessmore.core.text import TextShape, TextTower
from lessmore.core.vit import BlockShape, ViT, ViTShape
from lessmore.models.preprocess import Preprocess
from lessmore.models.towers import Family
from lessmore.models.vlm import VLM

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
PLACED = ViTShape(
    BlockShape(width=16, depth=5, heads=2, mlp=20, activation="silu", gated=True, inner_norm=True),
    image_size=24,
    patch=4,
    embed=8,
    registers=2,
    rope=Rope(start=0.75, step=0.75, columns_first=True, base=100.0),
    pool="map",
    pool_heads=4,
    pool_mlp=12,
    norm_then_pool=True,
)
"""What EVA02 and PE-Core have between them, on a class token and registers."""
AFTER = ViTShape(
    BlockShape(width=16, depth=5, heads=2, mlp=24, post_norm=True, layer_scale=True),
    image_size=24,
    patch=4,
    embed=8,
    class_token=False,
    rope=Rope(start=0.0, step=1.0),
    pool="mean",
)
"""Norms after the halves of a block, and places without a class token."""
HEADED = ViTShape(
    BlockShape(width=16, depth=5, heads=2, mlp=24, layer_scale=True),
    image_size=24,
    patch=4,
    embed=8,
    registers=2,
    rope=Rope(start=-5 / 6, step=1 / 3, turns=(6.3, 0.7)),
    head=BlockShape(width=16, depth=2, heads=2, mlp=20, activation="silu", gated=True, turned=False),
    pool="class_mean",
    norm_then_pool=True,
)
"""DINOv3.txt: behind a norm, two blocks of another kind that see no places."""
FLEXIBLE = replace(MAP, image_size=16, flexible=True)
"""NaFlex: 16 positions are learned, and images of 24 × 24 have 36 patches."""
SHAPES = {
    "class": CLASS,
    "map": MAP,
    "mean": MEAN,
    "placed": PLACED,
    "after": AFTER,
    "headed": HEADED,
    "flexible": FLEXIBLE,
}


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


def make_mixed(count: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Random images [3, H, W] of several aspect ratios, for towers of 4 × 4 patches that take any."""
    grids = [(6, 6), (4, 9), (10, 3), (5, 7), (4, 4)]
    large = make_images(count, 40, seed, dtype)
    return [image[:, : 4 * r, : 4 * c] for image, (r, c) in zip(large, itertools.cycle(grids), strict=False)]


def make_text(classes: int, embed: int = 8, seed: int = 2, dtype: torch.dtype = torch.float64) -> Tensor:
    """Random unit vectors [classes, embed]."""
    generator = torch.Generator().manual_seed(seed)
    text = torch.randn(classes, embed, generator=generator, dtype=torch.float64)
    return (text / text.norm(dim=1, keepdim=True)).to(dtype)


TEXT = TextShape(BlockShape(width=16, depth=2, heads=2, mlp=24), vocab=300, context=12, embed=8)


def letters(texts: list[str]) -> Tensor:
    """A tokenizer for tests: one id per letter, 299 at the end."""
    rows = [[*(ord(letter) % 256 for letter in text[:11]), 299] for text in texts]
    return torch.tensor([[*row, *[0] * (12 - len(row))] for row in rows])


def make_vlm(seed: int = 0, dtype: torch.dtype = torch.float32, shape: ViTShape = CLASS) -> VLM:
    """A whole model of random weights for 24 × 24 images; no host library involved."""
    text = TextTower(replace(TEXT, embed=shape.embed)).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(seed + 100)
    for parameter in text.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator))
    family: Family = "clip" if shape.class_token else "siglip"
    vision = make_vit(shape, seed, dtype, spread=0.25)
    return VLM(vision, text.to(dtype), 10.0, 0.0, letters, Preprocess(24), family, "random")
