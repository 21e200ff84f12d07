"""Zero-shot classification, with or without condensation: the matched baseline for everything else."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from lessmore.core.class_texts import class_logits
from lessmore.core.costs import Accounting
from lessmore.core.encoder import Encoded, encode
from lessmore.methods.registry import Episodic, Facts, Outcome, Setup, register_method


def zero_shot_logits(encoded: Encoded, text: Tensor, scale: float) -> Tensor:
    """Zero-shot logits of a batch, `[B, C]`, in at least float32; see `class_logits`.

    Args:
        encoded: Its `feature` is `[B, E]`.
        text: Class embeddings, `[C, E]`.
        scale: The model's logit scale.
    """
    return class_logits(encoded.feature, text, scale)


@register_method("zeroshot")
class ZeroShot(Episodic):
    """The class whose text is nearest; nothing is remembered."""

    facts = Facts(training_free=True, kind="episodic")
    wants: Literal["feature"] = "feature"

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    def predict(self, pixels: Tensor) -> Outcome:
        """Answer one preprocessed image [1, 3, H, W]."""
        return self.answer(encode(self.setup.vision, pixels, self.setup.preset.condensation))

    def answer(self, encoded: Encoded) -> Outcome:
        """Answer an encoded image."""
        logits = zero_shot_logits(encoded, self.setup.text, self.setup.logit_scale)[0]
        scores = logits.softmax(dim=-1)
        return Outcome(logits, scores, scores, None, encoded.steps)

    def macs(self, accounting: Accounting = "matmul") -> int:
        """One pass of the tower.

        Args:
            accounting: See `Method.macs`.
        """
        return self.setup.image_macs(accounting)
