"""Safe decoding in one place: any usual image → an upright Pillow RGB image, any unusable one → `ImageError`.

Transparency is dropped, not blended: that is what the processors of CLIP and SigLIP do, so features agree with theirs.
Of an animation the first frame counts. Pillow's global settings are left alone. Whatever the input, decoding takes no
more than `MAX_MEMORY` besides what the caller holds: what would take more is refused before a decoder runs.
"""

from __future__ import annotations

import io
import math
import os
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from lessmore.data.formats import FORMATS
from lessmore.data.image_files import check_bytes, read_image_file
from lessmore.data.screen import Demand, check_tags, demand, screen, webp_demand, webp_size
from lessmore.errors import ImageError, ImageSizeError

MAX_PIXELS = 50_000_000
MAX_MEMORY = 290 * 10**6
"""Estimated bytes that decoding may take at its peak."""
MAX_SLOW = 2**21
"""Bytes in the formats that Pillow decodes in Python: text and odd depths of PPM, and run-length BMP."""

ImageSource = str | os.PathLike[str] | bytes | bytearray | Image.Image | NDArray[Any]

_SLOW = ("ppm", "ppm_plain", "bmp_rle")
_STORED = {"1": 1, "L": 1, "P": 1}
_ORIENTATION = 0x0112
_STRIP = 256
"""Rows that are converted at a time."""


def load_image(source: ImageSource, bgr: bool = False) -> Image.Image:
    """An upright RGB image.

    Args:
        source: A path, encoded bytes, a Pillow image, or an array: uint8, uint16 (0…65535) or float (0…1) of shape
            `[H, W]`, `[H, W, 1]`, `[H, W, 3]` (RGB) or `[H, W, 4]`.
        bgr: Whether the colours of an array come as blue, green, red, as OpenCV has them.

    Returns:
        A Pillow image of mode RGB that shares nothing with `source`.

    Raises:
        ImageError: It cannot be read, or would take too much memory; the message names the remedy.
    """
    if isinstance(source, np.ndarray):
        return from_array(_reversed(source) if bgr else source)
    if isinstance(source, Image.Image):
        return _upright_rgb(_own_copy(source), "the image", Demand())
    if isinstance(source, (bytes, bytearray)):
        check_bytes(len(source), "the image")
        return decode_image(bytes(source), "the image bytes")
    if isinstance(source, (str, os.PathLike)):
        name = os.fspath(source)
        return decode_image(read_image_file(name), name)
    raise ImageError(f"cannot read an image from {type(source).__name__}; give a path, bytes, Pillow image or array")


def decode_image(data: bytes, name: str) -> Image.Image:
    """An upright RGB image of encoded bytes, no more of them than an image file may have.

    Args:
        data: The encoded image.
        name: What errors call it.

    Raises:
        ImageError: It cannot be read, or would take too much memory.
    """
    data = screen(data, name)
    claimed = webp_size(data)
    if claimed is not None:  # Pillow makes the canvas of a WebP when it opens it
        per_pixel, fixed = webp_demand(data)
        _check_peak(math.prod(claimed) * (4 + per_pixel) + fixed, name)
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(name) from error
    # Decoders pass on whatever their library raises; for the caller the file is unreadable in any case.
    except Exception as error:
        raise ImageError(f"{name} is not a readable image; convert it to one of {', '.join(FORMATS)}") from error
    with image:
        if len(data) > MAX_SLOW and any(tile[0] in _SLOW for tile in getattr(image, "tile", ())):
            raise ImageError(f"{name} is a large image in a text or run-length form; convert it to PNG")
        return _upright_rgb(image, name, demand(data, image))


def _own_copy(image: Image.Image) -> Image.Image:
    """A copy that may be changed; one that is still to be decoded is checked before."""
    check_size(image.width, image.height, "the image")
    try:
        return image.copy()
    except Exception as error:
        raise ImageError(f"the image is damaged or cut short ({error}); get a complete copy of it") from error


def _upright_rgb(image: Image.Image, name: str, needed: Demand) -> Image.Image:
    """The image turned and converted, in place where that saves memory."""
    check_size(image.width, image.height, name)
    _check_memory(image, name, needed, _orientation(image, loaded=False))
    try:
        image.load()
        orientation = _orientation(image, loaded=True)
        _check_memory(image, name, Demand(fixed=needed.fixed), orientation)
        if orientation != 1:
            _turn(image)
        if _is_deep(image):
            return from_array(_deep_pixels(image))
        image = image.convert("LA") if image.mode == "La" else image
        return image if image.mode == "RGB" else image.convert("RGB")
    except ImageError:
        raise
    except Exception as error:
        raise ImageError(f"{name} is damaged or cut short ({error}); get a complete copy of it") from error


def _check_memory(image: Image.Image, name: str, needed: Demand, orientation: int) -> None:
    """Refuse what would take too much: the picture, its decoder's own, and one copy to turn or convert it."""
    stored = 2 if image.mode.startswith("I;16") else _STORED.get(image.mode, 4)
    turned = stored if orientation == 1 else 2 * stored
    converted = stored if image.mode == "RGB" else stored + (5 if _is_deep(image) else 4)
    _check_peak(image.width * image.height * max(stored + needed.per_pixel, turned, converted) + needed.fixed, name)


def _check_peak(peak: float, name: str) -> None:
    if peak > MAX_MEMORY:
        raise ImageSizeError(f"{name} would take {peak / 1e6:,.0f} MB to decode; make it smaller first")


def _is_deep(image: Image.Image) -> bool:
    return image.mode in ("I", "F") or image.mode.startswith("I;16")


def _orientation(image: Image.Image, loaded: bool) -> int:
    """EXIF's orientation where it is known yet; broken EXIF data say nothing about the pixels."""
    exif = image.info.get("exif", b"")
    unknown_yet = image.format == "PNG" and not exif and not loaded  # asking Pillow would decode the image
    if unknown_yet or "Raw profile type exif" in image.info:
        return 1
    try:
        check_tags(exif.removeprefix(b"Exif\0\0"))
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:
        return 1


def _turn(image: Image.Image) -> None:
    with suppress(Exception):  # broken EXIF data
        ImageOps.exif_transpose(image, in_place=True)


def check_size(width: int, height: int, name: str) -> None:
    """Refuse an image without pixels or with too many.

    Args:
        width: In pixels.
        height: In pixels.
        name: What to call it in the error.

    Raises:
        ImageError: `width · height` is 0 or more than `MAX_PIXELS`.
    """
    if width < 1 or height < 1:
        raise ImageError(f"{name} has no pixels; give one of at least 1 x 1")
    if width * height > MAX_PIXELS:
        raise _too_large(name)


def _too_large(name: str) -> ImageSizeError:
    return ImageSizeError(f"{name} has more than {MAX_PIXELS // 10**6} million pixels; make it smaller first")


def _deep_pixels(image: Image.Image) -> NDArray[Any]:
    """Pixels of Pillow's deep modes as bytes; converted in strips to save memory."""
    boxes = [(0, y, image.width, min(y + _STRIP, image.height)) for y in range(0, image.height, _STRIP)]
    ranges = [(strip.min(), strip.max()) for strip in (np.asarray(image.crop(box)) for box in boxes)]
    low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
    return np.concatenate([_to_bytes(_scaled(np.asarray(image.crop(box)), low, high)) for box in boxes])


def _scaled(pixels: NDArray[Any], low: float, high: float) -> NDArray[Any]:
    """A strip by the range of the whole image: 8, 12 or 16 bits by the largest value, or floats in 0…1 or 0…255."""
    if np.issubdtype(pixels.dtype, np.floating):
        in_bytes = high > 1 and low >= 0 and high <= 255
        return pixels / np.float32(255) if in_bytes else pixels
    if pixels.dtype.kind != "u" and low >= 0 and high <= 255:
        return pixels.astype(np.uint8)
    if low < 0 or high > 65535:
        raise ImageError("the image's integers do not fit 16 bits; rescale them to 0…65535")
    if 255 < high < 4096:  # 12 bits, as cameras and microscopes write them into 16
        return (pixels.astype(np.uint32) * 65535 // 4095).astype(np.uint16)
    return pixels.astype(np.uint16)


def from_array(array: NDArray[Any]) -> Image.Image:
    """An RGB image of an array; see `load_image`."""
    channels = 1 if array.ndim == 2 else array.shape[-1] if array.ndim == 3 else 0
    if channels not in (1, 3, 4):
        raise ImageError(f"the array has the shape {array.shape}; give height x width, or with 1, 3 or 4 channels last")
    check_size(array.shape[1], array.shape[0], "the array")
    coloured = array.reshape(*array.shape[:2], channels)[..., :3]
    if array.dtype != np.uint8:
        rows = range(0, len(coloured), _STRIP)
        coloured = np.concatenate([_to_bytes(coloured[y : y + _STRIP]) for y in rows])
    if channels == 1:
        return Image.fromarray(np.ascontiguousarray(coloured[..., 0])).convert("RGB")
    return Image.fromarray(np.ascontiguousarray(coloured))


def _reversed(array: NDArray[Any]) -> NDArray[Any]:
    """The first three channels the other way round, where there are as many."""
    coloured = array.ndim == 3 and array.shape[-1] in (3, 4)
    return array[..., [2, 1, 0, *range(3, array.shape[-1])]] if coloured else array


def _to_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    if array.dtype == np.uint8:
        return array
    if array.dtype == np.uint16:
        return ((array.astype(np.uint32) + 128) // 257).astype(np.uint8)
    if not np.issubdtype(array.dtype, np.floating):
        raise ImageError(f"the array has the type {array.dtype}; convert it to uint8, uint16 or float in 0…1")
    if not (array.min() >= 0 and array.max() <= 1):
        raise ImageError("the float array leaves 0…1 or holds NaN; rescale it")
    return np.asarray(np.rint(array * 255), dtype=np.uint8)
