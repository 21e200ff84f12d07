"""A chunk's logits without the centre of their stream: `lessmore.centre.observe`, image after image, in one launch.

One program holds what is remembered in registers, so that a step costs a few reductions over the classes.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from lessmore.centre import FEW, MANY, MEMORY


@triton.jit
def _centre(
    logits, lean, images, centre, course, answers, next_centre, next_course, P, C, memory: tl.constexpr,
    few: tl.constexpr, many: tl.constexpr, doubt: tl.constexpr, CLASSES: tl.constexpr,
):  # fmt: skip
    c = tl.arange(0, CLASSES)
    here = c < C
    lean = tl.load(lean + c, mask=here, other=0)
    middle = tl.sum(lean, axis=0) / C
    total = tl.load(centre + c, mask=here, other=0)
    counts = tl.load(centre + C + c, mask=here, other=0)
    last = tl.load(centre + 2 * C + c, mask=here, other=0)
    seen, power, turns = tl.load(course), tl.load(course + 1), tl.load(course + 2)
    rise, span, strength = tl.load(course + 3), tl.load(course + 4), tl.load(course + 5)
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
            again = tl.where(seen > 0, 1, 0)
            turns += again * tl.sum((p - last) * (p - last), axis=0)
            rest = z - total / tl.maximum(seen, 1e-9)
            high = tl.max(tl.where(here, rest, float("-inf")), axis=0)
            low = tl.min(tl.where(here, rest, float("inf")), axis=0)
            rise += again * (high + low)
            span += again * (high - low)
            total += z
            seen += 1
            power += tl.sum(z * z, axis=0) / C
            mean = total / seen
            ratio = (power / seen) / tl.maximum(tl.sum(mean * mean, axis=0) / C, 1e-12)
            share = counts / tl.maximum(tl.sum(counts, axis=0), 1e-9)
            classes = tl.exp(-tl.sum(tl.where(share > 0, share * tl.log(tl.maximum(share, 1e-37)), 0), axis=0))
            perhaps = tl.minimum(tl.maximum((many - rise / tl.maximum(span, 1e-9)) / (many - few), 0), 1)
            lack = doubt * (1 + perhaps) * (1 - classes / C) / classes
            strength = tl.maximum(1 - ratio * (1 / (1 + turns) + lack), 0)
            lengths = tl.sqrt(tl.maximum(1 - 2 * strength * lean + strength * strength * middle, 1e-12))
            answer = (z - strength * mean) / lengths
            keep = tl.minimum(memory / tl.maximum(turns, 1e-9), 1)
            likely = tl.argmax(tl.where(here, z - (1 - perhaps) * strength * mean, float("-inf")), axis=0)
            counts = keep * (counts + tl.where(c == likely, 1, 0))
            total, seen, power, turns = keep * total, keep * seen, keep * power, keep * turns
            rise, span, last = keep * rise, keep * span, p
        tl.store(answers + i * C + c, answer, mask=here)
    tl.debug_barrier()  # the places before and after may be the same
    tl.store(next_centre + c, total, mask=here)
    tl.store(next_centre + C + c, counts, mask=here)
    tl.store(next_centre + 2 * C + c, last, mask=here)
    tl.store(next_course, seen)
    tl.store(next_course + 1, power)
    tl.store(next_course + 2, turns)
    tl.store(next_course + 3, rise)
    tl.store(next_course + 4, span)
    tl.store(next_course + 5, strength)


def scan(
    logits: Tensor, lean: Tensor, images: Tensor, before: tuple[Tensor, Tensor], answers: Tensor, centre: Tensor,
    course: Tensor, doubt: float,
) -> Tensor:  # fmt: skip
    """Zero-shot logits [P, C] of which the first `images` [] are real → the same without the centre in `answers`.

    before: the centre [3, C] and its course [6]; centre, course: where to leave those after the images, which may be
    the same places. lean: of the class texts, [C]. doubt: as for `observe`. Rows that are not real or not finite are
    copied. All of one type.
    """
    P, C = logits.shape
    classes = max(triton.next_power_of_2(C), 16)
    _centre[(1,)](
        logits, lean, images, *before, answers, centre, course, P, C, MEMORY, FEW, MANY, doubt, CLASSES=classes,
        num_warps=min(max(classes // 256, 1), 32),
    )  # fmt: skip
    return answers
