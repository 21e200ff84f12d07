"""The mean token of a stream: what all its images have in common, layer by layer, removed before their cosines.

A domain shift displaces the tokens of a whole domain together, and all cosines between them become alike. With the mean
m removed from tokens x and entries y, Σ_l P_l cos(x^l, y^l) becomes

    (x − m)·(y − m) / (|x − m| |y − m|),    a·b = Σ_l P_l a^l·b^l, all x^l and y^l of length 1,

which is the paper's formula for m = 0. m is a running mean of the x. It starts as if 20 images had shown nothing in
common, remembers about 300 images, and never becomes a whole image, even in a stream that repeats one image.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

PRIOR, PAST, SHARE = 20.0, 300.0, 0.95
"""Images that count as nothing at the start; images that are remembered; share of an image that enters the mean."""


def updated_mean(mean: Tensor, tokens: Tensor, step: Tensor) -> Tensor:
    """The token mean after one more sample.

    Args:
        mean: Token mean before the sample, `[L, D]`.
        tokens: Summary tokens of the sample, `[L, D]`.
        step: Number of samples before this one, `[]`.

    Returns:
        `[L, D]`, in the precision of `mean`.
    """
    # Less than the whole image enters, so that a stream of one repeated image keeps a residual with a direction.
    unit = F.normalize(tokens.to(mean.dtype), dim=-1)
    return mean + (SHARE * unit - mean) / (step + 1 + PRIOR).clamp_max(PAST)


def debiased_cosine(product: Tensor, ours: Tensor, theirs: Tensor, square: Tensor) -> Tensor:
    """The cosine of x − m and y − m.

    Args:
        product: x·y.
        ours: x·m.
        theirs: y·m.
        square: m·m. All four broadcast; x and y have length 1.
    """
    lengths = (1 - 2 * ours + square) * (1 - 2 * theirs + square)
    return (product - ours - theirs + square) / lengths.sqrt()
