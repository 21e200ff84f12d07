"""A corruption: every severity takes a tenth of the light."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lessmore.data.corrupt import register_corruption


@register_corruption("toy-shade")
def shade(pixels: NDArray[np.uint8], severity: int, seed: int) -> NDArray[np.uint8]:
    """Darker pixels [H, W, 3]; nothing is random."""
    return (pixels * (1 - severity / 10)).astype(np.uint8)
