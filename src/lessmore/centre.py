"""The domain's centre: what all images of a stream have in common, taken off their answers. No labels, nothing to tune.

Under a shift the features of a whole domain are displaced together, which adds the same vector to the logits of every
image. `observe` keeps a running mean m of the logits z (less their mean over classes) and answers with

    (z − w·m)_c / |t_c − w·t̄|,    w = max(0, 1 − E[z²]/E[m²] · (1/(1 + turns) + ½·(1/K − 1/C))),

t_c the class texts, t̄ their mean. The strength w is a James–Stein shrinkage: the mean counts as far as it is larger
than chance would make it, with as many independent draws as there were turns in the stream, the sum of |p_i − p_{i−1}|²
over successive answers, and as far as many classes (K, the exponential of the entropy of the answers so far) were seen,
for the mean of few classes is those classes and not the domain. A class that comes more often than others weighs less
for each image. Only the last 150 turns are remembered, so that a new domain is followed.

The first image of a stream is answered as zero-shot answers it. A stream of one or two classes cannot be told from a
shift once zero-shot errs on it, and is harmed (docs/labelfree.md); that is why this is not on by default.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

MEMORY = 150.0
"""Turns that are remembered."""
HABIT = 3.0
"""Images of a class after which it begins to weigh less."""
BETWEEN = 0.5
"""Share of the logits' power that is between classes rather than within; between 0.4 and 0.9 where it was measured."""


class Centre(NamedTuple):
    """What is remembered of a stream; all zeros before the first image."""

    total: Tensor
    """Weighted sum of the logits, each less its mean over classes, [C]."""
    counts: Tensor
    """Answers per class, [C]."""
    last: Tensor
    """Zero-shot probabilities of the last image, [C]."""
    course: Tensor
    """Weight of the sum, images, sum of the mean squared logits, turns, and the last strength w, [5]."""


def empty(C: int, device: torch.device | str) -> Centre:
    """Nothing seen."""
    total, counts, last = torch.zeros(3, C, device=device).unbind(0)
    return Centre(total, counts, last, torch.zeros(5, device=device))


def lean(text: Tensor) -> Tensor:
    """t_c · t̄ of class texts [C, E], from which all |t_c − w·t̄| follow, [C] float32 or better."""
    wide = text.to(torch.promote_types(text.dtype, torch.float32))
    return wide @ wide.mean(dim=0)


def observe(centre: Centre, logits: Tensor, lean: Tensor) -> tuple[Tensor, Centre]:
    """Zero-shot logits [C] of the next image → its logits without the centre, [C], and what is then remembered.

    lean: of the class texts, [C]. Logits that are not finite are left alone and forgotten. Pure; nothing is read on the
    host, so that it can be captured and mapped over streams.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    finite = wide.isfinite().all()
    z = torch.where(finite, wide - wide.mean(), 0)
    p = torch.where(finite, wide, 0).softmax(dim=-1)
    total, counts, last, (weight, seen, power, turns, strength) = centre
    C = len(z)

    # A frequent class weighs less, by the answer as far as it is known before this image has its part in the centre.
    classes = torch.special.entr(counts / counts.sum().clamp_min(1)).sum().exp()
    likely = (_less(z, total / weight.clamp_min(1e-9), strength, lean)).argmax()
    known = counts.index_select(0, likely.unsqueeze(0))[0]  # a plain index would be read on the host
    a = ((counts.sum() / classes + HABIT) / (known + HABIT)).sqrt()
    total, weight, seen, power = total + a * z, weight + a, seen + 1, power + z.square().mean()
    turns = turns + torch.where(seen > 1, (p - last).square().sum(), 0)

    mean = total / weight
    ratio = (power / seen) / mean.square().mean().clamp_min(1e-12)
    strength = (1 - ratio * (1 / (1 + turns) + BETWEEN * (1 / classes - 1 / C))).clamp_min(0)
    answer = _less(z, mean, strength, lean)
    counts = counts + (torch.arange(C, device=z.device) == answer.argmax())

    keep = (MEMORY / turns.clamp_min(1e-9)).clamp_max(1)
    course = torch.stack([keep * weight, keep * seen, keep * power, keep * turns, strength])
    after = Centre(keep * total, keep * counts, p, course)
    after = Centre(*(torch.where(finite, new, old) for new, old in zip(after, centre, strict=True)))
    return torch.where(finite, answer.to(logits.dtype), logits), after


def _less(z: Tensor, mean: Tensor, w: Tensor, lean: Tensor) -> Tensor:
    """Logits z without their centre, over the lengths of the texts without theirs, [C]."""
    lengths = (1 - 2 * w * lean + w.square() * lean.mean()).clamp_min(1e-12).sqrt()
    return (z - w * mean) / lengths
