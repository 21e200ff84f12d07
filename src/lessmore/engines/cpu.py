"""The CPU engine: the same tower with its linear layers packed for the processor; everything else is `eager`'s.

- Weights are stored in the order in which oneDNN's kernels read them; activations are applied while a product is still
  in cache. QuickGELU, x·σ(1.702x), is the fused SiLU of a product scaled by 1.702, undone in the next weights.
- If only the class token of the last block is used, its other tokens are not computed.
- TCA keeps its stored tokens normalised, so that the correction is one product (see `cpu_tca.py`).
- In float32 answers equal `eager`'s to rounding. `bfloat16` halves the time of the products on processors that have
  such instructions; norms, attention, scores and the reservoir stay in float32.

Packed weights are copies: they take as much memory as the tower's linear layers, once for all that run on the tower.
"""

from __future__ import annotations

from dataclasses import replace
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lessmore.core.rope import Places
from lessmore.core.vit import Block, Mlp, ViT
from lessmore.engines.cpu_tca import UnitTCA
from lessmore.errors import ConfigError
from lessmore.methods import Method, Setup, make_method
from lessmore.methods.tca import TCA

# The activation as oneDNN names it, its variant, and the factor its input is scaled by.
_FUSED = {
    "quick_gelu": ("swish", "", 1.702),
    "gelu": ("gelu", "none", 1.0),
    "gelu_tanh": ("gelu", "tanh", 1.0),
    "relu": ("relu", "", 1.0),
    "silu": ("swish", "", 1.0),
}

# Towers are frozen, so forks and other class lists may share what was packed, for as long as the tower lives.
_PACKED: WeakKeyDictionary[ViT, dict[torch.dtype, ViT]] = WeakKeyDictionary()


def build_cpu(method: str, setup: Setup, bfloat16: bool = False) -> Method:
    """A method on the packed tower; one that needs gradients gets the tower as it is.

    Args:
        method: Name of the method.
        setup: What it is built from, on the CPU.
        bfloat16: Whether linear layers compute in bfloat16.

    Raises:
        ConfigError: The model is on another device, or the processor has no bfloat16 instructions.
    """
    plain = make_method(method, setup)
    if plain.facts.needs_gradients:
        return plain
    return (
        UnitTCA(packed_setup(setup, bfloat16))
        if type(plain) is TCA
        else make_method(method, packed_setup(setup, bfloat16))
    )


def packed_setup(setup: Setup, bfloat16: bool = False) -> Setup:
    """A setup with its tower packed; the original tower stays as it is and shares all weights that are not packed.

    Args:
        setup: A setup on the CPU.
        bfloat16: Whether linear layers compute in bfloat16.

    Raises:
        ConfigError: The model is on another device, or the processor has no bfloat16 instructions.
    """
    vision = setup.vision
    if vision.positions.device.type != "cpu":
        raise ConfigError(f"engine 'cpu' cannot run a model on {vision.positions.device}; move it with .to('cpu')")
    if bfloat16 and not has_bfloat16():
        raise ConfigError("this processor has no bfloat16 instructions; use engine='cpu', which stays in float32")
    dtype, known = torch.bfloat16 if bfloat16 else vision.positions.dtype, _PACKED.setdefault(vision, {})
    # Packing reads every weight once. An adapter that forks or changes its class list must not pay for it again.
    if dtype not in known:
        known[dtype] = pack_tower(vision, dtype)
    return replace(setup, vision=known[dtype])


def has_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 natively; emulated, it is slower than float32."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def can_pack(dtype: torch.dtype) -> bool:
    """Whether linear layers of this type can be packed here."""
    return torch.backends.mkldnn.is_available() and dtype in (torch.float32, torch.bfloat16)


class PackedLinear(nn.Module):
    """A linear layer and its activation, the weights in oneDNN's own order; tokens [B, N, in] → [B, N, out]."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, then: tuple[str, str] = ("none", "")):
        super().__init__()
        self.dtype = dtype
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.to(dtype))
        self.bias = None if bias is None else bias.to(dtype)
        self.then = then

    def forward(self, x: Tensor) -> Tensor:
        """Multiply in the packed type; the result has the type of x."""
        name, variant = self.then
        y = torch.ops.mkldnn._linear_pointwise(x.to(self.dtype), self.weight, self.bias, name, [], variant)
        return y.to(x.dtype)


class LastBlock(Block):
    """A block that computes only its class token, [B, N, D] → [B, 1, D]."""

    def forward(
        self, x: Tensor, causal: bool = False, bias: Tensor | None = None, places: Places | None = None
    ) -> Tensor:
        """All tokens are keys and values; the class token alone is a query and goes through the MLP.

        Args:
            x: Tokens, `[B, N, D]`, the class token first.
            causal: Whether a token sees only those before it; for a vision tower, never.
            bias: Added to the attention logits, broadcast to `[B, H, 1, N]`; None adds nothing.
            places: Where the tokens lie, in towers that turn by places; None in others.
        """
        q, k, v = self.attn.project(self.attention_input(x), places)
        heads = F.scaled_dot_product_attention(q[:, :, :1], k, v, attn_mask=bias, is_causal=causal)
        return self.add_mlp(self.add_attention(x[:, :1], self.attn.combine(heads)))


def pack_tower(vision: ViT, dtype: torch.dtype) -> ViT:
    """A tower with the same answers whose linear layers are packed and whose last block skips what is not used.

    Args:
        vision: The tower on the CPU; it stays as it is.
        dtype: Type the linear layers compute in; one that `can_pack` refuses leaves them unpacked.
    """
    shape = vision.shape
    # On the meta device nothing is allocated or initialised: all weights are taken over from the tower below.
    with torch.device("meta"):
        tower = ViT(shape)
        if shape.class_token and shape.pool == "class":
            tower.blocks[-1] = LastBlock(shape.block(shape.blocks.depth - 1))
    tower.load_state_dict(vision.state_dict(), assign=True)
    tower.eval().requires_grad_(False)
    if can_pack(dtype):
        for module in list(tower.modules()):
            _pack_layers(module, dtype)
    return tower


def _pack_layers(module: nn.Module, dtype: torch.dtype) -> None:
    """Replace the linear layers a module holds itself."""
    if isinstance(module, Mlp):
        _fuse_activation(module, dtype)
    for name, layer in list(module.named_children()):
        if isinstance(layer, nn.Linear):
            module.register_module(name, PackedLinear(layer.weight, layer.bias, dtype))


def _fuse_activation(mlp: Mlp, dtype: torch.dtype) -> None:
    """Apply an MLP's activation where its input is made; a factor on that input is undone in the last weights."""
    # An inner norm would see the factor before `down` could undo it. Gated MLPs come with activations that need none.
    name, variant, scale = _FUSED[mlp.kind]
    if scale != 1 and (mlp.gate is not None or not isinstance(mlp.norm, nn.Identity)):
        return
    place, layer, down = "up" if mlp.gate is None else "gate", mlp.gate or mlp.up, mlp.down
    mlp.register_module(place, PackedLinear(layer.weight * scale, layer.bias * scale, dtype, (name, variant)))
    mlp.activation = nn.Identity()
    mlp.register_module("down", PackedLinear(down.weight / scale, down.bias, dtype))
