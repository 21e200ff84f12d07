"""One frame on its way to its answer: decoded, and turned into RGB only if somebody looks at it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

GLANCE = (64, 36)
"""Width and height of a glance."""

Glance = NDArray[np.uint8]
"""A frame in grey and small, `[36, 64]`: enough to see whether something moved."""


@dataclass(eq=False)
class Frame:
    """A frame of a source. Nothing is converted before `image` or `glance` is asked for."""

    number: int
    """Its place in the source, from 1."""
    make: Callable[[], Image.Image]
    """Makes the RGB image; may raise `ImageError`."""
    quick: Callable[[], Glance] | None = None
    """Makes the glance without the image, where that is faster."""
    seconds: float | None = None
    """Its time in the video; None where the source has no time of its own."""
    pts: int | None = None
    """The same in the video's own unit."""
    file: str | None = None
    """Its path below the folder."""
    passed: tuple[str, ...] = ()
    """Images of the folder that were left out since the one before it."""
    corrupt: bool = False
    """Whether the decoder calls it damaged."""
    arrived: float = field(default_factory=time.monotonic)
    """When it was decoded. No clock that can be set has a part in this."""
    place: Any = None
    """Where the source stands after it, for whoever continues."""
    scene: int = 0
    """The static scene that it belongs to."""

    @cached_property
    def image(self) -> Image.Image:
        """The frame, upright and in RGB.

        Raises:
            ImageError: It cannot be read.
        """
        return self.make()

    @cached_property
    def glance(self) -> Glance:
        """The frame as a glance.

        Raises:
            ImageError: It cannot be read.
        """
        if self.quick is not None:
            return self.quick()
        return np.asarray(self.image.convert("L").resize(GLANCE, Image.Resampling.BOX))
