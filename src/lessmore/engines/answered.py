"""One answer on the host: an outcome read, replaced where it is not finite, and as sure as its evidence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from lessmore.core.condense.source import Step
from lessmore.core.encoder import PLAIN, encode
from lessmore.engines.confidence import confidence_in, evidence_of, next_temperature, tempered
from lessmore.errors import ImageError, NonFiniteError
from lessmore.methods import Outcome, Setup
from lessmore.methods.zeroshot import zero_shot_logits


@dataclass(frozen=True)
class Answered:
    """One image, answered. Scores are float32 on the CPU and sum to one."""

    raw_scores: Tensor
    """After adaptation, as the method made them, `[C]`."""
    zero_shot: Tensor
    """Before adaptation, from the same forward pass, `[C]`."""
    refused: bool
    """Whether the adapted answer was not finite and the plain model's was given instead."""
    stored: bool
    """Whether the image entered the method's memory."""
    steps: list[Step]
    """What the condensing blocks did."""
    setup: Setup
    """What answered, with the class list of that moment."""
    evidence: Tensor
    """Logits by which to judge how sure the answer is, `[C]`."""
    confidence: float = 1.0
    """How sure it is said to be."""
    temperature: float = 1.0
    """What divides the evidence of the next image."""
    frames: int = 1
    """Frames of a track that the answer is made of."""
    unknown: bool = False
    """Whether the image is unlike all classes; then it was not stored."""
    unknown_score: float | None = None
    """How unlike all classes it is; None where nobody asked, or the answer was refused."""

    @cached_property
    def index(self) -> int:
        """The class answered."""
        return int(self.raw_scores.argmax())

    @cached_property
    def scores(self) -> Tensor:
        """After adaptation, in the same order as raw, as sure as the evidence says, `[C]`."""
        return tempered(self.raw_scores, self.index, self.confidence)

    @cached_property
    def changed(self) -> bool:
        """Whether adaptation changed the answer."""
        return self.index != int(self.zero_shot.argmax())


Failure = ImageError | NonFiniteError
"""Why an image has no answer."""


def read(outcome: Outcome, setup: Setup, plain: Callable[[], Tensor]) -> Answered:
    """Bring an outcome to the host; one that is not finite is answered by the plain model instead.

    Args:
        outcome: The outcome of one image.
        setup: What answered it.
        plain: Makes the plain model's probabilities of the image, `[C]`; called only if they are needed.

    Raises:
        NonFiniteError: The plain model's answer is not finite either.
    """
    own = [] if outcome.evidence is None else [outcome.evidence]
    rows = torch.stack([outcome.scores, outcome.zero_shot, *own]).cpu().float()  # each copy off a GPU waits for it
    scores, zero_shot = rows[:2]
    refused = not bool(rows.isfinite().all())
    if refused:
        scores = zero_shot = plain()
    evidence = evidence_of(rows[2] if own and not refused else None, scores, zero_shot)
    stored = outcome.stored is not None and bool(outcome.stored)
    return Answered(scores, zero_shot, refused, stored, outcome.steps, setup, evidence)


def judged(answered: Answered, temperature: float, seen: int | None) -> Answered:
    """The answer with its confidence and the temperature after it.

    Args:
        answered: The answer.
        temperature: The stream's temperature before it.
        seen: Draws of the stream before it; None if it is none itself.
    """
    usual = float(answered.zero_shot.max())
    if answered.refused:
        return replace(answered, confidence=usual, temperature=temperature)
    confidence = confidence_in(answered.index, answered.evidence, temperature)
    following = temperature if seen is None else next_temperature(temperature, seen, confidence, usual)
    return replace(answered, confidence=confidence, temperature=following)


def plain_scores(setup: Setup, pixels: Tensor) -> Tensor:
    """Zero-shot probabilities of the whole, uncondensed model, `[C]` float32 on the CPU.

    Args:
        setup: The model and the class embeddings.
        pixels: One preprocessed image, `[1, 3, H, W]`.

    Raises:
        NonFiniteError: The model itself answers with NaN or infinity.
    """
    encoded = encode(setup.vision, pixels, PLAIN)
    return checked(zero_shot_logits(encoded, setup.text, setup.logit_scale)[0].softmax(dim=-1), pixels.dtype)


def checked(scores: Tensor, dtype: torch.dtype) -> Tensor:
    """Probabilities `[C]` as float32 on the CPU.

    Args:
        scores: Probabilities, `[C]`.
        dtype: Type the model computes in, for the error.

    Raises:
        NonFiniteError: Some are not finite.
    """
    scores = scores.float().cpu()
    if not scores.isfinite().all():
        raise NonFiniteError(
            f"the model answers this image with NaN or infinity in {str(dtype).removeprefix('torch.')}; "
            "load it in float32 or bfloat16, or check its weights"
        )
    return scores
