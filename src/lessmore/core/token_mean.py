"""The middle of a stream's tokens: what all its images have in common, layer by layer, taken off before their cosines.

Under a shift the tokens of a whole domain are displaced together, and the cosines between them are all alike. With the
middle m taken off tokens x and entries y, Σ_l P_l cos(x^l, y^l) becomes

    (x − m)·(y − m) / (|x − m| |y − m|),    a·b = Σ_l P_l a^l·b^l, all x^l and y^l of length 1,

which for m = 0 is the paper's. m is a running mean of the x. It starts from nothing, as if 20 images had shown nothing
in common, remembers some 300 images, and never becomes a whole image, not even that of a stream which repeats it.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

PRIOR, PAST, SHARE = 20.0, 300.0, 0.95
"""Images that count as nothing at the start; images that are remembered; as much of an image as goes into the mean."""


def moved(middle: Tensor, tokens: Tensor, step: Tensor) -> Tensor:
    """The middle [L, D] after a sample's tokens [L, D], step [] samples having come before it."""
    unit = F.normalize(tokens.to(middle.dtype), dim=-1)
    return middle + (SHARE * unit - middle) / (step + 1 + PRIOR).clamp_max(PAST)


def cosine(product: Tensor, ours: Tensor, theirs: Tensor, square: Tensor) -> Tensor:
    """From x·y, x·m, y·m and m·m, of whatever shapes go together, x and y of length 1, what is left without m."""
    lengths = (1 - 2 * ours + square) * (1 - 2 * theirs + square)
    return (product - ours - theirs + square) / lengths.sqrt()
