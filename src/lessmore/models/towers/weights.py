"""Helpers the importers share: weights read by name, and facts read off the host's own modules."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from lessmore.core.text import TextShape, TextTower
from lessmore.core.vit import ACTIVATIONS, ViT, ViTShape
from lessmore.errors import ModelError

SUPPORTED = (
    "supported are plain vision transformers with a plain text transformer: open_clip's own ViTs, its timm ViTs "
    "(SigLIP, SigLIP 2, EVA-CLIP, PE-Core), transformers CLIPModel, MetaClip2Model, SiglipModel and Siglip2Model, and "
    "DINOv3.txt's DINOTxt"
)
T = TypeVar("T")


def unsupported_model(what: str) -> ModelError:
    """The one error for a model outside the supported set, saying what it is and what would work."""
    return ModelError(f"{what} cannot be imported; {SUPPORTED}")


class Weights:
    """A host's state dict; remembers which names were read, so that none is forgotten."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = {k: v for k, v in tensors.items() if not k.endswith("position_ids")}
        self._unread = set(self._tensors)
        places = {str(v.device) for v in self._tensors.values()}
        if len(places) != 1:
            raise ModelError(f"the weights lie on {' and '.join(sorted(places))}; move the whole model to one device")

    def has(self, name: str) -> bool:
        """Whether the host has a weight of this name."""
        return name in self._tensors

    def take(self, name: str) -> Tensor:
        """The host's tensor itself, sharing its storage."""
        if name not in self._tensors:
            raise unsupported_model(f"a model without the weight {name!r}")
        self._unread.discard(name)
        tensor = self._tensors[name]
        if not tensor.is_floating_point():
            raise ModelError(f"the weight {name!r} is {tensor.dtype}; load the model without quantisation")
        return tensor

    def optional(self, name: str) -> Tensor | None:
        """The tensor, or None where the host has none of this name."""
        return self.take(name) if self.has(name) else None

    def number(self, name: str) -> float:
        """The single value of a one-element weight, in float; NaN while a model is only being inspected on `meta`."""
        tensor = self.take(name)
        return math.nan if tensor.is_meta else float(tensor)

    def pack(self, names: Iterable[str]) -> Tensor:
        """A copy of several tensors joined along the first dimension: separate q, k and v become one."""
        return torch.cat([self.take(name) for name in names])

    def copy_into(self, out: dict[str, Tensor], names: dict[str, str], source: str = "", target: str = "") -> None:
        """Share the weight and bias of each named module, without a copy.

        Args:
            out: Where the tensors go, under our names.
            names: Our module names with the host's.
            source: Prefix of the host's names.
            target: Prefix of ours.

        Raises:
            ModelError: A weight is missing or quantised.
        """
        for ours, theirs in names.items():
            for part in ("weight", "bias"):
                out[f"{target}{ours}.{part}"] = self.take(f"{source}{theirs}.{part}")

    def finish(self) -> None:
        """Refuse a host with weights nobody read: its forward pass does something ours does not."""
        if self._unread:
            raise unsupported_model(f"a model with extra weights such as {min(self._unread)!r}")


def the_one(values: Iterable[T], what: str) -> T:
    """The value all parts of a tower agree on.

    Args:
        values: One value per part, such as the head count of every block.
        what: What they are, for the error.

    Raises:
        ModelError: The values differ.
    """
    found = set(values)
    if len(found) != 1:
        raise unsupported_model(f"a tower with {what} {sorted(map(str, found))}")
    return found.pop()


def layer_norm_eps(tower: nn.Module) -> float:
    """The epsilon of every LayerNorm inside, which must agree."""
    return the_one((float(m.eps) for m in tower.modules() if isinstance(m, nn.LayerNorm)), "LayerNorm epsilons")


def activation_name(function: Callable[[Tensor], Tensor]) -> str:
    """Key of `ACTIVATIONS` that computes what the host's activation computes, found by evaluating both."""
    x = torch.linspace(-6, 6, 241)
    with torch.no_grad():
        y = function(x.clone())
    for name, ours in ACTIVATIONS.items():
        if torch.allclose(ours(x), y, rtol=0, atol=1e-6):
            return name
    raise unsupported_model(f"a model with the activation {function}")


def patch_kernel(weight: Tensor, patch: int) -> Tensor:
    """The kernel of a convolution that embeds patches, `[D, 3, patch, patch]`, without a copy.

    Args:
        weight: Such a kernel, or the weight of a linear layer on the pixels of a patch, row by row with the three
            colours of a pixel together, `[D, patch · patch · 3]`.
        patch: Side of a patch, in pixels.
    """
    return weight if weight.ndim == 4 else weight.unflatten(1, (patch, patch, 3)).permute(0, 3, 1, 2)


def square(size: Any, what: str) -> int:
    """Side of a square.

    Args:
        size: One number, or (height, width).
        what: What it is the size of, for the error.

    Raises:
        ModelError: Height and width differ.
    """
    sides = set(size) if isinstance(size, (tuple, list)) else {size}
    if len(sides) != 1:
        raise unsupported_model(f"a tower with the non-square {what} {tuple(size)}")
    return int(sides.pop())


def build_vision(shape: ViTShape, weights: dict[str, Tensor]) -> ViT:
    """Our vision tower around the given tensors, frozen, in evaluation mode.

    Args:
        shape: Shape of the tower.
        weights: Tensors under our names; all take the dtype of the patch embedding.

    Raises:
        ModelError: The tensors do not match the shape.
    """
    with torch.device("meta"):
        tower = ViT(shape)
    _fill(tower, weights, weights["patch_embed.weight"].dtype)
    return tower


def build_text(shape: TextShape, weights: dict[str, Tensor]) -> TextTower:
    """Our text tower around the given tensors, frozen, in evaluation mode.

    Args:
        shape: Shape of the tower.
        weights: Tensors under our names; all take the dtype of the first block's MLP.

    Raises:
        ModelError: The tensors do not match the shape.
    """
    with torch.device("meta"):
        tower = TextTower(shape)
    _fill(tower, weights, weights["blocks.0.mlp.up.weight"].dtype)
    return tower


def _fill(tower: nn.Module, weights: dict[str, Tensor], dtype: torch.dtype) -> None:
    # open_clip's fp16 models keep norms and embeddings in float32; one dtype for all keeps our forward pass plain.
    tower.requires_grad_(False)
    try:
        tower.load_state_dict({k: v.to(dtype) for k, v in weights.items()}, strict=True, assign=True)
    except RuntimeError as error:
        raise unsupported_model(f"a model whose weights do not fit its own settings ({error})") from error
    tower.eval()
