"""The images that int8 is calibrated on: their activations say which range eight bits have to cover."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from os import PathLike

import torch
from torch import Tensor

from lessmore.data.find import find_images
from lessmore.errors import ConfigError, ImageError
from lessmore.models.to_pixels import Image, to_pixels
from lessmore.models.vlm import VLM

IMAGES = 64
"""Images to calibrate on; more are not looked at."""
REMEDY = "pass calibrate= a folder of images like those of the stream, or a list such as its first 64"


Calibration = str | PathLike[str] | Iterable[Image] | None
"""What `adapt(calibrate=...)` takes: a folder, or images."""


def calibration_for(precision: str | None, images: Calibration, vlm: VLM) -> Tensor | None:
    """What a precision is calibrated on, `[N, 3, H, W]`; None where it needs nothing, or nothing was given.

    Args:
        precision: Its name.
        images: A folder, or images.
        vlm: The model.
    """
    return None if precision != "int8" or images is None else calibration_pixels(images, vlm)


def calibration_pixels(images: str | PathLike[str] | Iterable[Image], vlm: VLM) -> Tensor:
    """The first readable images, preprocessed, `[N, 3, H, W]`; N is at most `IMAGES`.

    Args:
        images: A folder, or images as an adapter takes them.
        vlm: The model, which says how images are preprocessed.

    Raises:
        ConfigError: There is no folder, or no image can be read.
    """
    listed = find_images([str(images)]) if isinstance(images, (str, PathLike)) else images
    found = list(islice((pixels for image in listed if (pixels := _readable(image, vlm)) is not None), IMAGES))
    if not found:
        raise ConfigError(f"none of the images to calibrate on can be read; {REMEDY}")
    return torch.cat(found)


def _readable(image: Image, vlm: VLM) -> Tensor | None:
    try:
        return to_pixels(image, vlm)
    except ImageError:
        return None
