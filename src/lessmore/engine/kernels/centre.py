"""A chunk's logits without the centre of their stream: `lessmore.centre.observe`, image after image, in one launch.

One program holds what is remembered in registers, so that a step costs a few reductions over the classes.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from lessmore.centre import BETWEEN, HABIT, MEMORY


@triton.jit
def _less(z, mean, w, lean, middle):
    """Logits without their centre, over the lengths of the texts without theirs; middle: the mean of `lean`."""
    return (z - w * mean) / tl.sqrt(tl.maximum(1 - 2 * w * lean + w * w * middle, 1e-12))


@triton.jit
def _best(answer, c, C):
    """The class with the largest answer, the first among equals."""
    return tl.argmax(tl.where(c < C, answer, float("-inf")), axis=0)


@triton.jit
def _centre(
    logits, lean, images, centre, course, answers, next_centre, next_course, P, C, memory, habit, between,
    CLASSES: tl.constexpr,
):  # fmt: skip
    c = tl.arange(0, CLASSES)
    here = c < C
    lean = tl.load(lean + c, mask=here, other=0)
    middle = tl.sum(lean, axis=0) / C
    total = tl.load(centre + c, mask=here, other=0)
    counts = tl.load(centre + C + c, mask=here, other=0)
    last = tl.load(centre + 2 * C + c, mask=here, other=0)
    weight, seen, power = tl.load(course), tl.load(course + 1), tl.load(course + 2)
    turns, strength = tl.load(course + 3), tl.load(course + 4)
    n = tl.load(images)
    following = tl.load(logits + c, mask=here, other=0)
    for i in range(P):
        answer = following
        # The next row is on its way while this one is worked on.
        following = tl.load(logits + tl.minimum(i + 1, P - 1) * C + c, mask=here, other=0)
        # Zero times a value that is not finite is not a number, and stays so in a sum.
        if (i < n) & (tl.sum(answer * 0, axis=0) == 0):
            p = tl.where(here, tl.exp(answer - tl.max(tl.where(here, answer, float("-inf")), axis=0)), 0)
            p = p / tl.sum(p, axis=0)
            z = tl.where(here, answer - tl.sum(answer, axis=0) / C, 0)
            answered = tl.sum(counts, axis=0)
            share = counts / tl.maximum(answered, 1)
            classes = tl.exp(-tl.sum(tl.where(share > 0, share * tl.log(tl.maximum(share, 1e-37)), 0), axis=0))
            likely = _best(_less(z, total / tl.maximum(weight, 1e-9), strength, lean, middle), c, C)
            known = tl.sum(tl.where(c == likely, counts, 0), axis=0)
            a = tl.sqrt((answered / classes + habit) / (known + habit))
            total += a * z
            weight += a
            seen += 1
            power += tl.sum(z * z, axis=0) / C
            turns += tl.where(seen > 1, tl.sum((p - last) * (p - last), axis=0), 0)
            mean = total / weight
            ratio = (power / seen) / tl.maximum(tl.sum(mean * mean, axis=0) / C, 1e-12)
            strength = tl.maximum(1 - ratio * (1 / (1 + turns) + between * (1 - classes / C) / classes), 0)
            answer = _less(z, mean, strength, lean, middle)
            keep = tl.minimum(memory / tl.maximum(turns, 1e-9), 1)
            counts = keep * (counts + tl.where(c == _best(answer, c, C), 1, 0))
            total, weight, seen = keep * total, keep * weight, keep * seen
            power, turns, last = keep * power, keep * turns, p
        tl.store(answers + i * C + c, answer, mask=here)
    tl.debug_barrier()  # the places before and after may be the same
    tl.store(next_centre + c, total, mask=here)
    tl.store(next_centre + C + c, counts, mask=here)
    tl.store(next_centre + 2 * C + c, last, mask=here)
    tl.store(next_course, weight)
    tl.store(next_course + 1, seen)
    tl.store(next_course + 2, power)
    tl.store(next_course + 3, turns)
    tl.store(next_course + 4, strength)


def scan(
    logits: Tensor, lean: Tensor, images: Tensor, before: tuple[Tensor, Tensor], answers: Tensor, centre: Tensor,
    course: Tensor,
) -> Tensor:  # fmt: skip
    """Zero-shot logits [P, C] of which the first `images` [] are real → the same without the centre in `answers`.

    before: the centre [3, C] and its course [5]; centre, course: where to leave those after the images, which may be
    the same places. lean: of the class texts, [C]. Rows that are not real or not finite are copied. All of one type.
    """
    P, C = logits.shape
    classes = max(triton.next_power_of_2(C), 16)
    _centre[(1,)](
        logits, lean, images, *before, answers, centre, course, P, C, MEMORY, HABIT, BETWEEN, CLASSES=classes,
        num_warps=min(max(classes // 256, 1), 32),
    )  # fmt: skip
    return answers
