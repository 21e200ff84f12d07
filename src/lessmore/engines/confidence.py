"""Confidence that can be believed, without labels: how sure an adapted answer is said to be.

Adaptation ruins probabilities. A stored sample votes for itself, and corrections stretch the logits, so the adapted
answer is far surer than it is right. Three steps put that straight, on what is reported and on nothing else.

- **Evidence.** An answer is judged by logits in which no stored sample has voted: the debiased ones where the method
  has any, else the mean of zero-shot's and the adapted log-probabilities.
- **Level.** One temperature T divides the evidence. It follows the stream so that the answers are on average as sure
  as zero-shot's own, which saw no label either and gains nothing from confirming itself:

      log T ← log T + GAIN·max(1/(n + START), SLOWEST)·(confidence − zero-shot's confidence).

  Adaptation is right at least about as often as zero-shot, so that the level is not above what zero-shot's was. T is 1
  at the first image, whose adapted answer is zero-shot's.
- **Answer.** The adapted probabilities are tempered until the class answered has the confidence so found. The order of
  the classes stays.

Raw scores stay as they were, and all that is learned is learned from them. The one number that is remembered, T, is
part of `Health`.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

GAIN, START, SLOWEST = 4.0, 10.0, 1 / 200
"""How fast the temperature follows: at first like a mean of all images, later like one of the last 50."""
COLDEST, WARMEST = math.exp(-1), math.exp(3)
"""Bounds of the temperature."""
_STEPS, _CLOSE, _LEAST, _SHARPEST = 50, 1e-9, 1e-30, 1e3

Floats = NDArray[np.float64]


def evidence_of(evidence: Tensor | None, scores: Tensor, zero_shot: Tensor) -> Tensor:
    """Logits to judge an answer by, `[C]`.

    Args:
        evidence: The method's own, `[C]`; None where it has none.
        scores: Adapted probabilities, `[C]`.
        zero_shot: Zero-shot probabilities, `[C]`.
    """
    if evidence is not None:
        return evidence
    return (scores.clamp_min(_LEAST).log() + zero_shot.clamp_min(_LEAST).log()) / 2


def confidence_in(index: int, evidence: Tensor, temperature: float) -> float:
    """How sure the evidence is of one class.

    Args:
        index: The class.
        evidence: Logits, `[C]`.
        temperature: What they are divided by.
    """
    return float((evidence.double() / temperature).softmax(dim=-1)[index])


def next_temperature(temperature: float, seen: int, confidence: float, usual: float) -> float:
    """The temperature after one more image.

    Args:
        temperature: Before the image.
        seen: Images before it.
        confidence: That of the answer.
        usual: Zero-shot's confidence in its own answer.
    """
    step = GAIN * max(1 / (seen + START), SLOWEST) * (confidence - usual)
    return min(max(temperature * math.exp(step), COLDEST), WARMEST)


def tempered(scores: Tensor, index: int, confidence: float) -> Tensor:
    """Probabilities `[C]` raised to the power that gives the leading class a confidence; their order stays.

    Args:
        scores: Probabilities.
        index: The class that leads.
        confidence: What it is to have. One that a power cannot reach, as with two equal leaders, is come near to.
    """
    C = len(scores)
    wanted = min(max(confidence, (1 + 1e-3) / C), 1 - 1e-6)
    if C == 1 or abs(float(scores[index]) - wanted) < _CLOSE:
        return scores
    behind = np.log(np.maximum(scores.double().numpy(), _LEAST))
    behind = behind - behind[index]
    power = _power(np.delete(behind, index), math.log(1 / wanted - 1))
    found = torch.from_numpy(power * behind).softmax(dim=-1).to(scores.dtype)
    if int(found.argmax()) != index:  # rounding has made equals of the leaders
        found[index] = torch.nextafter(found.max(), found.new_tensor(1.0))
    return found


def _power(behind: Floats, odds: float) -> float:
    """β with log Σ exp(β·behind) = odds, by Newton from below, where a convex falling function lets it converge."""
    beta = 0.0
    for _ in range(_STEPS):
        weights = np.exp(beta * behind)
        total = weights.sum()
        over, slope = math.log(total) - odds, float(weights @ behind) / total
        if over < _CLOSE or slope > -_LEAST:
            break
        beta = min(beta - over / slope, _SHARPEST)
    return beta
