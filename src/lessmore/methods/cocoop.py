"""CoCoOp: CoOp whose context moves with the image, by a small network on the image's feature.

    v_i(image) = v_i + W₂ · relu(W₁ f + b₁) + b₂

So the text tower runs for every image.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from lessmore.core.costs import Accounting
from lessmore.methods.context import embed_classes
from lessmore.methods.coop import CoOp, CoOpOptions
from lessmore.methods.registry import register_method

_NARROW = 16  # the network's inner layer is the feature's length by this


def new_network(embed: int, width: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Random weights from features [E] to vectors [D], as linear layers usually start."""
    inner = max(1, embed // _NARROW)

    def uniform(fan_in: int, *shape: int) -> Tensor:
        return (2 * torch.rand(shape, generator=generator) - 1) * fan_in**-0.5

    return {
        "down.weight": uniform(embed, inner, embed),
        "down.bias": uniform(embed, inner),
        "up.weight": uniform(inner, width, inner),
        "up.bias": uniform(inner, width),
    }


def conditioned(learned: Mapping[str, Tensor], feature: Tensor) -> Tensor:
    """The context for images with normalised features [..., E]: [..., n, D]."""
    inner = torch.relu(F.linear(feature, learned["down.weight"], learned["down.bias"]))
    shift = F.linear(inner, learned["up.weight"], learned["up.bias"])
    return learned["context"] + shift.unsqueeze(-2)


@register_method("cocoop", CoOpOptions)
class CoCoOp(CoOp):
    """The class whose prompt, learnt and moved by the image, is nearest; nothing is remembered."""

    method = "cocoop"

    def prepare(self) -> None:
        """Nothing can be embedded before an image is there."""

    def embeddings(self, feature: Tensor) -> Tensor:
        """Class embeddings [C, E] for an image's feature [E]."""
        return embed_classes(self.frame, conditioned(self.learned, feature.to(self.frame.start.dtype)))

    def macs(self, accounting: Accounting = "matmul") -> int:
        """CoOp's, and all class prompts anew, moved by the network."""
        network = sum(v.numel() for k, v in self.learned.items() if k.endswith(".weight"))
        return super().macs(accounting) + self.frame.macs(self.setup, accounting) + network
