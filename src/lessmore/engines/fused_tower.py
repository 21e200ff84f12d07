"""A vision tower for one image at a time on CUDA: five launches a block, six in a block that condenses.

Takes the weights of a `ViT` and the configuration of a reducer; everything has a fixed place in memory, so that a
whole step can be captured as one CUDA graph.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from lessmore.config import Condensation, Ready
from lessmore.core.condense.schedule import Stage, schedule
from lessmore.core.condense.source import Step
from lessmore.core.reservoir import Reservoir
from lessmore.core.vit import Block, ViT, ViTShape
from lessmore.engines.kernels.attention import attention
from lessmore.engines.kernels.condense import fused_condense
from lessmore.engines.kernels.elementwise import embed, unfold
from lessmore.engines.kernels.linear import CODES, Packed, Sums, linear, pack_weights, parts
from lessmore.engines.kernels.nearest_anchor import Search, fused_nearest


class PackedBlock(NamedTuple):
    """A block's four products with what surrounds them folded in."""

    qkv: Packed
    out: Packed
    up: Packed
    down: Packed


class StreamPlace(NamedTuple):
    """Where a block writes; every block's residual stream is kept, so that its summary token can be read later."""

    qkv: Tensor
    heads: Tensor
    attended: Tensor
    attended_sums: Sums
    condensed: Tensor
    condensed_sums: Sums
    hidden: Tensor
    x: Tensor
    x_sums: Sums


class Scored(NamedTuple):
    """Where a condensing block writes what it decided."""

    scores: Tensor
    ranks: Tensor
    order: Tensor
    target: Tensor
    label: Tensor
    ticket: Tensor
    size: Tensor | None
    """Logarithm of the number of patches each remaining token stands for, [1, out]; None if all count as one."""


def _sums(rows: int, parts: int, device: torch.device) -> Sums:
    return torch.zeros(2, rows, parts, device=device)


def _scored(heads: int, stage: Stage, sized: bool, device: torch.device) -> Scored:
    n = stage.patches
    whole = {"dtype": torch.int32, "device": device}
    target = torch.zeros(1, n, dtype=torch.int64, device=device)
    label = torch.full((1,), -1, **whole)  # type: ignore[call-overload]
    scores, ticket = torch.zeros(1, heads, n, device=device), torch.zeros(1, **whole)  # type: ignore[call-overload]
    ranks, order = torch.zeros(1, heads, n, **whole), torch.zeros(1, n, **whole)  # type: ignore[call-overload]
    size = torch.zeros(1, stage.out, device=device) if sized else None
    return Scored(scores, ranks, order, target, label, ticket, size)


def cannot_fuse(vit: ViT, config: Condensation) -> str | None:
    """Why the kernels cannot run a tower; None if they can.

    Args:
        vit: The tower.
        config: How it condenses.
    """
    shape = vit.shape
    head = shape.blocks.width // shape.blocks.heads
    if not shape.class_token or shape.pool != "class" or shape.norm_then_pool:
        return "it does not pool by a class token"
    if head < 16 or head & (head - 1):
        return f"its heads have {head} dimensions, not a power of two from 16 on"
    reason = _unknown_part(shape)
    if reason is not None:
        return reason
    if shape.blocks.activation not in CODES:
        return f"its activation is {shape.blocks.activation}"
    if vit.positions.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"its weights are {vit.positions.dtype}"
    if config.rule != "coreset":
        return f"its reducer works by {config.rule}"
    return f"K={config.K} is more than 16" if config.K > 16 else None


def _unknown_part(shape: ViTShape) -> str | None:
    """What the tower has that the kernels have no form of; None where there is nothing."""
    blocks = shape.blocks
    parts = {
        "turns queries and keys by places": shape.rope is not None,
        "takes images of any shape": shape.flexible,
        "has register tokens": shape.registers > 0,
        "has gated MLPs": blocks.gated,
        "has norms inside its blocks' halves": blocks.inner_norm,
        "has norms after its blocks' halves": blocks.post_norm,
        "ends in blocks of another kind": shape.head is not None,
    }
    return next((f"it {part}" for part, there in parts.items() if there), None)


class FusedTower:
    """A `ViT` with a class token, packed."""

    def __init__(self, vit: ViT, config: Condensation, guided: bool = False, C: int = 0) -> None:
        """Pack the weights and allocate every intermediate.

        Args:
            vit: The tower.
            config: How it condenses.
            guided: Whether class anchors guide condensing; the anchor gets a place before the class token.
            C: Number of classes; only with `guided`.
        """
        self.vit, self.config, self.guided = vit, config, guided
        self.plan = schedule(vit.shape.patches, len(vit.blocks), config)
        like = vit.positions
        conv = vit.patch_embed
        flat = nn.Linear(3 * vit.shape.patch**2, like.shape[1], bias=conv.bias is not None, device="meta")
        flat.weight = nn.Parameter(conv.weight.detach().flatten(1), requires_grad=False)
        if conv.bias is not None:
            flat.bias = nn.Parameter(conv.bias.detach(), requires_grad=False)
        self.patch = pack_weights(flat)
        self.blocks = [_packed(block) for block in vit.blocks if isinstance(block, Block)]
        self.pooled = pack_weights(vit.projection, vit.norm_post) if isinstance(vit.projection, nn.Linear) else None
        self._allocate(C)

    def _allocate(self, C: int) -> None:
        shape, like = self.vit.shape, self.vit.positions
        D, mlp, slot = shape.blocks.width, shape.blocks.mlp, int(self.guided)
        new, N = like.new_zeros, shape.tokens + slot
        self.patches, self.embedded = new(shape.patches, 3 * shape.patch**2), new(shape.patches, D)
        self.start, self.start_sums, self.feature = new(1, N, D), _sums(N, 1, like.device), new(1, shape.embed)
        streams = new(len(self.plan), N, D)
        self.tokens = streams[:, slot]
        self.places: list[StreamPlace] = []
        self.scored: list[Scored | None] = []
        for i, stage in enumerate(self.plan):
            qkv, heads, attended = new(1, N, 3 * D), new(1, N, D), new(1, N, D)
            condensed, sums = attended, _sums(N, parts(N, D, D), like.device)
            condensed_sums = sums
            self.scored.append(None)
            if stage is not None:
                self.scored[i] = _scored(shape.blocks.heads, stage, self.config.proportional, like.device)
                N = 1 + slot + stage.out
                condensed, condensed_sums = new(1, N, D), _sums(N, 1, like.device)
            last = streams[i : i + 1, :N], _sums(N, parts(N, D, mlp), like.device)
            self.places.append(
                StreamPlace(qkv, heads, attended, sums, condensed, condensed_sums, new(1, N, mlp), *last)
            )
        self.search = Search.of(1, C, like.device) if self.guided else None

    def forward(self, pixels: Tensor, state: Reservoir | None = None, ready: Ready = "class") -> Tensor:
        """The pooled feature `[1, E]` of an image, not normalised; its summary tokens are left in `tokens` `[L, D]`.

        Args:
            pixels: A preprocessed image, `[1, 3, H, W]`.
            state: The reservoir whose anchors guide condensing; None uses none.
            ready: When a class may serve as an anchor.
        """
        slot = int(self.guided)
        unfold(pixels, self.patches, self.vit.shape.patch)
        linear(self.patches, self.patch, self.embedded)
        x = embed(
            self.embedded, self.vit.class_embed, self.vit.positions, self.vit.norm_pre, self.start, self.start_sums
        )
        sums, size = self.start_sums, None
        for i, scored in enumerate(self.scored):
            x, sums = self._block(i, x, sums, size, state, ready)
            size = size if scored is None else scored.size
        last = x[:, slot]
        if self.pooled is None:
            return self.vit.pool(last.unsqueeze(1))
        return linear(last, self.pooled, self.feature, sums=sums[:, slot : slot + 1])

    def _block(
        self, i: int, x: Tensor, sums: Sums, size: Tensor | None, state: Reservoir | None, ready: Ready
    ) -> tuple[Tensor, Sums]:
        """Block i on tokens x [1, N, D] with the sums of their rows and the sizes of the patches."""
        packed, place, scored = self.blocks[i], self.places[i], self.scored[i]
        stage, config, heads = self.plan[i], self.config, self.vit.shape.blocks.heads
        ahead = self.blocks[i + 1].qkv if i + 1 < len(self.blocks) else self.pooled
        label = None
        if scored is not None and state is not None and self.search is not None and i > 0:
            label = fused_nearest(x, sums, state, i - 1, ready == "all", scored.label, self.search)
        linear(x[0], packed.qkv, place.qkv[0], sums=sums, ahead=packed.out)
        if scored is None or stage is None:
            attention(place.qkv, place.heads, heads, self.guided, size=size)
        else:
            ranks = scored.ranks if config.score == "rank" else None
            attention(
                place.qkv, place.heads, heads, self.guided, scored.scores, ranks, label, config.rows, config.anchor_kv,
                size,
            )  # fmt: skip
        linear(place.heads[0], packed.out, place.attended[0], residual=x[0], emit=place.attended_sums, ahead=packed.up)
        if scored is not None and stage is not None:
            fused_condense(
                place.attended, place.condensed, place.condensed_sums, scored.scores, ranks, scored.order,
                scored.target, scored.ticket, stage, config, None, size, scored.size,
            )  # fmt: skip
        y = place.condensed[0]
        linear(
            y,
            packed.up,
            place.hidden[0],
            self.vit.shape.blocks.activation,
            sums=place.condensed_sums,
            ahead=packed.down,
        )
        linear(place.hidden[0], packed.down, place.x[0], residual=y, emit=place.x_sums, ahead=ahead)
        return place.x, place.x_sums

    def steps(self) -> list[Step]:
        """What the condensing blocks did to the last batch."""
        return [
            Step(i, stage, scored.target.clone(), scored.label.long() if self.guided and i > 0 else None)
            for i, (stage, scored) in enumerate(zip(self.plan, self.scored, strict=True))
            if stage is not None and scored is not None
        ]


def _packed(block: Block) -> PackedBlock:
    return PackedBlock(
        pack_weights(block.attn.qkv, block.norm1),
        pack_weights(block.attn.out, scale=block.scale1),
        pack_weights(block.mlp.up, block.norm2),
        pack_weights(block.mlp.down, scale=block.scale2),
    )
