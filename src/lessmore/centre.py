"""The domain's centre: what all images of a stream have in common, taken off their answers. No labels, nothing to tune.

Under a shift the features of a whole domain are displaced together, which adds the same vector to the logits of every
image. `observe` keeps a running mean m of the logits z (less their mean over classes) and answers with

    (z − w·m)_c / |t_c − w·t̄|,    w = max(0, 1 − E[z²]/E[m²] · (1/(1 + turns) + (1 + few)·(1/K − 1/C))),

t_c the class texts, t̄ their mean. The strength w is a James–Stein shrinkage: the mean counts as far as it is larger
than chance would make it, with as many independent draws as there were turns in the stream, the sum of |p_i − p_{i−1}|²
over successive answers, and as far as many classes (K, the exponential of the entropy of the answers so far) were seen,
for the mean of few classes is those classes and not the domain.

Whether classes are few shows in what is left when the mean is taken off. Images of many classes stand out from it
upwards, each with its own class far above and the others a little below; images of one class differ by noise, upwards
and downwards alike. So `lopsided`, E[max + min] over E[max − min] of z − m, is near 0 for a stream of one class and
about 0.3 for one of many, and `few` falls from 1 to 0 in between. The answers that K counts are those to
z − (1 − few)·w·m: zero-shot's as long as classes may be few. Only the last 150 turns are remembered, so that a new
domain is followed.

The first image of a stream is answered as zero-shot answers it. A domain in which zero-shot sees one class everywhere
cannot be told from a stream of that class, and is left alone, unless the caller knows better (`bold`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

MEMORY = 150.0
"""Turns that are remembered."""
FEW, MANY = 0.15, 0.25
"""Lopsided up to here: perhaps few classes; from here on: many."""
DOUBT = {"careful": 1.0, "bold": 0.25}
"""Weight of the term of classes, by what the caller knows of the stream."""


class Centre(NamedTuple):
    """What is remembered of a stream; all zeros before the first image."""

    total: Tensor
    """Sum of the logits, each less its mean over classes, [C]."""
    counts: Tensor
    """Answers per class, [C]."""
    last: Tensor
    """Zero-shot probabilities of the last image, [C]."""
    course: Tensor
    """Images, sum of the mean squared logits, turns, sums of max + min and of max − min of the logits without the
    mean before them, and the last strength w, [6]."""


def empty(C: int, device: torch.device | str) -> Centre:
    """Nothing seen."""
    total, counts, last = torch.zeros(3, C, device=device).unbind(0)
    return Centre(total, counts, last, torch.zeros(6, device=device))


def lean(text: Tensor) -> Tensor:
    """t_c · t̄ of class texts [C, E], from which all |t_c − w·t̄| follow, [C] float32 or better."""
    wide = text.to(torch.promote_types(text.dtype, torch.float32))
    return wide @ wide.mean(dim=0)


def observe(centre: Centre, logits: Tensor, lean: Tensor, doubt: float) -> tuple[Tensor, Centre]:
    """Zero-shot logits [C] of the next image → its logits without the centre, [C], and what is then remembered.

    lean: of the class texts, [C]. doubt: one of `DOUBT`. Logits that are not finite are left alone and forgotten. Pure;
    nothing is read on the host, so that it can be captured and mapped over streams.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    finite = wide.isfinite().all()
    z = torch.where(finite, wide - wide.mean(), 0)
    p = torch.where(finite, wide, 0).softmax(dim=-1)
    total, counts, last, (seen, power, turns, rise, span, _) = centre
    C = len(z)

    again = seen > 0
    turns = turns + torch.where(again, (p - last).square().sum(), 0)
    rest = z - total / seen.clamp_min(1e-9)
    high, low = rest.amax(dim=-1), rest.amin(dim=-1)
    rise, span = rise + torch.where(again, high + low, 0), span + torch.where(again, high - low, 0)
    total, seen, power = total + z, seen + 1, power + z.square().mean()

    mean = total / seen
    ratio = (power / seen) / mean.square().mean().clamp_min(1e-12)
    classes = torch.special.entr(counts / counts.sum().clamp_min(1e-9)).sum().exp()
    few = ((MANY - rise / span.clamp_min(1e-9)) / (MANY - FEW)).clamp(0, 1)
    chance = 1 / (1 + turns) + doubt * (1 + few) * (1 / classes - 1 / C)
    strength = (1 - ratio * chance).clamp_min(0)
    lengths = (1 - 2 * strength * lean + strength.square() * lean.mean()).clamp_min(1e-12).sqrt()
    answer = (z - strength * mean) / lengths
    likely = (z - (1 - few) * strength * mean).argmax()
    counts = counts + (torch.arange(C, device=z.device) == likely)

    keep = (MEMORY / turns.clamp_min(1e-9)).clamp_max(1)
    course = torch.stack([*(keep * x for x in (seen, power, turns, rise, span)), strength])
    after = Centre(keep * total, keep * counts, p, course)
    after = Centre(*(torch.where(finite, new, old) for new, old in zip(after, centre, strict=True)))
    return torch.where(finite, answer.to(logits.dtype), logits), after
