"""The domain's centre: what all images of a stream have in common, taken off their answers. No labels, nothing to tune.

Under a shift the features of a whole domain are displaced together, which adds the same vector to the logits of every
image. `observe` keeps a running mean m of the logits z (less their mean over classes) and answers with

    (z − w·(m − 4·h·often))_c / |t_c − w·t̄|,    often_c = max(0, share_c − 3/C),
    w = max(0, 1 − E[z²]/E[m²] · (1/(1 + turns) + (1 + few)·(1/K − 1/C))),

t_c the class texts, t̄ their mean. The strength w is a James–Stein shrinkage: the mean counts as far as it is larger
than chance would make it, with as many independent draws as there were turns in the stream, the sum of |p_i − p_{i−1}|²
over successive answers, and as far as many classes (K, the exponential of the entropy of the answers so far) were seen,
for the mean of few classes is those classes and not the domain.

A frequent class is a part of the mean as well, and would lose by it: images of a class stand out from the mean by h,
E[max(z − m)], so the class that stands out most in a share of them has put share·h into it. What it has above three
times an even share is given back fourfold: once for the mean, and the rest because a frequent class is likely to come
again. A class that the domain favours does not stand out from the domain's mean, and is given nothing.

Whether classes are few shows in what is left when the mean is taken off. Images of many classes stand out from it
upwards, each with its own class far above and the others a little below; images of one class differ by noise, upwards
and downwards alike. So `lopsided`, E[max + min] over E[max − min] of z − m, is near 0 for a stream of one class and
about 0.3 for one of many, and `few` falls from 1 to 0 in between. The answers that K counts are those to
z − (1 − few)·w·m: zero-shot's as long as classes may be few.

Only the last 150 turns are remembered, so that a slowly changing domain is followed. A sudden change shows in x, how
far an image lies from the mean in the direction in which the last 16 images do. Without a change that direction is
chance and x as often negative as positive. Evidence is summed over turns, a CUSUM of x/√E[x²] − ½ that never falls
below 0. When it exceeds 10·(1 + ρ)/(1 − ρ), ρ the correlation of successive x, the mean starts again from those 16
images: in a stream of long runs of a class ρ is large, and the same evidence says less.

What was seen also says how far TCA's memory is to be trusted (`trust`): entries of a class as far as the class has
stood out from the mean, all of them as far as the stream has turned.

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
OFTEN, LIFT = 3.0, 4.0
"""Times an even share from which on a class is frequent; times its part of the mean that it is given back."""
RECENT, SLACK, ALARM, PAST = 16.0, 0.5, 10.0, 1000.0
"""Images a change is seen by; what chance may add to the evidence per turn; evidence of a change; images by which to
tell what is usual."""
HALF, GROWN = 0.5, 20.0
"""Images of a class, and turns of the stream, at which entries count half."""
TOPS = 2
"""Its place in a `Centre` as in the rows of `Reservoir.centre`."""
TURNS, STRENGTH, CHANGES = 2, 5, 6
"""Places in `Centre.course`."""
DOUBT = {"careful": 1.0, "bold": 0.25}
"""Weight of the term of classes, by what the caller knows of the stream."""


class Centre(NamedTuple):
    """What is remembered of a stream; all zeros before the first image."""

    total: Tensor
    """Sum of the logits, each less its mean over classes, [C]."""
    counts: Tensor
    """Answers per class, [C]."""
    tops: Tensor
    """Images by the class that stands out most from the mean, [C]."""
    last: Tensor
    """Zero-shot probabilities of the last image, [C]."""
    recent: Tensor
    """Moving mean of the logits, each less its mean over classes, over the last images, [C]."""
    course: Tensor
    """Images, sum of the mean squared logits, turns, sums of max + min and of max − min of the logits without the
    mean before them, the last strength w, and changes of domain so far; then evidence of the next, the last x, sums of
    x² and of x times the one before, and images with an x, [12]."""


def empty(C: int, device: torch.device | str) -> Centre:
    """Nothing seen."""
    total, counts, tops, last, recent = torch.zeros(5, C, device=device).unbind(0)
    return Centre(total, counts, tops, last, recent, torch.zeros(12, device=device))


def lean(text: Tensor) -> Tensor:
    """t_c · t̄ of class texts [C, E], from which all |t_c − w·t̄| follow, [C] float32 or better."""
    wide = text.to(torch.promote_types(text.dtype, torch.float32))
    return wide @ wide.mean(dim=0)


def trust(tops: Tensor, turns: Tensor) -> Tensor:
    """How much the entries of each class count, 0 at the start: tops [..., C], turns [...] → [..., C].

    tops: images in which each stood out most. Where a class hardly ever comes, what is stored of it are mistakes.
    """
    return tops / (tops + HALF) * (turns / (turns + GROWN)).unsqueeze(-1)


def observe(centre: Centre, logits: Tensor, lean: Tensor, doubt: float) -> tuple[Tensor, Centre]:
    """Zero-shot logits [C] of the next image → its logits without the centre, [C], and what is then remembered.

    lean: of the class texts, [C]. doubt: one of `DOUBT`. Logits that are not finite are left alone and forgotten. Pure;
    nothing is read on the host, so that it can be captured and mapped over streams.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    finite = wide.isfinite().all()
    z = torch.where(finite, wide - wide.mean(), 0)
    p = torch.where(finite, wide, 0).softmax(dim=-1)
    total, counts, tops, last, recent, course = centre
    seen, power, turns, rise, span = course[:5]
    C = len(z)

    again = seen > 0
    turn = torch.where(again, (p - last).square().sum(), 0)
    before = total / seen.clamp_min(1e-9)
    rest = z - before
    high, low = rest.amax(dim=-1), rest.amin(dim=-1)
    rise, span = rise + torch.where(again, high + low, 0), span + torch.where(again, high - low, 0)
    total, seen, power, turns = total + z, seen + 1, power + z.square().mean(), turns + turn

    mean = total / seen
    ratio = (power / seen) / mean.square().mean().clamp_min(1e-12)
    classes = torch.special.entr(counts / counts.sum().clamp_min(1e-9)).sum().exp()
    few = ((MANY - rise / span.clamp_min(1e-9)) / (MANY - FEW)).clamp(0, 1)
    chance = 1 / (1 + turns) + doubt * (1 + few) * (1 / classes - 1 / C)
    strength = (1 - ratio * chance).clamp_min(0)
    height = (rise + span) / (2 * seen)
    often = (tops / tops.sum().clamp_min(1e-9) - OFTEN / C).clamp_min(0)
    domain = mean - LIFT * height * often
    lengths = (1 - 2 * strength * lean + strength.square() * lean.mean()).clamp_min(1e-12).sqrt()
    answer = (z - strength * domain) / lengths
    likely = (z - (1 - few) * strength * mean).argmax()
    each = torch.arange(C, device=z.device)
    counts, tops = counts + (each == likely), tops + (each == rest.argmax())

    changed, watch = _watched(course[7:], recent - before, rest, seen > 2 * RECENT, turn)
    recent = recent + (z - recent) / seen.clamp_max(RECENT)
    keep = torch.where(changed, RECENT / seen, 1)
    total = torch.where(changed, seen * recent, total)
    keep = keep * (MEMORY / (keep * turns).clamp_min(1e-9)).clamp_max(1)
    sums = (seen, power, turns, rise, span)
    course = torch.stack([*(keep * x for x in sums), strength, course[6] + changed, *watch])
    after = Centre(keep * total, keep * counts, keep * tops, p, recent, course)
    after = Centre(*(torch.where(finite, new, old) for new, old in zip(after, centre, strict=True)))
    return torch.where(finite, answer.to(logits.dtype), logits), after


def _watched(watch: Tensor, drift: Tensor, rest: Tensor, known: Tensor, turn: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Whether the domain has changed [], and the last five of the course.

    drift: mean of the last images less the mean, [C]. rest: the image less the mean, [C]. known: whether the mean is of
    more than the last images, []. turn: the image's, [].
    """
    evidence, previous, power, product, images = watch
    x = torch.where(known, (drift * rest).sum() / drift.square().sum().sqrt().clamp_min(1e-9), 0)
    usual = (power / images.clamp_min(1e-9)).sqrt().clamp_min(1e-9)
    more = torch.where(known, turn * (x / usual - SLACK), 0)
    evidence = torch.where(images > RECENT, (evidence + more).clamp_min(0), 0)
    rho = (product / power.clamp_min(1e-9)).clamp(0.0, 0.95)
    changed = evidence > ALARM * (1 + rho) / (1 - rho)
    power, product, images = power + x.square(), product + x * previous, images + known
    keep = (PAST / images.clamp_min(1e-9)).clamp_max(1)
    return changed, [torch.where(changed, 0, evidence), x, keep * power, keep * product, keep * images]
