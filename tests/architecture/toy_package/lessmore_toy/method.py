"""A method with an option and a state: scores are divided by how often each class was likely so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lessmore.core.costs import Accounting
from lessmore.core.encoder import encode
from lessmore.errors import ConfigError
from lessmore.methods import Facts, Outcome, Setup, register_method
from lessmore.methods.zeroshot import zero_shot_logits


@dataclass(frozen=True)
class ToyOptions:
    """Settings of the method."""

    weight: float = 1.0
    """How many images the uniform start counts for."""

    def __post_init__(self) -> None:
        if self.weight <= 0:
            raise ConfigError(f"weight must be positive, not {self.weight}")


@register_method("toy-prior", ToyOptions)
class ToyPrior:
    """Remembers the sum of all zero-shot probabilities."""

    facts = Facts(training_free=True, kind="online")

    def __init__(self, setup: Setup, options: ToyOptions) -> None:
        self.setup, self.options = setup, options
        self.total = torch.zeros(len(setup.text), device=setup.text.device)

    def predict(self, pixels: Tensor) -> Outcome:
        """Answer one image [1, 3, H, W]."""
        encoded = encode(self.setup.vision, pixels, self.setup.preset.condensation)
        logits = zero_shot_logits(encoded, self.setup.text, self.setup.logit_scale)[0]
        likely = logits.softmax(dim=-1)
        scores = likely / (self.total + self.options.weight / len(likely))
        self.total += likely
        return Outcome(logits, scores / scores.sum(), likely, None, encoded.steps)

    def reset(self) -> None:
        """Forget the stream."""
        self.total.zero_()

    def state(self) -> dict[str, Tensor]:
        """The sum so far."""
        return {"total": self.total.clone()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a sum."""
        self.total.copy_(state["total"])

    def slots(self) -> None:
        """No memory of single images."""

    def macs(self, accounting: Accounting = "matmul") -> int:
        """One pass of the tower."""
        return self.setup.image_macs(accounting)
