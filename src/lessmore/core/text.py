"""The text tower: the blocks of `vit.py` over token embeddings, pooled at one position.

Prompt learning feeds embeddings instead of token ids, so looking tokens up (`embed`) and encoding what was looked up
(`encode_embeddings`) are two steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from lessmore.core.vit import Block, BlockShape

TextPool = Literal["eos_argmax", "eos_id", "last"]


@dataclass(frozen=True)
class TextShape:
    """What a text tower looks like; enough to count its cost without any weights."""

    blocks: BlockShape
    vocab: int
    context: int
    """Most tokens T a text may have."""
    embed: int
    """Length E of the feature."""
    causal: bool = True
    pool: TextPool = "eos_argmax"
    """The position that becomes the feature: of the largest token id, of the first `eos_id`, or the last one."""
    eos_id: int = -1
    """The end-of-text token; used only with pool=`eos_id`."""
    projection: bool = True
    projection_bias: bool = False


class TextTower(nn.Module):
    """Token ids to features: embed → blocks → final norm → pool → projection."""

    def __init__(self, shape: TextShape) -> None:
        super().__init__()
        self.shape = shape
        D = shape.blocks.width
        # Weights are always loaded; drawing random ones on the meta device would import torch's compiler, for a second.
        self.tokens = nn.Embedding(shape.vocab, D, _weight=torch.zeros(shape.vocab, D))
        self.positions = nn.Parameter(torch.zeros(shape.context, D))
        self.blocks = nn.ModuleList(Block(shape.blocks) for _ in range(shape.blocks.depth))
        self.norm_post = nn.LayerNorm(D, eps=shape.blocks.eps)
        self.projection = nn.Linear(D, shape.embed, bias=shape.projection_bias) if shape.projection else nn.Identity()

    def embed(self, tokens: Tensor) -> Tensor:
        """Token ids [B, T] → token embeddings [B, T, D], positions not yet added."""
        x: Tensor = self.tokens(tokens)
        return x

    def pool_index(self, tokens: Tensor) -> Tensor:
        """Position [B] whose output is the feature of token ids [B, T]."""
        if self.shape.pool == "eos_argmax":
            return tokens.argmax(dim=-1)
        if self.shape.pool == "eos_id":
            return torch.eq(tokens, self.shape.eos_id).int().argmax(dim=-1)
        return tokens.new_full((len(tokens),), tokens.shape[1] - 1)

    def trim(self, tokens: Tensor) -> Tensor:
        """Token ids [B, T] without the columns no feature depends on; unchanged unless attention is causal."""
        if not self.shape.causal or self.shape.pool == "last" or len(tokens) == 0:
            return tokens
        return tokens[:, : int(self.pool_index(tokens).max()) + 1]

    def encode_embeddings(self, x: Tensor, tokens: Tensor) -> Tensor:
        """Features `[B, E]` of embedded texts, not normalised.

        Args:
            x: Token embeddings without positions, `[B, T, D]`.
            tokens: Token ids, `[B, T]`; they only say where to pool.
        """
        x = x + self.positions[: x.shape[1]]
        for block in self.blocks:
            x = block(x, self.shape.causal)
        x = x[torch.arange(len(x), device=x.device), self.pool_index(tokens)]
        feature: Tensor = self.projection(self.norm_post(x))
        return feature

    def forward(self, tokens: Tensor) -> Tensor:
        """Token ids [B, T] → features [B, E], not normalised."""
        return self.encode_embeddings(self.embed(tokens), tokens)
