"""Debiasing for a chunk of images: `core.debias.observe`, image after image, in one launch.

Every image depends on the one before it, so the only parallelism is within an image. One program keeps the whole
stream mean in registers; its threads share the classes and the feature's dimensions, and an image costs a few
reductions over the classes. The mean logits it starts from are one small matrix product before the launch, and so are
the distances between frames where frames count by how new they are.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lessmore.core.class_texts import ClassTexts
from lessmore.core.debias import ALARM, FEW, GROWN, HALF, LIFT, MANY, MEMORY, OFTEN, PAST, RECENT, SLACK, Rule
from lessmore.core.novelty import APART, FADE, RING
from lessmore.engines.packed_mean import PackedMean


@triton.jit
def _store(to, values, stride, c, here):
    """Store values one after another, `stride` apart."""
    for k in tl.static_range(len(values)):
        tl.store(to + k * stride + c, values[k], mask=here)


@triton.jit
def _centred(logits, c, here, C):
    """Logits less their mean over the classes, [CLASSES]."""
    values = tl.load(logits + c, mask=here, other=0)
    return tl.where(here, values - tl.sum(values, axis=0) / C, 0)


@triton.jit
def _by_news(value, u, new: tl.constexpr):
    """A value counted u times, where frames count by how new they are."""
    return u * value if new > 0 else value


@triton.jit
def _news(
    apart, i, P, places, oldest, distance_sum, distances, feature, feature_sum, seen, new: tl.constexpr,
    fade: tl.constexpr, RING: tl.constexpr,
):  # fmt: skip
    """How new frame i is, and what is known with it. places: columns of `apart` that hold the last frames, [RING]."""
    nearest = tl.min(tl.load(apart + i * (RING + P) + places), axis=0)
    from_mean = feature - feature_sum / tl.maximum(seen, 1e-9)
    again = tl.where(seen > 0, 1, 0)
    away = again * tl.sum(from_mean * from_mean, axis=0)
    spread = (distance_sum + away) / (distances + 1)
    u = tl.where(again > 0, tl.minimum(nearest / tl.maximum(new * spread, 1e-6), 1), 1)
    places = tl.where(tl.arange(0, RING) == tl.where(u > 0, oldest, RING), RING + i, places)  # repeats take no place
    oldest = tl.where(u > 0, (oldest + 1) % RING, oldest)
    return u, places, oldest, fade * (distance_sum + u * away), fade * (distances + u * again)


@triton.jit
def _strength(
    mean, shares, power, effective, rise, span, C, few: tl.constexpr, many: tl.constexpr, prior_weight: tl.constexpr,
    most: tl.constexpr,
):  # fmt: skip
    """The strength w, and whether classes may be few. mean; shares of the answers before: [CLASSES]. power: E[z²]."""
    ratio = power / tl.maximum(tl.sum(mean * mean, axis=0) / C, 1e-12)
    classes = tl.exp(-tl.sum(tl.where(shares > 0, shares * tl.log(tl.maximum(shares, 1e-37)), 0), axis=0))
    perhaps = tl.minimum(tl.maximum((many - rise / tl.maximum(span, 1e-9)) / (many - few), 0), most)
    lack = prior_weight * (1 + perhaps) * (1 - classes / C) / classes
    if most > 1:
        perhaps = tl.minimum(perhaps, 1)
    return tl.maximum(1 - ratio * (1 / (1 + effective) + lack), 0), perhaps


@triton.jit
def _watched(
    evidence, previous, squares, products, images, x, known, turn, recent: tl.constexpr, slack: tl.constexpr,
    alarm: tl.constexpr, past: tl.constexpr,
):  # fmt: skip
    """Whether the domain has changed, and the evidence and sums after an image that lies x far from the mean."""
    usual = tl.maximum(tl.sqrt(squares / tl.maximum(images, 1e-9)), 1e-9)
    more = tl.where(known, turn * (x / usual - slack), 0)
    evidence = tl.where(images > recent, tl.maximum(evidence + more, 0), 0)
    rho = tl.minimum(tl.maximum(products / tl.maximum(squares, 1e-9), 0), 0.95)
    changed = evidence > alarm * (1 + rho) / (1 - rho)
    squares += x * x
    products += x * previous
    images += tl.where(known, 1, 0)
    keep = tl.minimum(past / tl.maximum(images, 1e-9), 1)
    return changed, tl.where(changed, 0, evidence), keep * squares, keep * products, keep * images


@triton.jit
def _scan(
    logits, images_features, real, bias, mean_logits, features, classes, scalars, next_features, next_classes,
    next_scalars, apart, known_distances, next_distances, order, answers, trust, P, C, E, memory: tl.constexpr,
    few: tl.constexpr, many: tl.constexpr, often: tl.constexpr, lift: tl.constexpr, recently: tl.constexpr,
    slack: tl.constexpr, alarm: tl.constexpr, past: tl.constexpr, half: tl.constexpr, grown: tl.constexpr,
    prior_weight: tl.constexpr, most: tl.constexpr, new: tl.constexpr, fade: tl.constexpr, CLASSES: tl.constexpr,
    EMBED: tl.constexpr, RING: tl.constexpr,
):  # fmt: skip
    c, e = tl.arange(0, CLASSES), tl.arange(0, EMBED)
    here, there = c < C, e < E
    bias = tl.load(bias + c, mask=here, other=0)
    mean_bias = tl.sum(bias, axis=0) / C
    # The fields of `StreamMean`, in its order.
    feature_sum = tl.load(features + e, mask=there, other=0)
    recent_feature = tl.load(features + E + e, mask=there, other=0)
    counts = tl.load(classes + c, mask=here, other=0)
    standouts = tl.load(classes + C + c, mask=here, other=0)
    last = tl.load(classes + 2 * C + c, mask=here, other=0)
    seen, power, effective = tl.load(scalars), tl.load(scalars + 1), tl.load(scalars + 2)
    rise, span, strength = tl.load(scalars + 3), tl.load(scalars + 4), tl.load(scalars + 5)
    changes, evidence, x = tl.load(scalars + 6), tl.load(scalars + 7), tl.load(scalars + 8)
    squares, products, known = tl.load(scalars + 9), tl.load(scalars + 10), tl.load(scalars + 11)
    # The logits of the two features, which follow the same recursion as the features from here on.
    total, recent = _centred(mean_logits, c, here, C), _centred(mean_logits + C, c, here, C)
    if new > 0:
        places, oldest = tl.arange(0, RING), 0
        distance_sum, distances = tl.load(known_distances), tl.load(known_distances + 1)
    n = tl.load(real)
    following = tl.load(logits + c, mask=here, other=0)
    for i in range(P):
        answer = following
        # Load the next row while this one is computed.
        following = tl.load(logits + tl.minimum(i + 1, P - 1) * C + c, mask=here, other=0)
        level = tl.sum(answer, axis=0) / C
        # 0 · NaN and 0 · ∞ are NaN, so one value that is not finite makes the whole sum NaN.
        if (i < n) & (level * 0 == 0):
            feature = tl.load(images_features + i * E + e, mask=there, other=0).to(feature_sum.dtype)
            z = tl.where(here, answer - level, 0)
            p = tl.where(here, tl.exp(answer - tl.max(tl.where(here, answer, float("-inf")), axis=0)), 0)
            p = p / tl.sum(p, axis=0)
            again = tl.where(seen > 0, 1, 0)
            u = again
            if new > 0:
                u, places, oldest, distance_sum, distances = _news(
                    apart, i, P, places, oldest, distance_sum, distances, feature, feature_sum, seen, new, fade, RING
                )
            counted = _by_news(again, u, new)
            turn = counted * tl.sum((p - last) * (p - last), axis=0)
            before = total / tl.maximum(seen, 1e-9)
            # Removed classes took their counts with them, so these may add up to less than the images.
            shares = counts / tl.maximum(tl.sum(counts, axis=0), 1e-9)
            frequent = standouts / tl.maximum(tl.sum(standouts, axis=0), 1e-9)
            rest, drift = z - before, recent - before
            # The class that stands out most from the mean before the image also does from the mean after it.
            high, top = tl.max(tl.where(here, rest, float("-inf")), axis=0, return_indices=True)
            low = tl.min(tl.where(here, rest, float("inf")), axis=0)
            rise += counted * (high + low)
            span += counted * (high - low)
            total += _by_news(z, u, new)
            feature_sum += _by_news(feature, u, new)
            seen += _by_news(1, u, new)
            power += _by_news(tl.sum(z * z, axis=0) / C, u, new)
            effective += turn
            mean = total / seen
            strength, perhaps = _strength(
                mean, shares, power / seen, effective, rise, span, C, few, many, prior_weight, most
            )
            domain = mean - lift * ((rise + span) / (2 * seen)) * (tl.maximum(frequent * C - often, 0) / C)
            lengths = tl.sqrt(tl.maximum(1 - 2 * strength * bias + strength * strength * mean_bias, 1e-12))
            answer = (z - strength * domain) / lengths
            likely = tl.argmax(tl.where(here, z - (1 - perhaps) * strength * mean, float("-inf")), axis=0)
            counts += _by_news(tl.where(c == likely, 1, 0), u, new)
            standouts += _by_news(tl.where(c == top, 1, 0), u, new)
            previous = x
            x = tl.sum(drift * rest, axis=0) / tl.maximum(tl.sqrt(tl.sum(drift * drift, axis=0)), 1e-9)
            x = tl.where(seen > 2 * recently, x, 0)
            changed, evidence, squares, products, known = _watched(
                evidence, previous, squares, products, known, x, seen > 2 * recently, turn, recently, slack, alarm, past
            )
            changes += tl.where(changed, 1, 0)
            newest = tl.minimum(tl.maximum(seen, 1) if new > 0 else seen, recently)
            recent += _by_news(z - recent, u, new) / newest
            recent_feature += _by_news(feature - recent_feature, u, new) / newest
            total = tl.where(changed, seen * recent, total)
            feature_sum = tl.where(changed, seen * recent_feature, feature_sum)
            keep = tl.where(changed, recently / seen, 1)
            keep *= tl.minimum(memory / tl.maximum(keep * effective, 1e-9), 1)
            total, feature_sum = keep * total, keep * feature_sum
            counts, standouts, last = keep * counts, keep * standouts, p
            seen, power, effective, rise, span = keep * seen, keep * power, keep * effective, keep * rise, keep * span
        tl.store(answers + i * C + c, answer, mask=here)
        tl.store(trust + i * C + c, standouts / (standouts + half) * (effective / (effective + grown)), mask=here)
    tl.debug_barrier()  # the buffers before and after may be the same
    _store(next_features, (feature_sum, recent_feature), E, e, there)
    _store(next_classes, (counts, standouts, last), C, c, here)
    _store(next_scalars, (seen, power, effective, rise, span, strength, changes), 1, 0, True)
    _store(next_scalars + 7, (evidence, x, squares, products, known), 1, 0, True)
    if new > 0:
        tl.store(order + (tl.arange(0, RING) - oldest + RING) % RING, places)
        _store(next_distances, (distance_sum, distances), 1, 0, True)


def scan(
    logits: Tensor, features: Tensor, images: Tensor, texts: ClassTexts, before: PackedMean, after: PackedMean,
    answers: Tensor, trust: Tensor, rule: Rule, mean_logits: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Debias P images one after another; everything is of one type.

    Args:
        logits: Zero-shot logits, `[P, C]`. Rows that are not real or not finite are copied and leave no trace.
        features: L2-normalised features, `[P, E]`.
        images: How many rows are real, `[]`.
        texts: The class embeddings.
        before: The stream mean before the images.
        after: Where to leave it after them, but for the last frames; may be `before`. Where all frames count alike,
            its distances stay as they are.
        answers: Where to leave the debiased logits, `[P, C]`.
        trust: Where to leave `debias.trust` after each image, `[P, C]`.
        rule: As for `debias.observe`.
        mean_logits: Logits of `before.features`, `[2, C]`, where they are computed already.

    Returns:
        The last frames after the images, `[RING, E]`.
    """
    (P, C), E = logits.shape, features.shape[1]
    if mean_logits is None:
        mean_logits = texts.logits(before.features)
    classes, embed = max(triton.next_power_of_2(C), 16), max(triton.next_power_of_2(E), 16)
    frames = before.last_frames
    if rule.new:
        frames = torch.cat([frames, features.to(frames.dtype)])
        apart, order = _distances(frames, P), torch.empty(RING, dtype=torch.int32, device=logits.device)
    else:
        apart = order = logits  # not looked at
    _scan[(1,)](
        logits, features, images, texts.bias, mean_logits, *before[:3], *after[:3], apart, before.distances,
        after.distances, order, answers, trust, P, C, E, MEMORY, FEW, MANY, OFTEN, LIFT, RECENT, SLACK, ALARM, PAST,
        HALF, GROWN, rule.prior_weight, rule.most, rule.new, FADE, CLASSES=classes, EMBED=embed, RING=RING,
        num_warps=min(max(classes // 256, embed // 512, 1), 32),
    )  # fmt: skip
    return frames.index_select(0, order) if rule.new else frames


def _distances(frames: Tensor, P: int) -> Tensor:
    """Squared distances of P frames from those before them and from one another, `[P, RING + P]`.

    Args:
        frames: Features of the last RING frames and of these, `[RING + P, E]`.
        P: Number of frames.
    """
    apart = torch.cdist(frames[RING:], frames, compute_mode="donot_use_mm_for_euclid_dist").square()
    return torch.where(frames.any(dim=1), apart, APART)
