"""A small DINOv3.txt, written from its formulas under the names of its definition, which no package contains."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Scale(nn.Module):
    """LayerScale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(self.act(self.fc1(x)))
        return out


class SwiGLUFFN(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.w1, self.w2, self.w3 = nn.Linear(width, 40), nn.Linear(width, 40), nn.Linear(40, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.w3(F.silu(self.w1(x)) * self.w2(x))
        return out


class Attention(nn.Module):
    """The key's bias is multiplied by a mask of zeros, where there is one."""

    def __init__(self, width: int, heads: int, bias: bool) -> None:
        super().__init__()
        self.num_heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width, bias=bias), nn.Linear(width, width)
        if bias:
            self.qkv.register_buffer("bias_mask", torch.tensor([1.0, 0.0, 1.0]).repeat_interleave(width))

    def forward(self, x: Tensor, angles: Tensor | None = None, causal: bool = False) -> Tensor:
        bias = self.qkv.bias * self.qkv.bias_mask if isinstance(self.qkv.bias, Tensor) else None
        packed = F.linear(x, self.qkv.weight, bias)
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in packed.chunk(3, dim=-1))
        if angles is not None:
            q, k = self.turn(q, angles), self.turn(k, angles)
        logits = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        if causal:
            logits = logits + torch.full_like(logits, -math.inf).triu(1)
        out: Tensor = self.proj((logits.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))
        return out

    @staticmethod
    def turn(x: Tensor, angles: Tensor) -> Tensor:
        """The last tokens turn: number i of a head is the real part of a pair, i + d/2 the imaginary one."""
        before, patches = x.tensor_split([x.shape[2] - len(angles)], dim=2)
        turned = torch.complex(*patches.chunk(2, dim=-1)) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat([before, torch.cat([turned.real, turned.imag], dim=-1)], dim=2)


class Block(nn.Module):
    def __init__(self, width: int, heads: int, mlp: type[nn.Module], bias: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.mlp = Attention(width, heads, bias), mlp(width)
        self.ls1, self.ls2 = Scale(width), Scale(width)

    def forward(self, x: Tensor, angles: Tensor | None = None) -> Tensor:
        x = x + self.ls1(self.attn(self.norm1(x), angles))
        out: Tensor = x + self.ls2(self.mlp(self.norm2(x)))
        return out


class TextBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.is_causal = True
        self.attention_norm, self.ffn_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.feed_forward = Attention(width, heads, bias=False), Mlp(width)
        self.ls1, self.ls2 = nn.Identity(), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), causal=self.is_causal)
        out: Tensor = x + self.feed_forward(self.ffn_norm(x))
        return out


class Rope(nn.Module):
    def __init__(self, length: int) -> None:
        super().__init__()
        self.dtype = torch.float32
        self.register_buffer("periods", 100 ** (torch.arange(length // 4) * 4 / length))

    def forward(self, side: int) -> Tensor:
        """Angles of all patches, [n, d/2]: rows first; the picture reaches from -1 to 1."""
        line = (torch.arange(side) + 0.5) / side * 2 - 1
        at = torch.stack(torch.meshgrid(line, line, indexing="ij"), dim=-1).flatten(0, 1)
        return (2 * math.pi * at[:, :, None] / self.periods).flatten(1)


class DinoVisionTransformer(nn.Module):
    """The backbone, its last norm included."""

    def __init__(self, width: int, depth: int, heads: int, mlp: type[nn.Module], registers: int = 4) -> None:
        super().__init__()
        self.patch_size, self.untie_cls_and_patch_norms = 8, False
        self.patch_embed = nn.Module()
        self.patch_embed.proj = nn.Conv2d(3, width, 8, stride=8)
        self.cls_token, self.mask_token = nn.Parameter(torch.zeros(1, 1, width)), nn.Parameter(torch.zeros(1, width))
        if registers:
            self.storage_tokens = nn.Parameter(torch.zeros(1, registers, width))
        self.rope_embed = Rope(width // heads)
        self.blocks = nn.ModuleList(Block(width, heads, mlp, bias=True) for _ in range(depth))
        self.norm = nn.LayerNorm(width)

    def forward(self, pixels: Tensor) -> Tensor:
        grid = self.patch_embed.proj(pixels)  # type: ignore[operator]
        tokens = [self.cls_token] + ([self.storage_tokens] if hasattr(self, "storage_tokens") else [])
        x = torch.cat([*(t.expand(len(grid), -1, -1) for t in tokens), grid.flatten(2).transpose(1, 2)], dim=1)
        angles = self.rope_embed(grid.shape[-1])
        for block in self.blocks:
            x = block(x, angles)
        out: Tensor = self.norm(x)
        return out


class DINOTxt(nn.Module):
    """Both towers; `image_size` is 40, 5 × 5 patches."""

    def __init__(self, blocks: int = 2, projected: bool = False, parts: str = "class+patches", **backbone: Any) -> None:
        super().__init__()
        width, embed = 48, 96 if parts == "class, patches" else 48
        self.model_config = SimpleNamespace(vision_model_train_img_size=40)
        seen = self.visual_model = nn.Module()
        seen.backbone = DinoVisionTransformer(**{"width": width, "depth": 3, "heads": 3, "mlp": Mlp} | backbone)
        seen.head = _head(blocks, [Block(width, 3, SwiGLUFFN, bias=False) for _ in range(blocks)], width)
        seen.head.linear_projection = nn.Linear(width, width, bias=False) if projected else nn.Identity()
        self._settings(seen, use_class_token="class" in parts, use_patch_tokens="patches" in parts)
        read = self.text_model = nn.Module()
        read.backbone = nn.Module()
        read.backbone.token_embedding = nn.Embedding(64, 32)
        read.backbone.positional_embedding = nn.Parameter(torch.zeros(16, 32))
        read.backbone.blocks = nn.ModuleList(TextBlock(32, 2) for _ in range(2))
        read.backbone.ln_final = nn.LayerNorm(32)
        read.head = _head(0, [nn.Identity()], 32)
        read.head.linear_projection = nn.Linear(32, embed, bias=False)
        self._settings(read, tokens_pooler_type="argmax")
        self.logit_scale = nn.Parameter(torch.ones(1))

    @staticmethod
    def _settings(module: Any, **values: Any) -> None:
        values = {"patch_token_layer": 1, "patch_tokens_pooler_type": "mean"} | values
        for name, value in values.items():
            setattr(module, name, value)

    def encode_image(self, pixels: Tensor) -> Tensor:
        seen: Any = self.visual_model
        x, head = seen.backbone(pixels), seen.head
        if head.num_blocks:
            for block in head.blocks:
                x = block(x)
            x = head.ln_final(x)
        x = head.linear_projection(x)
        parts = [x[:, 0]] if seen.use_class_token else []
        parts += [x[:, -25:].mean(dim=1)] if seen.use_patch_tokens else []
        return torch.cat(parts, dim=-1)

    def encode_text(self, tokens: Tensor) -> Tensor:
        read: Any = self.text_model
        x = read.backbone.token_embedding(tokens) + read.backbone.positional_embedding[: tokens.shape[1]]
        for block in read.backbone.blocks:
            x = block(x)
        out: Tensor = read.head.linear_projection(read.backbone.ln_final(x))
        return out[torch.arange(len(out)), tokens.argmax(dim=1)]


def _head(blocks: int, modules: list[nn.Module], width: int) -> Any:
    head: Any = nn.Module()
    head.num_blocks, head.blocks = blocks, nn.ModuleList(modules)
    head.ln_final = nn.LayerNorm(width) if blocks else nn.Identity()
    return head


for _kind in (DINOTxt, DinoVisionTransformer):
    _kind.__module__ = f"dinov3.{_kind.__name__}"  # importers judge by names


def small(**settings: Any) -> DINOTxt:
    """A model of 5 × 5 patches with other than neutral weights."""
    torch.manual_seed(0)
    model = DINOTxt(**settings)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.add_(torch.randn_like(weight) * (0.3 if weight.ndim == 1 or "token" in name else 0.1))
    return model.eval()
