"""A vision tower for large CUDA batches: the libraries' own products and attention, everything between them fused.

The same two halves as in `lessmore.core.encoder`, with the same results up to rounding.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lessmore.config import Condensation
from lessmore.core.condense.schedule import Stage, schedule
from lessmore.core.condense.source import Step
from lessmore.core.encoder import Encoded, PrefixState
from lessmore.core.scoring import Anchor, AnchorProvider
from lessmore.core.vit import Block, ViT
from lessmore.engines.anchor_prediction import nearest
from lessmore.engines.kernels.attention import attention, faster, scores
from lessmore.engines.kernels.condense import fused_condense
from lessmore.engines.kernels.elementwise import activation, add_norm, embed, unfold


class Flow(NamedTuple):
    """The residual stream [B, N, D] as two parts, which are added when the next block normalises it."""

    x: Tensor
    delta: Tensor | None

    def summary(self) -> Tensor:
        """The class token, [B, D]."""
        return self.x[:, 0] if self.delta is None else self.x[:, 0] + self.delta[:, 0]

    def whole(self) -> Tensor:
        """Both parts as one."""
        return self.x if self.delta is None else self.x + self.delta


class FusedBlock(NamedTuple):
    """What a condensing block returns."""

    flow: Flow
    """The residual stream after the block."""
    target: Tensor
    """Where each token went, [B, n]."""
    size: Tensor | None
    """Logarithm of the number of patches each remaining token stands for, [B, out]; None if all count as one."""


class Batched:
    """A `ViT` with a class token and a way to condense."""

    def __init__(self, vit: ViT, config: Condensation) -> None:
        self.vit, self.config, self.ranked = vit, config, config.score == "rank"
        self.plan = schedule(vit.shape.patches, len(vit.blocks), config)
        self.blocks = [block for block in vit.blocks if isinstance(block, Block)]

    def begin(self, pixels: Tensor) -> PrefixState:
        """Images [B, 3, H, W] up to the first condensing block."""
        flow, summaries = Flow(self._embed(pixels), None), []
        for block, stage in zip(self.blocks, self.plan, strict=True):
            if stage is not None:
                break
            flow = self._block(block, flow)
            summaries.append(flow.summary())
        return PrefixState(flow.whole(), summaries)

    def resume(self, begun: PrefixState, guide: AnchorProvider | None = None) -> Encoded:
        """From the first condensing block to the features; may be repeated with other anchors.

        Args:
            begun: What `begin` returned.
            guide: The anchors that guide condensing; None uses none.
        """
        flow, size, summaries = Flow(begun.x, None), None, list(begun.summaries)
        steps: list[Step] = []
        for i in range(len(summaries), len(self.plan)):
            stage = self.plan[i]
            if stage is None:
                flow = self._block(self.blocks[i], flow, size)
            elif guide is None or not self.config.uses_anchor or i == 0:
                flow, target, size = self._condensing(self.blocks[i], flow, size, stage)
                steps.append(Step(i, stage, target, None))
            else:
                anchor = nearest(summaries[-1], guide.at(i - 1, summaries[-1]))
                flow, target, size = self._guided(self.blocks[i], flow, size, anchor, stage)
                steps.append(Step(i, stage, target, anchor.label))
            summaries.append(flow.summary())
        feature = self.vit.pool(flow.summary().unsqueeze(1))
        return Encoded(F.normalize(feature.float(), dim=-1), torch.stack(summaries, dim=1), steps)

    def _embed(self, pixels: Tensor) -> Tensor:
        vit, shape = self.vit, self.vit.shape
        B, D = len(pixels), shape.blocks.width
        patches = unfold(pixels, pixels.new_empty(B * shape.patches, 3 * shape.patch**2), shape.patch)
        embedded = F.linear(patches, vit.patch_embed.weight.flatten(1), vit.patch_embed.bias)
        sums = torch.empty(2, B * shape.tokens, 1, device=pixels.device)
        return embed(embedded, vit.class_embed, vit.positions, vit.norm_pre, pixels.new_empty(B, shape.tokens, D), sums)

    def _scaled(self, x: Tensor, delta: Tensor, scale: Tensor | None) -> Flow:
        return Flow(x, delta if scale is None else delta * scale)

    def _attend(self, block: Block, flow: Flow, size: Tensor | None) -> tuple[Flow, Tensor]:
        """The attention half, and the packed q, k, v [B, N, 3·D] it used; size: of the patches, [B, n]."""
        x, normed = add_norm(*flow, block.norm1)
        qkv, heads = block.attn.qkv(normed), block.attn.heads
        if size is not None or faster(qkv, heads):
            attended = block.attn.out(attention(qkv, torch.empty_like(normed), heads, size=size))
        else:
            q, k, v = qkv.view(*x.shape[:2], 3, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
            attended = block.attn.combine(F.scaled_dot_product_attention(q, k, v))
        return self._scaled(x, attended, block.scale1), qkv

    def _mlp(self, block: Block, flow: Flow) -> Flow:
        x, normed = add_norm(*flow, block.norm2)
        hidden = activation(block.mlp.up(normed), self.vit.shape.blocks.activation)
        return self._scaled(x, block.mlp.down(hidden), block.scale2)

    def _block(self, block: Block, flow: Flow, size: Tensor | None = None) -> Flow:
        return self._mlp(block, self._attend(block, flow, size)[0])

    def _condensing(self, block: Block, flow: Flow, size: Tensor | None, stage: Stage) -> FusedBlock:
        """A block that condenses by its class token's row."""
        flow, qkv = self._attend(block, flow, size)
        return self._condensed(block, flow, size, *scores(qkv, block.attn.heads, self.ranked, size=size), stage)

    def _guided(self, block: Block, flow: Flow, size: Tensor | None, anchor: Anchor, stage: Stage) -> FusedBlock:
        """The same with anchors: each image's stands before its class token, masked unless the block attends to it."""
        x, normed = add_norm(*flow, block.norm1, anchor.token)
        qkv, heads, label = block.attn.qkv(normed), block.attn.heads, anchor.label.int()
        how = label, self.config.rows, self.config.anchor_kv, size
        out = attention(qkv, torch.empty_like(normed), heads, True, None, None, *how)
        # The anchors' rows are multiplied as well: leaving them out would mean copying all others.
        attended = self._scaled(x, block.attn.out(out)[:, 1:], block.scale1)
        return self._condensed(block, attended, size, *scores(qkv, heads, self.ranked, True, *how), stage)

    def _condensed(
        self, block: Block, flow: Flow, size: Tensor | None, found: Tensor, ranks: Tensor | None, stage: Stage
    ) -> FusedBlock:
        """The rest of a block after its attention half, given the scores and ranks [B, H, n] of its patches."""
        x, n = flow.x, stage.patches
        B, D = len(x), x.shape[2]
        y = x.new_empty(B, 1 + stage.out, D)
        sums = torch.empty(2, B * y.shape[1], 1, device=x.device)
        order = torch.empty(B, n, dtype=torch.int32, device=x.device)
        target, ticket = order.new_empty(B, n, dtype=torch.int64), order.new_zeros(B)
        carried = found.new_empty(B, stage.out) if self.config.proportional else None
        fused_condense(x, y, sums, found, ranks, order, target, ticket, stage, self.config, flow.delta, size, carried)
        return FusedBlock(self._mlp(block, Flow(y, None)), target, carried)
