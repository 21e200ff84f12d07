"""Whatever a caller calls an image → the pixels the tower takes."""

from __future__ import annotations

import torch
from torch import Tensor

from lessmore.data.images import ImageSource, load_image
from lessmore.errors import ImageError
from lessmore.vlm import VLM

Image = ImageSource | Tensor
"""A path, bytes, PIL image or numpy array, or a tensor: uint8 [3, H, W] as an image, float as preprocessed pixels."""


def to_pixels(image: Image, vlm: VLM) -> Tensor:
    """Preprocessed pixels [1, 3, H, W] in the tower's precision and on its device; checked, so that it may be used."""
    if isinstance(image, Tensor):
        pixels = _from_tensor(image, vlm)
    else:
        pixels = vlm.preprocess(load_image(image))
    size = vlm.vision.shape.image_size
    if tuple(pixels.shape) != (3, size, size) or not pixels.is_floating_point():
        raise ImageError(
            f"the model takes float pixels [3, {size}, {size}], not {_describe(pixels)}; "
            "give a tensor of that shape, a uint8 one [3, H, W], or check your preprocess function"
        )
    if not pixels.isfinite().all():
        raise ImageError("the pixels hold NaN or infinity; check the step that made them")
    return pixels.unsqueeze(0).to(vlm.device, vlm.dtype)


def _from_tensor(image: Tensor, vlm: VLM) -> Tensor:
    """Pixels [3, H, W] from a tensor [3, H, W] or [1, 3, H, W]: uint8 is preprocessed, float is taken as it is."""
    if image.ndim == 4 and len(image) == 1:
        image = image[0]
    if image.dtype == torch.uint8 and image.ndim == 3 and len(image) == 3:
        return vlm.preprocess(load_image(image.permute(1, 2, 0).cpu().numpy()))
    return image


def _describe(pixels: Tensor) -> str:
    return f"{str(pixels.dtype).removeprefix('torch.')} {list(pixels.shape)}"
