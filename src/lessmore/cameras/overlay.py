"""What became of a frame's patches, painted over the frame: merged ones share a colour, pruned ones are hatched."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from PIL import Image

from lessmore.core.condense.source import GONE, PRUNED, SourceMap
from lessmore.models.preprocess import Preprocess

Overlay = Literal["none", "tokens"]
_LINES = 360
"""Diagonals are one pixel wide for so many pixels of the square."""


def with_tokens(image: Image.Image, trace: SourceMap, preprocess: object) -> Image.Image:
    """A copy of a frame with what the last condensing block left of it, on the part that the tower saw.

    Args:
        image: The frame, RGB.
        trace: What the condensing blocks did to it.
        preprocess: The model's; one that is not ours is taken to cut out the middle square.
    """
    from lessmore.lab.report.tokens import PALETTE, TINT, cluster_colours, hatched

    fate, colours = trace.fate[0, -1].cpu().numpy(), cluster_colours(trace)[-1]
    left, top, width, height = seen_part(image.size, preprocess)
    keeps = isinstance(preprocess, Preprocess) and preprocess.mode == "keep"
    columns = _columns(len(fate), width / height if keeps else 1.0)
    rows = len(fate) // columns
    patch = (np.arange(height) * rows // height)[:, None] * columns + np.arange(width) * columns // width
    pixels = np.asarray(image).copy()
    part = pixels[top : top + height, left : left + width]
    colour, gone = colours[patch], np.isin(fate, (PRUNED, GONE))[patch]
    tint = np.asarray(PALETTE)[colour % len(PALETTE)]
    merged = colour >= 0
    part[merged] = np.rint(part[merged] * (1 - TINT) + tint[merged] * TINT)
    lines = hatched(max(width, height), max(1, max(width, height) // _LINES))
    part[gone] = lines[:height, :width][gone]
    return Image.fromarray(pixels)


def _columns(patches: int, ratio: float) -> int:
    """Patches side by side, where they are squares and fill a picture of this width over height."""
    fits = [n for n in range(1, patches + 1) if patches % n == 0]
    return min(fits, key=lambda n: abs(math.log(n * n / (patches * ratio))))


def seen_part(size: tuple[int, int], preprocess: object) -> tuple[int, int, int, int]:
    """Left, top, width and height of the part of an image that the tower sees, in the image's own pixels.

    Args:
        size: Width and height of the image.
        preprocess: The model's.
    """
    width, height = size
    if isinstance(preprocess, Preprocess) and preprocess.mode in ("squash", "keep"):
        return 0, 0, width, height
    share = 1.0
    if isinstance(preprocess, Preprocess) and preprocess.short_side is not None:
        share = preprocess.size / preprocess.short_side
    side = max(1, round(min(size) * share))
    return (width - side) // 2, (height - side) // 2, side, side
