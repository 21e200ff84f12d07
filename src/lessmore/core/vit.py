"""One plain transformer for every supported tower: readable, and free of any host library.

Importers in `lessmore.models.towers` fill it by name from open_clip, timm and transformers models; the encoder drives
its blocks one half at a time, because tokens are condensed between attention and MLP.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lessmore.core.flexible import grid_positions
from lessmore.core.rope import Places, Rope

Pool = Literal["class", "map", "mean", "class_mean"]


def quick_gelu(x: Tensor) -> Tensor:
    """x·σ(1.702x), the activation of OpenAI's weights."""
    return x * torch.sigmoid(1.702 * x)


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU by its tanh approximation, the activation of SigLIP."""
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "quick_gelu": quick_gelu,
    "gelu": F.gelu,
    "gelu_tanh": gelu_tanh,
    "relu": F.relu,
    "silu": F.silu,
}


@dataclass(frozen=True)
class BlockShape:
    """What a stack of blocks looks like; `activation` is a key of `ACTIVATIONS`."""

    width: int
    depth: int
    heads: int
    mlp: int
    activation: str = "gelu"
    eps: float = 1e-5
    layer_scale: bool = False
    gated: bool = False
    """The MLP's hidden values are a linear map of the input times the activation of another (SwiGLU)."""
    inner_norm: bool = False
    """LayerNorm on what the heads found and on the MLP's hidden values, before each is projected."""
    post_norm: bool = False
    """Both norms act on what attention and MLP return, not on what they get."""
    out_norm: bool = False
    """LayerNorm on the residual stream that leaves the block."""
    turned: bool = True
    """In towers with rotary positions: whether the queries and keys of these blocks are turned."""


@dataclass(frozen=True)
class ViTShape:
    """What a vision tower looks like; enough to count its cost without any weights."""

    blocks: BlockShape
    """All blocks, `head` included in their number."""
    image_size: int
    patch: int
    embed: int
    """Length E of the feature."""
    class_token: bool = True
    registers: int = 0
    """Learned tokens between the class token and the patches, which nothing reads off in the end."""
    pre_norm: bool = True
    """LayerNorm on the embedded tokens, before the first block."""
    patch_bias: bool = False
    rope: Rope | None = None
    """Queries and keys of patches are turned by their place."""
    head: BlockShape | None = None
    """The shape of the last blocks where it differs, after a LayerNorm; its depth says how many there are."""
    pool: Pool = "class"
    """`class_mean` is the class token and the mean of the patches, one after the other, each projected by itself."""
    pool_heads: int | None = None
    """Heads of the MAP head where they are not as many as a block's."""
    pool_mlp: int | None = None
    """Hidden width of its MLP where that is not a block's."""
    norm_then_pool: bool = False
    """The final LayerNorm acts on all tokens before pooling, not on the pooled vector."""
    projection: bool = True
    projection_bias: bool = False
    flexible: bool = False
    """Images may have any height and width of whole patches; `image_size` is that of the grid of learned positions."""

    @property
    def patches(self) -> int:
        """Number n of patch tokens; of a flexible tower, those of the grid of learned positions."""
        return (self.image_size // self.patch) ** 2

    def block(self, i: int) -> BlockShape:
        """What one block looks like.

        Args:
            i: Its number, from 0.
        """
        if self.head is None or i < (border := self.blocks.depth - self.head.depth) - 1:
            return self.blocks
        return self.head if i >= border else replace(self.blocks, out_norm=True)

    def takes(self, height: int, width: int) -> bool:
        """Whether the tower takes images of a size.

        Args:
            height: In pixels.
            width: In pixels.
        """
        if self.flexible:
            return min(height, width) > 0 and height % self.patch == width % self.patch == 0
        return height == width == self.image_size

    @property
    def size_text(self) -> str:
        """Height and width of what it takes, for errors: `224, 224`, or `16·h, 16·w` with any h and w."""
        return f"{self.patch}·h, {self.patch}·w" if self.flexible else f"{self.image_size}, {self.image_size}"

    @property
    def first(self) -> int:
        """Tokens before the first patch: class token and registers, which are never condensed."""
        return self.class_token + self.registers

    @property
    def tokens(self) -> int:
        """Number N of tokens that enter the first block."""
        return self.patches + self.first


class Attention(nn.Module):
    """Multi-head attention with packed q, k, v, split so that scores can be read off q and k."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self.heads, self.turned = shape.heads, shape.turned
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.norm = nn.LayerNorm(shape.width, eps=shape.eps) if shape.inner_norm else nn.Identity()
        self.out = nn.Linear(shape.width, shape.width)

    def project(self, x: Tensor, places: Places | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each `[B, H, N, d]`.

        Args:
            x: Tokens, `[B, N, D]`.
            places: Where the tokens lie, which turns queries and keys; None turns nothing.
        """
        B, N, D = x.shape
        q, k, v = self.qkv(x).view(B, N, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        return self.turn(q, places), self.turn(k, places), v

    def turn(self, x: Tensor, places: Places | None) -> Tensor:
        """Queries or keys `[B, H, N, d]`, turned by their places.

        Args:
            x: Queries or keys.
            places: Where the tokens lie; None turns nothing, and neither does a block whose shape is not `turned`.
        """
        return places.rotate(x) if places is not None and self.turned else x

    def combine(self, heads: Tensor) -> Tensor:
        """Per-head results [B, H, N, d] → [B, N, D] through the output projection."""
        return self.out(self.norm(heads.transpose(1, 2).flatten(2)))

    def forward(
        self, x: Tensor, causal: bool = False, bias: Tensor | None = None, places: Places | None = None
    ) -> Tensor:
        """Plain self-attention in the fused kernel, `[B, N, D]` → `[B, N, D]`.

        Args:
            x: Tokens, `[B, N, D]`.
            causal: Whether a token sees only itself and those before it.
            bias: Added to the attention logits of the keys, `[B, 1, 1, N]`; None adds nothing.
            places: Where the tokens lie, in towers that turn by places; None in others.
        """
        q, k, v = self.project(x, places)
        return self.combine(F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=causal))


class Mlp(nn.Module):
    """Two linear layers around an activation, [B, N, D] → [B, N, D]; gate and norm where the shape has them."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self.up = nn.Linear(shape.width, shape.mlp)
        self.gate = nn.Linear(shape.width, shape.mlp) if shape.gated else None
        self.norm = nn.LayerNorm(shape.mlp, eps=shape.eps) if shape.inner_norm else nn.Identity()
        self.down = nn.Linear(shape.mlp, shape.width)
        self.kind, self.activation = shape.activation, ACTIVATIONS[shape.activation]

    def forward(self, x: Tensor) -> Tensor:
        """Apply the MLP to every token."""
        hidden = self.activation(self.up(x)) if self.gate is None else self.activation(self.gate(x)) * self.up(x)
        return self.down(self.norm(hidden))


class Block(nn.Module):
    """A residual block in two halves: attention, then MLP; the norms come before them, or after."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(shape.width, eps=shape.eps)
        self.attn = Attention(shape)
        self.norm2 = nn.LayerNorm(shape.width, eps=shape.eps)
        self.mlp = Mlp(shape)
        self.post_norm = shape.post_norm
        self.norm_out = nn.LayerNorm(shape.width, eps=shape.eps) if shape.out_norm else nn.Identity()
        self.scale1 = nn.Parameter(torch.ones(shape.width)) if shape.layer_scale else None
        self.scale2 = nn.Parameter(torch.ones(shape.width)) if shape.layer_scale else None

    def attention_input(self, x: Tensor) -> Tensor:
        """What the attention gets of the residual stream [B, N, D]."""
        return x if self.post_norm else self.norm1(x)

    def add_attention(self, x: Tensor, attended: Tensor) -> Tensor:
        """The residual stream after the attention half, `[B, N, D]`.

        Args:
            x: The residual stream before it, `[B, N, D]`.
            attended: The attention output, `[B, N, D]`; normed and scaled here where the block does that.
        """
        attended = self.norm1(attended) if self.post_norm else attended
        return x + (attended if self.scale1 is None else attended * self.scale1)

    def add_mlp(self, x: Tensor) -> Tensor:
        """The residual stream `[B, N, D]` after the MLP half."""
        y = self.norm2(self.mlp(x)) if self.post_norm else self.mlp(self.norm2(x))
        left: Tensor = self.norm_out(x + (y if self.scale2 is None else y * self.scale2))
        return left

    def forward(
        self, x: Tensor, causal: bool = False, bias: Tensor | None = None, places: Places | None = None
    ) -> Tensor:
        """The whole block, `[B, N, D]` → `[B, N, D]`.

        Args:
            x: Tokens, `[B, N, D]`.
            causal: Whether a token sees only itself and those before it.
            bias: Added to the attention logits of the keys, `[B, 1, 1, N]`; None adds nothing.
            places: Where the tokens lie, in towers that turn by places; None in others.
        """
        return self.add_mlp(self.add_attention(x, self.attn(self.attention_input(x), causal, bias, places)))


def size_bias(size: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Attention bias `[B, 1, 1, N]` that makes a token of size s count as s keys, and one of size 0 as none.

    Args:
        size: Sizes of the tokens, `[B, N]`; None needs no bias.
        dtype: Type of the bias.
    """
    return None if size is None else size.log().to(dtype)[:, None, None]


def weighted_mean(x: Tensor, weight: Tensor | None = None) -> Tensor:
    """Mean over tokens, `[B, D]`.

    Args:
        x: Tokens, `[B, N, D]`.
        weight: How much each token counts, `[B, N]`; None counts all alike.
    """
    if weight is None:
        return x.mean(dim=1)
    weight = weight / weight.sum(dim=1, keepdim=True)
    return (weight.to(x.dtype).unsqueeze(1) @ x).squeeze(1)


class MapPool(nn.Module):
    """SigLIP's attention pooling: a learned probe attends to all tokens, then a residual MLP. [B, N, D] → [B, D]."""

    def __init__(self, shape: ViTShape) -> None:
        super().__init__()
        blocks = shape.blocks
        D = blocks.width
        self.heads = shape.pool_heads or blocks.heads
        self.probe = nn.Parameter(torch.zeros(D))
        self.q = nn.Linear(D, D)
        self.kv = nn.Linear(D, 2 * D)
        self.out = nn.Linear(D, D)
        self.norm = nn.LayerNorm(D, eps=blocks.eps)
        self.mlp = Mlp(replace(blocks, mlp=shape.pool_mlp or blocks.mlp, gated=False, inner_norm=False))

    def forward(self, x: Tensor, size: Tensor | None = None) -> Tensor:
        """Pool any number of tokens.

        Args:
            x: Tokens, `[B, N, D]`.
            size: How many patches each stands for, `[B, N]`; None if each is one.
        """
        B, N, D = x.shape
        q = self.q(self.probe).view(1, self.heads, 1, -1).expand(B, -1, -1, -1)
        k, v = self.kv(x).view(B, N, 2, self.heads, D // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        bias = size_bias(size, q.dtype)
        y = self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=bias).flatten(1))
        return y + self.mlp(self.norm(y))


class ViT(nn.Module):
    """The vision tower: embed → blocks → pool."""

    def __init__(self, shape: ViTShape) -> None:
        super().__init__()
        self.shape = shape
        D, eps = shape.blocks.width, shape.blocks.eps
        self.patch_embed = nn.Conv2d(3, D, shape.patch, stride=shape.patch, bias=shape.patch_bias)
        self.class_embed = nn.Parameter(torch.zeros(D)) if shape.class_token else None
        self.registers = nn.Parameter(torch.zeros(shape.registers, D)) if shape.registers else None
        self.positions = nn.Parameter(torch.zeros(shape.tokens, D))
        self.norm_pre = nn.LayerNorm(D, eps=eps) if shape.pre_norm else nn.Identity()
        self.blocks = nn.ModuleList(Block(shape.block(i)) for i in range(shape.blocks.depth))
        self.norm_post = nn.LayerNorm(D, eps=(shape.head or shape.blocks).eps)
        self.map_pool = MapPool(shape) if shape.pool == "map" else None
        out = shape.embed // 2 if shape.pool == "class_mean" else shape.embed
        self.projection = nn.Linear(D, out, bias=shape.projection_bias) if shape.projection else nn.Identity()

    def embed(self, pixels: Tensor) -> Tensor:
        """Preprocessed images [B, 3, H, W] → tokens [B, N, D]: class token, registers, then patches."""
        x = self.patch_embed(pixels)
        positions = grid_positions(self.positions, *x.shape[2:]) if self.shape.flexible else self.positions
        x = x.flatten(2).transpose(1, 2)
        if self.registers is not None:
            x = torch.cat([self.registers.expand(len(x), -1, -1), x], dim=1)
        if self.class_embed is not None:
            x = torch.cat([self.class_embed.expand(len(x), 1, -1), x], dim=1)
        return self.norm_pre(x + positions)

    def places(self) -> Places | None:
        """Where the tokens of every image lie before any is condensed; None where the tower does not turn by places."""
        shape = self.shape
        if shape.rope is None:
            return None
        at = shape.rope.grid(shape.image_size // shape.patch, shape.first, self.positions)
        return Places.of(shape.rope, at, shape.blocks.width // shape.blocks.heads)

    def pool(self, x: Tensor, size: Tensor | None = None) -> Tensor:
        """The feature `[B, E]`, not normalised.

        Args:
            x: Tokens after the last block, `[B, N, D]`.
            size: How many patches each stands for, `[B, N]`; None if each is one.
        """
        if self.shape.norm_then_pool:
            x = self.norm_post(x)
        if self.map_pool is not None:
            x = self.map_pool(x, size)
        elif self.shape.pool == "class":
            x = x[:, 0]
        else:
            first = self.shape.first
            mean = weighted_mean(x[:, first:], None if size is None else size[:, first:])
            x = mean if self.shape.pool == "mean" else torch.stack([x[:, 0], mean], dim=1)
        if not self.shape.norm_then_pool:
            x = self.norm_post(x)
        return self.projection(x).flatten(1)

    def forward(self, pixels: Tensor) -> Tensor:
        """Images [B, 3, H, W] → features [B, E], nothing condensed."""
        x, places = self.embed(pixels), self.places()
        for block in self.blocks:
            x = block(x, places=places)
        return self.pool(x)
