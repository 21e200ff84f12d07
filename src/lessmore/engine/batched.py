"""A vision tower for large CUDA batches: the libraries' own products and attention, everything between them fused.

The same two halves as in `lessmore.encoder`, with the same results up to rounding.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lessmore.condense.schedule import Stage, schedule
from lessmore.condense.source import Step
from lessmore.config import Condensation
from lessmore.encoder import Begun, Encoded
from lessmore.engine.kernels.attention import attention, scores
from lessmore.engine.kernels.condense import condense
from lessmore.engine.kernels.rows import activation, add_norm, embed, unfold
from lessmore.scoring import Anchor, Guide, nearest_anchor
from lessmore.vit import Block, ViT


class Flow(NamedTuple):
    """The residual stream [B, N, D] in two parts, added up when the next block normalises it."""

    x: Tensor
    delta: Tensor | None

    def summary(self) -> Tensor:
        """The class token, [B, D]."""
        return self.x[:, 0] if self.delta is None else self.x[:, 0] + self.delta[:, 0]

    def whole(self) -> Tensor:
        """Both parts as one."""
        return self.x if self.delta is None else self.x + self.delta


class Batched:
    """A `ViT` with a class token and a way to condense."""

    def __init__(self, vit: ViT, config: Condensation) -> None:
        self.vit, self.config = vit, config
        self.plan = schedule(vit.shape.patches, len(vit.blocks), config)
        self.blocks = [block for block in vit.blocks if isinstance(block, Block)]

    def begin(self, pixels: Tensor) -> Begun:
        """Images [B, 3, H, W] up to the first condensing block."""
        flow, summaries = Flow(self._embed(pixels), None), []
        for block, stage in zip(self.blocks, self.plan, strict=True):
            if stage is not None:
                break
            flow = self._block(block, flow)
            summaries.append(flow.summary())
        return Begun(flow.whole(), summaries)

    def resume(self, begun: Begun, guide: Guide | None = None) -> Encoded:
        """From there on; may be repeated with other anchors."""
        flow, summaries = Flow(begun.x, None), list(begun.summaries)
        steps: list[Step] = []
        for i in range(len(summaries), len(self.plan)):
            stage = self.plan[i]
            if stage is None:
                flow = self._block(self.blocks[i], flow)
            elif guide is None or not self.config.uses_anchor or i == 0:
                flow, target = self._condensing(self.blocks[i], flow, stage)
                steps.append(Step(i, stage, target, None))
            else:
                anchor = nearest_anchor(summaries[-1], guide.at(i - 1, summaries[-1]))
                flow, target = self._guided(self.blocks[i], flow.whole(), anchor, stage)
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

    def _attend(self, block: Block, flow: Flow) -> tuple[Flow, Tensor]:
        """The attention half, and the packed q, k, v [B, N, 3·D] it used."""
        x, normed = add_norm(*flow, block.norm1)
        qkv = block.attn.qkv(normed)
        B, N, _ = x.shape
        q, k, v = qkv.view(B, N, 3, block.attn.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        attended = block.attn.combine(F.scaled_dot_product_attention(q, k, v))
        return Flow(x, attended if block.scale1 is None else attended * block.scale1), qkv

    def _mlp(self, block: Block, flow: Flow) -> Flow:
        x, normed = add_norm(*flow, block.norm2)
        hidden = activation(block.mlp.up(normed), self.vit.shape.blocks.activation)
        y = block.mlp.down(hidden)
        return Flow(x, y if block.scale2 is None else y * block.scale2)

    def _block(self, block: Block, flow: Flow) -> Flow:
        return self._mlp(block, self._attend(block, flow)[0])

    def _condensing(self, block: Block, flow: Flow, stage: Stage) -> tuple[Flow, Tensor]:
        """A block that condenses by its class token's row: the stream behind it, and who went where [B, n]."""
        flow, qkv = self._attend(block, flow)
        return self._condensed(block, flow.whole(), *scores(qkv, block.attn.heads), stage)

    def _guided(self, block: Block, x: Tensor, anchor: Anchor, stage: Stage) -> tuple[Flow, Tensor]:
        """The same with anchors; they stand before the class token, seen where there is one and it is asked for."""
        B, heads, n = len(x), block.attn.heads, stage.patches
        _, normed = add_norm(torch.cat([anchor.token, x], dim=1), None, block.norm1)
        qkv, out = block.attn.qkv(normed), torch.empty_like(normed)
        found = torch.empty(B, heads, n, device=x.device)
        ranks = torch.empty(B, heads, n, dtype=torch.int32, device=x.device)
        label = anchor.label.expand(B).int()
        attention(qkv, out, heads, True, found, ranks, label, self.config.rows, self.config.anchor_kv)
        attended = block.attn.out(out[:, 1:])
        whole = block.add_attention(x, attended)
        return self._condensed(block, whole, found, ranks, stage)

    def _condensed(self, block: Block, x: Tensor, found: Tensor, ranks: Tensor, stage: Stage) -> tuple[Flow, Tensor]:
        """From the attention half to the end of a block, by scores and ranks [B, H, n] of its patches."""
        B, n = len(x), stage.patches
        y = x.new_empty(B, 1 + stage.out, x.shape[2])
        sums = torch.empty(2, B * y.shape[1], 1, device=x.device)
        order = torch.empty(B, n, dtype=torch.int32, device=x.device)
        target, ticket = order.new_empty(B, n, dtype=torch.int64), order.new_zeros(B)
        ranked = ranks if self.config.score == "rank" else None
        condense(x, y, sums, found, ranked, order, target, ticket, stage, self.config)
        return self._mlp(block, Flow(y, None)), target
