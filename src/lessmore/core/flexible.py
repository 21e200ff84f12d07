"""Images of any shape (NaFlex): each keeps its aspect ratio, and its grid of patches has positions of its own.

A batch holds images of one grid, so there is nothing to pad and no key to mask, and every count of the schedule is that
of the image itself. A host that pads a mixed batch and masks the padding computes the same numbers.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lessmore.errors import ConfigError


def grid_positions(positions: Tensor, rows: int, columns: int) -> Tensor:
    """Learned positions of a square grid, interpolated bilinearly and with antialiasing, `[rows · columns, D]`.

    Args:
        positions: Those of the square, row by row, `[side², D]`.
        rows: Patches from top to bottom.
        columns: Patches from left to right.
    """
    side = round(len(positions) ** 0.5)
    if rows == columns == side:
        return positions
    square = positions.to(torch.promote_types(positions.dtype, torch.float32)).T.unflatten(1, (side, side))
    resized = F.interpolate(square.unsqueeze(0), (rows, columns), mode="bilinear", align_corners=False, antialias=True)
    return resized[0].flatten(1).T.to(positions.dtype)


def require_one_shape(flexible: bool, who: str, instead: str) -> None:
    """Refuse a tower whose images differ in shape, on behalf of what needs them alike.

    Args:
        flexible: Whether the tower takes images of any shape.
        who: What needs one shape, such as `engine 'chunk'`.
        instead: The remedy.

    Raises:
        ConfigError: The tower is flexible.
    """
    if flexible:
        raise ConfigError(
            f"{who} needs images of one shape, and this model gives every image its own (NaFlex); {instead}"
        )
