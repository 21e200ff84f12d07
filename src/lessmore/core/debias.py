"""Label-free debiasing: remove from the logits what all images of a stream have in common.

A domain shift displaces the features of a whole domain together, which adds the same vector to the logits of every
image. `observe` keeps the running mean feature of the stream. Its logits m follow for any class list. With z the logits
of an image, both less their mean over the classes, the debiased logits are

    (z − w·(m − 4·h·often))_c / |t_c − w·t̄|,    often_c = max(0, share_c − 3/C),
    w = max(0, 1 − E[z²]/E[m²] · (1/(1 + n) + (1 + few)·(1/K − 1/C))),

where t_c are the class embeddings and t̄ is their mean. Three pieces of evidence decide how much is removed.

- **Is the mean larger than chance?** w is a James–Stein shrinkage. n counts effectively independent images: the sum of
  |p_i − p_{i−1}|² over successive zero-shot answers. A stream that repeats itself adds little to it.
- **Did the stream show many classes?** The mean of few classes is those classes, not the domain. K is the exponential
  of the entropy of the answers so far. `few` adds to the doubt. Images of many classes stand out from the mean upwards,
  each with its own class far above and the others a little below; images of one class scatter both ways. So
  E[max + min] / E[max − min] of z − m is near 0 for a stream of one class and about 0.3 for many classes, and `few`
  falls from 1 to 0 in between. K counts the answers to z − (1 − few)·w·m: zero-shot's, while classes may be few.
- **Is a class frequent?** A frequent class is part of the mean and would lose by it. Images stand out from the mean by
  h = E[max(z − m)], so the class that stands out most in a share of them has put share·h into it. What it has above
  three times an even share is given back fourfold: once for the mean, and the rest because a frequent class is likely
  to come again. A class that the domain favours does not stand out from the mean and is given nothing.

Only the last 150 effective images are remembered, so a slow change is followed. A sudden change shows in x, the
distance of an image from the mean along the direction of the last 16 images. Without a change that direction is chance,
and x is as often negative as positive. A CUSUM adds up x/√E[x²] − ½ per effective image and never falls below 0. Above
10·(1 + ρ)/(1 − ρ), with ρ the correlation of successive x, the mean restarts from those 16 images. In a stream with
long runs of a class ρ is large, and the same evidence says less.

The same statistics say how far TCA's memory can be trusted (`trust`).

The first image of a stream gets zero-shot's answer. A domain in which zero-shot sees one class everywhere looks like a
stream of that class and is left alone, unless the caller knows better (`bold`).

`camera` is the rule for a camera, which sees few classes for a long time each. In all sums a frame counts by how new it
is (`lessmore.core.novelty`), and `few` rises beyond 1, up to 2.5, the more evenly images scatter both ways.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lessmore.core.class_texts import ClassTexts
from lessmore.core.novelty import RING, Novelty, news

MEMORY = 150.0
"""Effective images that are remembered."""
FEW, MANY = 0.15, 0.25
"""Below the first, classes may be few; above the second, they are many."""
OFTEN, LIFT = 3.0, 4.0
"""A class is frequent above this multiple of an even share; its part of the mean is given back this many times."""
RECENT, SLACK, ALARM, PAST = 16.0, 0.5, 10.0, 1000.0
"""The change detector: images that show a change; evidence per effective image that chance may add; evidence that
raises the alarm; images that define what is usual."""
HALF, GROWN = 0.5, 20.0
"""Images of a class, and effective images of the stream, at which stored entries have half their weight."""


class Rule(NamedTuple):
    """What the rules differ in, by what the caller knows of the stream."""

    prior_weight: float
    """Weight of the doubt about few classes."""
    most: float = 1.0
    """The largest `few`."""
    new: float = 0.0
    """Share of the mean squared distance at which a frame is wholly new; at 0 all frames count alike."""


RULES = {"careful": Rule(1.0), "bold": Rule(0.25), "camera": Rule(1.0, most=2.5, new=0.25)}
"""By the value of `Adaptation.debias`."""


class StreamMean(NamedTuple):
    """What debiasing remembers of a stream; all zeros before the first image.

    Sums decay together, so that about `MEMORY` effective images are remembered. Scalars have shape `[]`.
    """

    feature_sum: Tensor
    """Sum of the features, `[E]`."""
    recent_feature: Tensor
    """Moving mean of the last features, `[E]`."""
    answer_counts: Tensor
    """Answers per class, `[C]`."""
    standout_counts: Tensor
    """Images by the class that stands out most from the mean, `[C]`."""
    last_answer: Tensor
    """Zero-shot probabilities of the last image, `[C]`."""
    images: Tensor
    """Images remembered."""
    power: Tensor
    """Sum of the mean squared logits."""
    effective_samples: Tensor
    """Images remembered that differ from the image before them, as a sum of |p_i − p_{i−1}|²."""
    rise: Tensor
    """Sum of max + min of the logits less the mean before them."""
    span: Tensor
    """Sum of max − min of the same."""
    strength: Tensor
    """The last w: the share of the mean that was removed."""
    domain_changes: Tensor
    """Changes of domain noticed so far; never decays."""
    evidence: Tensor
    """Evidence of the next change."""
    last_drift: Tensor
    """x of the last image."""
    drift_power: Tensor
    """Sum of x²."""
    drift_product: Tensor
    """Sum of x times the x before it."""
    drift_images: Tensor
    """Images that have an x."""
    last_frames: Tensor
    """This and the following: the fields of `Novelty`, zeros where all frames count alike. `[RING, E]`."""
    distance_sum: Tensor
    distances: Tensor

    @property
    def novelty(self) -> Novelty:
        """What tells new frames from known ones."""
        return Novelty(self.last_frames, self.distance_sum, self.distances)


def empty_stream_mean(E: int, C: int, device: torch.device | str, dtype: torch.dtype = torch.float32) -> StreamMean:
    """A stream mean that has seen nothing.

    Args:
        E: Length of a feature.
        C: Number of classes.
        device: Where to put it.
        dtype: float32 or wider.
    """
    shapes: dict[str, tuple[int, ...]] = {"feature_sum": (E,), "recent_feature": (E,), "last_frames": (RING, E)}
    shapes |= dict.fromkeys(("answer_counts", "standout_counts", "last_answer"), (C,))
    return StreamMean(*(torch.zeros(shapes.get(f, ()), dtype=dtype, device=device) for f in StreamMean._fields))


def trust(mean: StreamMean) -> Tensor:
    """How much the stored entries of each class count: 0 at the start of a stream, towards 1 later, `[..., C]`.

    Entries of a class count by how often the class stood out, because what is stored of a class that hardly ever comes
    are mistakes. All entries count by how many effective images the stream has shown.
    """
    seen = mean.effective_samples
    return mean.standout_counts / (mean.standout_counts + HALF) * (seen / (seen + GROWN)).unsqueeze(-1)


def observe(
    mean: StreamMean, logits: Tensor, feature: Tensor, texts: ClassTexts, rule: Rule
) -> tuple[Tensor, StreamMean]:
    """Debias the next image of a stream and remember it.

    Pure, and nothing is read on the host, so that it can be captured in a graph and mapped over streams.

    Args:
        mean: What is remembered of the stream.
        logits: Zero-shot logits of the image, `[C]`. Logits that are not finite are returned as they are and leave no
            trace.
        feature: L2-normalised feature of the image, `[E]`.
        texts: The class embeddings.
        rule: One of `RULES`.

    Returns:
        The debiased logits `[C]` and what is remembered with this image.
    """
    # Logits are linear in the feature, so mean logits come from the mean feature and hold for any class list.
    # A branch on a value would wait for the device. What is not finite is computed as zeros and undone at the end.
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    finite = wide.isfinite().all()
    z = torch.where(finite, wide - wide.mean(), 0)
    f = torch.where(finite, feature.to(mean.feature_sum), 0)
    p = torch.where(finite, wide, 0).softmax(dim=-1)
    C, again = len(z), mean.images > 0
    total, recent = (centred(texts.logits(v.to(wide.dtype))) for v in (mean.feature_sum, mean.recent_feature))

    # u: how much of an image this frame is. The first image has nothing to differ from, so it adds to no difference.
    number = mean.images.clamp_min(1e-9)
    u, novelty = torch.ones_like(number), mean.novelty
    if rule.new:
        u, novelty = news(novelty, f, mean.feature_sum / number, again, rule.new)
    counted, before = torch.where(again, u, 0), total / number
    rest = z - before  # how the image stands out; less the mean without it, or a first image would be its own mean
    high, low = rest.amax(dim=-1), rest.amin(dim=-1)
    turn = counted * (p - mean.last_answer).square().sum()
    rise, span = mean.rise + counted * (high + low), mean.span + counted * (high - low)
    images, power, effective = mean.images + u, mean.power + u * z.square().mean(), mean.effective_samples + turn

    mean_logits = (total + u * z) / images
    strength, few = _strength(mean_logits, power / images, effective, rise, span, mean.answer_counts, rule)
    # What frequent classes have put into the mean is theirs, and is given back before the mean is removed.
    height = (rise + span) / (2 * images)  # E[max], since rise and span are max + min and max − min
    often = (mean.standout_counts / mean.standout_counts.sum().clamp_min(1e-9) - OFTEN / C).clamp_min(0)
    domain = mean_logits - LIFT * height * often
    # Without their common part, class texts have different lengths; the cosine is with what is left of each of them.
    lengths = (1 - 2 * strength * texts.bias + strength.square() * texts.bias.mean()).clamp_min(1e-12).sqrt()
    answer = (z - strength * domain) / lengths

    # While classes may be few, the mean may be a class. An answer without it would count other classes as seen, which
    # would then say that classes are many. So the mean is removed only as far as classes are known to be many.
    likely, each = (z - (1 - few).clamp_min(0) * strength * mean_logits).argmax(), torch.arange(C, device=z.device)
    changed, watch = _watch(mean, recent - before, rest, images > 2 * RECENT, turn)
    # A plain mean until there are RECENT images, then a moving one: no zeros from the start are left in it.
    newest = mean.recent_feature + u * (f - mean.recent_feature) / images.clamp(1.0, RECENT)
    # All sums shrink by one factor, so that their ratios stay: to the recent images after a change, else to MEMORY.
    keep = torch.where(changed, RECENT / images, 1)
    keep = keep * (MEMORY / (keep * effective).clamp_min(1e-9)).clamp_max(1)
    after = StreamMean(
        feature_sum=keep * torch.where(changed, images * newest, mean.feature_sum + u * f),
        recent_feature=newest,
        answer_counts=keep * (mean.answer_counts + u * (each == likely)),
        standout_counts=keep * (mean.standout_counts + u * (each == rest.argmax())),
        last_answer=p,
        images=keep * images,
        power=keep * power,
        effective_samples=keep * effective,
        rise=keep * rise,
        span=keep * span,
        strength=strength,
        domain_changes=mean.domain_changes + changed,
        **watch,
        **novelty._asdict(),
    )
    after = StreamMean(*(torch.where(finite, new, old) for new, old in zip(after, mean, strict=True)))
    return torch.where(finite, answer.to(logits.dtype), logits), after


def centred(logits: Tensor) -> Tensor:
    """Logits `[..., C]` less their mean over the classes."""
    return logits - logits.mean(dim=-1, keepdim=True)


def _strength(
    mean_logits: Tensor,
    power: Tensor,
    effective: Tensor,
    rise: Tensor,
    span: Tensor,
    answers: Tensor,
    rule: Rule,
) -> tuple[Tensor, Tensor]:
    """The strength w, and whether classes may be few; mean_logits and answers `[C]`, the others `[]`."""
    # By chance alone, the mean of n independent images has 1/n of their power. The mean of K classes keeps 1/K of it,
    # however long the stream is; 1/C is what a stream of all classes keeps.
    classes = torch.special.entr(answers / answers.sum().clamp_min(1e-9)).sum().exp()
    few = ((MANY - rise / span.clamp_min(1e-9)) / (MANY - FEW)).clamp(0.0, rule.most)
    chance = 1 / (1 + effective) + rule.prior_weight * (1 + few) * (1 / classes - 1 / len(answers))
    ratio = power / mean_logits.square().mean().clamp_min(1e-12)
    return (1 - ratio * chance).clamp_min(0), few


def _watch(
    mean: StreamMean, drift: Tensor, rest: Tensor, known: Tensor, turn: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Whether the domain has changed `[]`, and the detector's fields after the image.

    drift: the recent mean less the mean, `[C]`. rest: the image less the mean, `[C]`. known: whether the mean holds
    more than the recent images, `[]`. turn: what the image adds to the effective images, `[]`.
    """
    # The direction comes from images before this one. If it were chosen with it, x would always be positive.
    x = torch.where(known, (drift * rest).sum() / drift.square().sum().sqrt().clamp_min(1e-9), 0)
    usual = (mean.drift_power / mean.drift_images.clamp_min(1e-9)).sqrt().clamp_min(1e-9)
    more = torch.where(known, turn * (x / usual - SLACK), 0)
    # `usual` is a guess until some x are known, and a guess that is too small would raise the alarm at once.
    evidence = torch.where(mean.drift_images > RECENT, (mean.evidence + more).clamp_min(0), 0)
    rho = (mean.drift_product / mean.drift_power.clamp_min(1e-9)).clamp(0.0, 0.95)
    changed = evidence > ALARM * (1 + rho) / (1 - rho)
    images = mean.drift_images + known
    keep = (PAST / images.clamp_min(1e-9)).clamp_max(1)
    return changed, {
        "evidence": torch.where(changed, 0, evidence),
        "last_drift": x,
        "drift_power": keep * (mean.drift_power + x.square()),
        "drift_product": keep * (mean.drift_product + x * mean.last_drift),
        "drift_images": keep * images,
    }
