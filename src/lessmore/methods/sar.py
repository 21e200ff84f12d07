"""SAR: Tent on reliable samples only, towards flat minima, with a fresh start when it collapses.

g = ∇ mean Ent(w) over samples with Ent < margin · ln C;   w⁺ = w + ρ g / ‖g‖
w ← SGD step from w along ∇ mean Ent(w⁺) over those of them still below the margin
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lessmore.core.costs import Accounting
from lessmore.core.encoder import Encoded
from lessmore.errors import ConfigError
from lessmore.methods.registry import Setup, register_method
from lessmore.methods.tent import LowerTent, LowerTentOptions, entropy
from lessmore.storage.state import Form, finite_problem

_DECAY = 0.9


@dataclass(frozen=True)
class SAROptions(LowerTentOptions):
    """SAR's own settings, as published for vision transformers. A step on a single image takes twice the rate."""

    margin: float = 0.4
    """A sample is reliable if the entropy of its answer is below this share of the largest possible, ln C."""
    rho: float = 0.05
    """Length of the step uphill before the gradient is taken."""
    floor: float = 0.2
    """Affines are reset once the moving average of the loss falls below this."""

    def __post_init__(self) -> None:
        """Validate once; every later use may trust the values."""
        super().__post_init__()
        if not self.rho > 0 or not 0 < self.margin <= 1:
            raise ConfigError(f"rho must be positive and margin in (0, 1], not {self.rho} and {self.margin}")

    @property
    def rate(self) -> float:
        """Learning rate of a step on `window` images."""
        return super().rate * (2 if self.window == 1 else 1)


@register_method("sar", SAROptions)
class SAR(LowerTent):
    """Tent's affines and momentum, and the moving average of the loss."""

    options: SAROptions
    average: Tensor

    def __init__(self, setup: Setup, options: SAROptions) -> None:
        self.bound = options.margin * math.log(len(setup.text))
        super().__init__(setup, options)

    def adapt(self, pixels: Tensor, encoded: Encoded, logits: Tensor) -> None:
        """The two steps on one batch, from its reliable samples; none if no sample is reliable.

        Args:
            pixels: `[B, 3, H, W]`.
            encoded: What the tower made of them, with gradients attached.
            logits: The tower's answers to them, with gradients attached, `[B, C]`.
        """
        uncertain = entropy(logits)
        reliable = uncertain < self.bound
        if not reliable.any():
            return
        uphill = self.gradients(uncertain[reliable].mean())
        loss, gradients = self._sharp(pixels[reliable], uphill)
        if loss is None:
            return
        self.step(gradients)
        self.average = loss if self.average.isnan() else torch.lerp(loss, self.average, _DECAY)
        if self.average < self.options.floor:
            self.start_over()

    def _sharp(self, pixels: Tensor, uphill: list[Tensor]) -> tuple[Tensor | None, list[Tensor]]:
        """Loss and gradients a little uphill, over the samples that are reliable there too; None if there are none."""
        weights = list(self.affines.values())
        here = [weight.detach().clone() for weight in weights]
        reach = self.options.rho / torch.nn.utils.get_total_norm(uphill).clamp_min(1e-12)
        with torch.no_grad():
            for weight, slope in zip(weights, uphill, strict=True):
                weight += reach * slope
        uncertain = entropy(self.logits(self.encode(pixels)))
        reliable = uncertain < self.bound
        loss = uncertain[reliable].mean() if reliable.any() else None
        gradients = [] if loss is None else self.gradients(loss)
        with torch.no_grad():
            # Copied back, because subtracting the step again would leave rounding errors in the weights.
            for weight, before in zip(weights, here, strict=True):
                weight.copy_(before)
        return None if loss is None else loss.detach(), gradients

    def start_over(self) -> None:
        """Reset affines, optimiser and average; images gathered for the next step stay."""
        super().start_over()
        self.average = self.waiting.new_full((), math.nan)

    def state(self) -> dict[str, Tensor]:
        """Tent's, and the moving average (NaN before the first step)."""
        return {**super().state(), "average": self.average.clone()}

    def state_forms(self) -> dict[str, Form]:
        """Tent's, and the moving average's."""
        return {**super().state_forms(), "average": Form(self.average.dtype, ())}

    @staticmethod
    def state_problem(state: Mapping[str, Tensor]) -> str | None:
        """The moving average is an entropy, or NaN; everything else is finite."""
        if bool(state["average"] < 0) or bool(state["average"].isinf()):
            return "average is no entropy"
        return finite_problem({name: tensor for name, tensor in state.items() if name != "average"})

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a `state()`, from any device."""
        super().restore(state)
        self.average = state["average"].to(self.average, copy=True)

    def macs(self, accounting: Accounting = "matmul") -> int:
        """Tent's, plus a second pass with its gradient for every image, as if all were reliable.

        Args:
            accounting: See `Method.macs`.
        """
        again = self.setup.image_macs() + self.setup.gradient_macs() if accounting == "matmul" else 0
        return super().macs(accounting) + again
