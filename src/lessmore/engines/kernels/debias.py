"""A chunk's logits without the centre of their stream: `core.debias.observe`, image after image, in one launch.

One program holds what is remembered in registers, so that a step costs a few reductions over the classes.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from lessmore.core.debias import ALARM, FEW, GROWN, HALF, LIFT, MANY, MEMORY, OFTEN, PAST, RECENT, SLACK


@triton.jit
def _store(to, values, stride, c, here):
    """Values one after the other, each `stride` further on."""
    for k in tl.static_range(len(values)):
        tl.store(to + k * stride + c, values[k], mask=here)


@triton.jit
def _strength(
    mean, shares, power, turns, rise, span, C, few: tl.constexpr, many: tl.constexpr, doubt: tl.constexpr
):  # fmt: skip
    """The strength w, and whether classes may be few. mean; shares of the answers before: [CLASSES]. power: E[z²]."""
    ratio = power / tl.maximum(tl.sum(mean * mean, axis=0) / C, 1e-12)
    classes = tl.exp(-tl.sum(tl.where(shares > 0, shares * tl.log(tl.maximum(shares, 1e-37)), 0), axis=0))
    perhaps = tl.minimum(tl.maximum((many - rise / tl.maximum(span, 1e-9)) / (many - few), 0), 1)
    lack = doubt * (1 + perhaps) * (1 - classes / C) / classes
    return tl.maximum(1 - ratio * (1 / (1 + turns) + lack), 0), perhaps


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
def _centre(
    logits, lean, images, centre, course, answers, next_centre, next_course, trust, P, C, memory: tl.constexpr,
    few: tl.constexpr, many: tl.constexpr, often: tl.constexpr, lift: tl.constexpr, recently: tl.constexpr,
    slack: tl.constexpr, alarm: tl.constexpr, past: tl.constexpr, half: tl.constexpr, grown: tl.constexpr,
    doubt: tl.constexpr, CLASSES: tl.constexpr,
):  # fmt: skip
    c = tl.arange(0, CLASSES)
    here = c < C
    lean = tl.load(lean + c, mask=here, other=0)
    middle = tl.sum(lean, axis=0) / C
    total = tl.load(centre + c, mask=here, other=0)
    counts = tl.load(centre + C + c, mask=here, other=0)
    tops = tl.load(centre + 2 * C + c, mask=here, other=0)
    last = tl.load(centre + 3 * C + c, mask=here, other=0)
    recent = tl.load(centre + 4 * C + c, mask=here, other=0)
    seen, power, turns = tl.load(course), tl.load(course + 1), tl.load(course + 2)
    rise, span, strength = tl.load(course + 3), tl.load(course + 4), tl.load(course + 5)
    changes, evidence, x = tl.load(course + 6), tl.load(course + 7), tl.load(course + 8)
    squares, products, known = tl.load(course + 9), tl.load(course + 10), tl.load(course + 11)
    n = tl.load(images)
    following = tl.load(logits + c, mask=here, other=0)
    for i in range(P):
        answer = following
        # The next row is on its way while this one is worked on.
        following = tl.load(logits + tl.minimum(i + 1, P - 1) * C + c, mask=here, other=0)
        level = tl.sum(answer, axis=0) / C
        # Zero times a value that is not finite is not a number, and one such value makes the sum so.
        if (i < n) & (level * 0 == 0):
            z = tl.where(here, answer - level, 0)
            p = tl.where(here, tl.exp(answer - tl.max(tl.where(here, answer, float("-inf")), axis=0)), 0)
            p = p / tl.sum(p, axis=0)
            again = tl.where(seen > 0, 1, 0)
            turn = again * tl.sum((p - last) * (p - last), axis=0)
            # Every image before counts once among the answers and once among those that stand out.
            fore = tl.maximum(seen, 1e-9)
            before, shares, frequent = total / fore, counts / fore, tops / fore
            rest, drift = z - before, recent - before
            # What stands out most from this mean also does from the next.
            high, top = tl.max(tl.where(here, rest, float("-inf")), axis=0, return_indices=True)
            low = tl.min(tl.where(here, rest, float("inf")), axis=0)
            rise += again * (high + low)
            span += again * (high - low)
            total += z
            seen += 1
            power += tl.sum(z * z, axis=0) / C
            turns += turn
            mean = total / seen
            strength, perhaps = _strength(mean, shares, power / seen, turns, rise, span, C, few, many, doubt)
            height = (rise + span) / (2 * seen)
            domain = mean - lift * height * (tl.maximum(frequent * C - often, 0) / C)
            lengths = tl.sqrt(tl.maximum(1 - 2 * strength * lean + strength * strength * middle, 1e-12))
            answer = (z - strength * domain) / lengths
            likely = tl.argmax(tl.where(here, z - (1 - perhaps) * strength * mean, float("-inf")), axis=0)
            counts += tl.where(c == likely, 1, 0)
            tops += tl.where(c == top, 1, 0)
            previous = x
            x = tl.sum(drift * rest, axis=0) / tl.maximum(tl.sqrt(tl.sum(drift * drift, axis=0)), 1e-9)
            x = tl.where(seen > 2 * recently, x, 0)
            changed, evidence, squares, products, known = _watched(
                evidence, previous, squares, products, known, x, seen > 2 * recently, turn, recently, slack, alarm, past
            )
            changes += tl.where(changed, 1, 0)
            recent += (z - recent) / tl.minimum(seen, recently)
            total = tl.where(changed, seen * recent, total)
            keep = tl.where(changed, recently / seen, 1)
            keep *= tl.minimum(memory / tl.maximum(keep * turns, 1e-9), 1)
            total, counts, tops, last = keep * total, keep * counts, keep * tops, p
            seen, power, turns, rise, span = keep * seen, keep * power, keep * turns, keep * rise, keep * span
        tl.store(answers + i * C + c, answer, mask=here)
        tl.store(trust + i * C + c, tops / (tops + half) * (turns / (turns + grown)), mask=here)
    tl.debug_barrier()  # the places before and after may be the same
    _store(next_centre, (total, counts, tops, last, recent), C, c, here)
    _store(next_course, (seen, power, turns, rise, span, strength, changes), 1, 0, True)
    _store(next_course + 7, (evidence, x, squares, products, known), 1, 0, True)


def scan(
    logits: Tensor, lean: Tensor, images: Tensor, before: tuple[Tensor, Tensor], answers: Tensor, centre: Tensor,
    course: Tensor, trust: Tensor, doubt: float,
) -> Tensor:  # fmt: skip
    """Zero-shot logits [P, C] of which the first `images` [] are real → the same without the centre in `answers`.

    before: the centre [5, C] and its course [12]; centre, course: where to leave those after the images, which may be
    the same places. trust: where to leave `centre.trust` after each image, [P, C]. lean: of the class texts, [C].
    doubt: as for `observe`. Rows that are not real or not finite are copied. All of one type.
    """
    P, C = logits.shape
    classes = max(triton.next_power_of_2(C), 16)
    _centre[(1,)](
        logits, lean, images, *before, answers, centre, course, trust, P, C, MEMORY, FEW, MANY, OFTEN, LIFT, RECENT,
        SLACK, ALARM, PAST, HALF, GROWN, doubt, CLASSES=classes, num_warps=min(max(classes // 256, 1), 32),
    )  # fmt: skip
    return answers
