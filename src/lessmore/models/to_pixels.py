"""From an image in any supported form to the pixels the tower takes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

import PIL.Image
import torch
from torch import Tensor

from lessmore.data.find import one_file
from lessmore.data.images import ImageSource, load_image
from lessmore.errors import ImageError
from lessmore.models.vlm import VLM

Image = ImageSource | Tensor
"""A path, bytes, PIL image or numpy array, or a tensor: uint8 [3, H, W] as an image, float as preprocessed pixels."""

Images = Iterable[Image] | ImageSource
"""Several images, or one source that stands for some, such as a folder."""

MakeViews = Callable[[PIL.Image.Image | Tensor, int], Tensor]
"""An RGB image or preprocessed pixels [3, S, S], and a seed → views [V, 3, S, S]."""


def to_pixels(image: Image, vlm: VLM, bgr: bool = False) -> Tensor:
    """Preprocessed pixels `[1, 3, H, W]` in the tower's dtype and on its device.

    Args:
        image: The image in any supported form; a float tensor counts as preprocessed.
        vlm: The model whose preprocessing is used.
        bgr: Whether the colours of arrays and uint8 tensors come as blue, green, red.

    Raises:
        ImageError: The image cannot be read, or its shape, dtype or values do not fit the model.
    """
    seen = _decoded(image, bgr)
    return _checked(seen if isinstance(seen, Tensor) else vlm.preprocess(seen), vlm)


def to_views(image: Image, vlm: VLM, views: MakeViews, seed: int, bgr: bool = False) -> Tensor:
    """Views `[V, 3, H, W]` of an image, for methods that look at several.

    Args:
        image: The image in any supported form.
        vlm: The model that will see the views.
        views: Makes the views: from the RGB image, or from the pixels if `image` is a float tensor.
        seed: Seed of random views.
        bgr: As for `to_pixels`.

    Raises:
        ImageError: The image cannot be read, or its shape, dtype or values do not fit the model.
    """
    seen = _decoded(image, bgr)
    plain = _checked(seen if isinstance(seen, Tensor) else vlm.preprocess(seen), vlm)
    return views(plain[0] if isinstance(seen, Tensor) else seen, seed)


def _decoded(image: Image, bgr: bool) -> PIL.Image.Image | Tensor:
    """An RGB image, or the pixels [3, H, W] of a tensor [3, H, W] or [1, 3, H, W] that is not uint8."""
    if isinstance(image, (str, os.PathLike)):
        return load_image(one_file(os.fspath(image)))
    if not isinstance(image, Tensor):
        return load_image(image, bgr)
    if image.is_meta or image.layout != torch.strided or image.is_quantized:
        raise ImageError("the tensor is sparse, quantised or without values (device 'meta'); give a plain one")
    if image.ndim == 4 and len(image) == 1:
        image = image[0]
    if image.dtype == torch.uint8 and image.ndim == 3 and len(image) == 3:
        return load_image(image.permute(1, 2, 0).cpu().numpy(), bgr)
    return image


def _checked(pixels: Tensor, vlm: VLM) -> Tensor:
    shape = vlm.vision.shape
    fits = pixels.ndim == 3 and len(pixels) == 3 and shape.takes(*pixels.shape[1:])
    if not fits or not pixels.is_floating_point():
        raise ImageError(
            f"the model takes float pixels [3, {shape.size_text}], not {_describe(pixels)}; "
            "give a tensor of that shape, a uint8 one [3, H, W], or check your preprocess function"
        )
    if not pixels.isfinite().all():
        raise ImageError("the pixels hold NaN or infinity; check the step that made them")
    return pixels.unsqueeze(0).to(vlm.device, vlm.dtype)


def _describe(pixels: Tensor) -> str:
    return f"{str(pixels.dtype).removeprefix('torch.')} {list(pixels.shape)}"
