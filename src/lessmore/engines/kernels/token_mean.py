"""The token mean after each image of a chunk: `core.token_mean.updated_mean` in one launch.

Layers are independent, so there is one program per layer; images are not, so it goes through them in order. The
products of tokens and mean that the correction needs are computed on the way and stored as well.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from lessmore.core.token_mean import PAST, PRIOR, SHARE


@triton.jit
def _follow(
    tokens, features, images, step, mean, out, sums, P, D, E, stride_p, stride_l,
    share: tl.constexpr, prior: tl.constexpr, past: tl.constexpr, WIDTH: tl.constexpr, EMBED: tl.constexpr,
):  # fmt: skip
    layer, layers, d, e = tl.program_id(0), tl.num_programs(0), tl.arange(0, WIDTH), tl.arange(0, EMBED)
    wide = mean.dtype.element_ty
    here = d < D
    m = tl.load(mean + layer * D + d, mask=here, other=0)
    before, real = tl.load(step), tl.load(images)
    tl.debug_barrier()  # out may be where the mean was
    for i in range(P):
        token = tl.load(tokens + i * stride_p + layer * stride_l + d, mask=here, other=0).to(wide)
        feature = tl.load(features + i * E + e, mask=e < E, other=0).to(wide)
        # 0 · NaN and 0 · ∞ are NaN, so one value that is not finite makes the whole sum NaN.
        sound = (tl.sum(token * 0, axis=0) + tl.sum(feature * 0, axis=0) == 0) & (i < real)
        square = tl.sum(token * token, axis=0)
        unit = token / tl.maximum(tl.sqrt(square), 1e-12)
        known = tl.minimum((before + i + 1).to(wide) + prior, past)
        m = tl.where(sound, m + (share * unit - m) / known, m)
        tl.store(out + (i * layers + layer) * D + d, m, mask=here)
        place = sums + i * 3 * layers + layer
        tl.store(place, square)
        tl.store(place + layers, tl.sum(token * m, axis=0))
        tl.store(place + 2 * layers, tl.sum(m * m, axis=0))


def follow(
    tokens: Tensor, features: Tensor, images: Tensor, step: Tensor, mean: Tensor, out: Tensor, sums: Tensor
) -> Tensor:
    """Update the token mean with P images in order.

    Args:
        tokens: Summary tokens, `[P, L, D]`, strided in P and L.
        features: Features, `[P, E]`; only checked for being finite.
        images: How many of the images are real, `[]`. The others, and those with a value that is not finite, leave the
            mean as it is.
        step: Samples before the first, `[]`.
        mean: The token mean before the images, `[L, D]`.
        out: Where to leave the mean after each image, `[P, L, D]`; for one image it may be `mean` itself.
        sums: Where to leave `reservoir.own_sums` of each image with its mean, `[P, 3, L]`.

    Returns:
        `out`.
    """
    P, L, D = tokens.shape
    E = features.shape[1]
    _follow[(L,)](
        tokens, features, images, step, mean, out, sums, P, D, E, tokens.stride(0), tokens.stride(1), SHARE, PRIOR,
        PAST, WIDTH=triton.next_power_of_2(D), EMBED=triton.next_power_of_2(E), num_warps=4,
    )  # fmt: skip
    return out
