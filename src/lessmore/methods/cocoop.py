"""CoCoOp: CoOp with a context that depends on the image, through a small network on the image's feature.

    v_i(image) = v_i + W₂ · relu(W₁ f + b₁) + b₂

The text tower therefore runs for every image.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from lessmore.core.costs import Accounting
from lessmore.methods.context import PromptFrame, embed_classes
from lessmore.methods.coop import CoOp, CoOpOptions
from lessmore.methods.registry import register_method

_NARROW = 16  # the network's inner layer is narrower than the feature by this factor


def new_network(embed: int, width: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Random weights, initialised like PyTorch's linear layers.

    Args:
        embed: E, length of the features that go in.
        width: D, length of the shift that comes out, which is that of a context vector.
        generator: Where the random numbers come from.

    Returns:
        `down.weight` `[E/16, E]`, `up.weight` `[D, E/16]` and their biases.
    """
    inner = max(1, embed // _NARROW)

    def uniform(fan_in: int, *shape: int) -> Tensor:
        return (2 * torch.rand(shape, generator=generator) - 1) * fan_in**-0.5

    return {
        "down.weight": uniform(embed, inner, embed),
        "down.bias": uniform(embed, inner),
        "up.weight": uniform(inner, width, inner),
        "up.bias": uniform(inner, width),
    }


def begin_conditioned(frame: PromptFrame, embed: int, generator: torch.Generator) -> dict[str, Tensor]:
    """All that CoCoOp learns, before it has learnt.

    Args:
        frame: The prompts.
        embed: E, length of the features.
        generator: Where the network's random numbers come from.
    """
    network = new_network(embed, frame.start.shape[1], generator)
    return {"context": frame.start.clone()} | {name: weight.to(frame.start) for name, weight in network.items()}


def conditioned_context(learned: Mapping[str, Tensor], feature: Tensor) -> Tensor:
    """The context for each image, `[..., n, D]`.

    Args:
        learned: `context` `[n, D]` and the weights of `new_network`.
        feature: L2-normalised, `[..., E]`.
    """
    inner = torch.relu(F.linear(feature, learned["down.weight"], learned["down.bias"]))
    shift = F.linear(inner, learned["up.weight"], learned["up.bias"])
    return learned["context"] + shift.unsqueeze(-2)


@register_method("cocoop", CoOpOptions)
class CoCoOp(CoOp):
    """The class whose prompt, learnt and shifted by the image, is nearest; nothing is remembered."""

    method = "cocoop"

    @staticmethod
    def begin(frame: PromptFrame, embed: int) -> dict[str, Tensor]:
        """The context and the network before they have learnt; a seed belongs to training, any will do for shapes.

        Args:
            frame: The prompts.
            embed: E, length of the features.
        """
        return begin_conditioned(frame, embed, torch.Generator().manual_seed(0))

    def prepare(self) -> None:
        """Nothing: class embeddings need an image first."""

    def embeddings(self, feature: Tensor) -> Tensor:
        """Class embeddings [C, E] for an image's feature [E]."""
        return embed_classes(self.frame, conditioned_context(self.learned, feature.to(self.frame.start.dtype)))

    def macs(self, accounting: Accounting = "matmul") -> int:
        """CoOp's, plus the network and all class prompts through the text tower, once per image.

        Args:
            accounting: See `Method.macs`.
        """
        network = sum(v.numel() for k, v in self.learned.items() if k.endswith(".weight"))
        return super().macs(accounting) + self.frame.macs(self.setup, accounting) + network
