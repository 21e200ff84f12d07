"""A rule for streams as cameras see them, in plain torch: the centre of `lessmore.core.debias` with two changes.

- **A frame counts by how new it is.** Its weight u is its squared distance to the nearest of the last 16 features,
  over a quarter of the mean squared distance of frames from their mean, at most 1. All sums take u. A frame that is
  repeated, a covered lens and a long look at one thing then move the mean as little as they tell.
- **The doubt about few classes is open-ended.** `few` does not stop at 1: it goes on rising, to 2.5, while images stand
  out from the mean upwards and downwards alike, as images of one class do.

There is no correction from memory: on streams of few classes that is what hurts. Everything else, the constants of the
centre among them, is the library's.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from stream_pool import Pool
from stream_rules import Answered, Rule, State
from torch import Tensor
from torch.utils import _pytree as tree

from lessmore.core import debias
from lessmore.core.class_texts import ClassTexts
from lessmore.core.debias import LIFT, MEMORY, OFTEN, RECENT, StreamMean, centred
from lessmore.core.step import Sample

RING, FADE = 16, 0.99
"""Features a frame is compared with; how the spread forgets."""


class Constants(NamedTuple):
    """What was chosen on `fix`."""

    new: float = 0.25
    """Share of the spread at which a frame is wholly new; 0: all are."""
    many: float = debias.MANY
    """Shape above which classes are many."""
    step: float = debias.MANY - debias.FEW
    """How much less makes the doubt one larger."""
    most: float = 2.5
    """The largest doubt: its value at a shape of 0."""


CHOSEN = Constants()


class Novelty(NamedTuple):
    """What tells new frames from known ones; zeros before the first."""

    ring: Tensor
    """The last features that were not repeats, `[RING, E]`."""
    distance: Tensor
    """Decaying sum of squared distances from the mean feature, `[]`."""
    images: Tensor
    """Decaying number of them, `[]`."""


def weigh(own: Novelty, feature: Tensor, mean: Tensor, again: Tensor, new: float) -> tuple[Tensor, Novelty]:
    """How new a frame is, from 0 to 1, and what is remembered with it.

    Args:
        own: What is remembered.
        feature: `[E]`.
        mean: The stream's mean feature, `[E]`.
        again: Whether there were frames before, `[]` bool.
        new: See `Constants`.
    """
    apart = torch.where(own.ring.any(dim=1), (own.ring - feature).square().sum(dim=1), 4.0).amin()
    away = torch.where(again, (feature - mean).square().sum(), 0.0)
    spread = (own.distance + away) / (own.images + 1)
    if not new:
        return torch.ones_like(away), own
    u = torch.where(again, (apart / (new * spread).clamp_min(1e-6)).clamp_max(1), 1.0)
    counted = u * again
    ring = torch.where(u > 0, torch.cat([own.ring[1:], feature[None]]), own.ring)
    return u, Novelty(ring, FADE * (own.distance + counted * away), FADE * (own.images + counted))


def observe_new(
    mean: StreamMean, own: Novelty, logits: Tensor, feature: Tensor, texts: ClassTexts, chosen: Constants
) -> tuple[Tensor, StreamMean, Novelty]:
    """`debias.observe` with frames that count by their novelty and an open-ended doubt."""
    z, p, C, again = logits - logits.mean(), logits.softmax(dim=-1), len(logits), mean.images > 0
    before_images = mean.images.clamp_min(1e-9)
    u, own = weigh(own, feature, mean.feature_sum / before_images, again, chosen.new)
    total, recent = (centred(texts.logits(v)) for v in (mean.feature_sum, mean.recent_feature))
    rest = z - total / before_images
    high, low, counted = rest.amax(), rest.amin(), u * again
    turn = counted * (p - mean.last_answer).square().sum()
    rise, span = mean.rise + counted * (high + low), mean.span + counted * (high - low)
    images, power, turns = mean.images + u, mean.power + u * z.square().mean(), mean.effective_samples + turn

    middle = (total + u * z) / images
    doubt = ((chosen.many - rise / span.clamp_min(1e-9)) / chosen.step).clamp(0, chosen.most)
    classes = torch.special.entr(mean.answer_counts / mean.answer_counts.sum().clamp_min(1e-9)).sum().exp()
    chance = 1 / (1 + turns) + (1 + doubt) * (1 / classes - 1 / C)
    ratio = power / images / middle.square().mean().clamp_min(1e-12)
    strength = (1 - ratio * chance).clamp_min(0)
    often = (mean.standout_counts / mean.standout_counts.sum().clamp_min(1e-9) - OFTEN / C).clamp_min(0)
    domain = middle - LIFT * (rise + span) / (2 * images) * often
    lengths = (1 - 2 * strength * texts.bias + strength.square() * texts.bias.mean()).clamp_min(1e-12).sqrt()
    answer = (z - strength * domain) / lengths

    likely, each = (z - (1 - doubt).clamp_min(0) * strength * middle).argmax(), torch.arange(C, device=z.device)
    changed, watch = debias._watch(mean, recent - total / before_images, rest, images > 2 * RECENT, turn)
    newest = mean.recent_feature + u * (feature - mean.recent_feature) / images.clamp(1, RECENT)
    keep = torch.where(changed, RECENT / images, 1)
    keep = keep * (MEMORY / (keep * turns).clamp_min(1e-9)).clamp_max(1)
    after = StreamMean(
        feature_sum=keep * torch.where(changed, images * newest, mean.feature_sum + u * feature),
        recent_feature=newest,
        answer_counts=keep * (mean.answer_counts + u * (each == likely)),
        standout_counts=keep * (mean.standout_counts + u * (each == rest.argmax())),
        last_answer=p,
        images=keep * images,
        power=keep * power,
        effective_samples=keep * turns,
        rise=keep * rise,
        span=keep * span,
        strength=strength,
        domain_changes=mean.domain_changes + changed,
        **watch,
    )
    return answer, after, own


def _start(pool: Pool, S: int) -> State:
    (C, E), text = pool.texts.text.shape, pool.texts.text
    empty = debias.empty_stream_mean(E, C, text.device), Novelty(text.new_zeros(RING, E), *text.new_zeros(2))
    return tree.tree_map(lambda t: t.expand(S, *t.shape).clone(), empty)


def by_news(name: str, chosen: Constants = CHOSEN, light: bool = False) -> Rule:
    """The rule with some constants."""

    def step(state: State, sample: Sample, pool: Pool) -> Answered:
        def one(state: State, feature: Tensor, logits: Tensor) -> tuple[Tensor, StreamMean, Novelty]:
            return observe_new(*state, logits, feature, pool.texts, chosen)

        answer, mean, own = torch.vmap(one)(state, sample.feature, sample.logits)
        return Answered(answer, (mean, own), mean.domain_changes)

    return Rule(name, "default", _start, step, light)


NEWS = by_news("news")
"""The candidate. A frame counts by the news it brings."""
VARIANTS = tuple(
    by_news(f"news, {name}", chosen, light=True)
    for name, chosen in {
        "all frames new": Constants(new=0.0),
        "new halved": Constants(new=0.125),
        "new doubled": Constants(new=0.5),
        "doubt at most 1": Constants(most=1.0),
        "many 0.22, step 0.08": Constants(many=0.22, step=0.08),
        "many 0.18, step 0.06": Constants(many=0.18, step=0.06, most=3.0),
        "all new, doubt at most 1": Constants(new=0.0, most=1.0),
    }.items()
)
"""With other constants."""
CANDIDATES = (NEWS, *VARIANTS)
