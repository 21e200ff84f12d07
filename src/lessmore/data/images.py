"""Safe decoding in one place: any usual image → an upright Pillow RGB image, any unusable one → `ImageError`.

Transparency is dropped, not blended: that is what the processors of CLIP and SigLIP do, so features agree with theirs.
Of an animation the first frame counts. Pillow's global settings are left alone.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from lessmore.errors import ImageError

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".pbm")
MAX_PIXELS = 50_000_000

ImageSource = str | os.PathLike[str] | bytes | bytearray | Image.Image | NDArray[Any]


def load_image(source: ImageSource) -> Image.Image:
    """Path, encoded bytes, Pillow image, or array (uint8, uint16 or float in 0…1; HxW, HxWx1, HxWx3, HxWx4) → RGB."""
    if isinstance(source, np.ndarray):
        return _from_array(source)
    if isinstance(source, Image.Image):
        return _upright_rgb(source, "the image")
    if isinstance(source, (bytes, bytearray)):
        return _decode(io.BytesIO(source), "the image bytes")
    if isinstance(source, (str, os.PathLike)):
        return _from_path(os.fspath(source))
    raise ImageError(f"cannot read an image from {type(source).__name__}; give a path, bytes, Pillow image or array")


def _from_path(name: str) -> Image.Image:
    if name.startswith(("http://", "https://")):
        raise ImageError(f"{name} is an address; download the file and give its path")
    path = Path(name)
    if path.is_dir():
        raise ImageError(f"{name} is a folder; give the path of one image file")
    if not path.is_file():
        raise ImageError(f"there is no file {name}; check the path")
    try:
        with path.open("rb") as file:
            return _decode(file, name)
    except OSError as error:
        raise ImageError(f"{name} cannot be opened ({error.strerror}); check its permissions") from error


def _decode(file: IO[bytes], name: str) -> Image.Image:
    try:
        image = Image.open(file, formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(name) from error
    # Decoders let out whatever their format's library raises; for the caller it is all one unreadable file.
    except Exception as error:
        raise ImageError(f"{name} is not a readable image; convert it to one of {', '.join(FORMATS)}") from error
    with image:
        return _upright_rgb(image, name)


def _upright_rgb(image: Image.Image, name: str) -> Image.Image:
    _check_size(image.width, image.height, name)
    try:
        image.load()
        image = _upright(image)
        if image.mode in ("I", "F") or image.mode.startswith("I;16"):
            return _from_array(_deep_pixels(np.asarray(image)))
        return (image.convert("LA") if image.mode == "La" else image).convert("RGB")
    except ImageError:
        raise
    except Exception as error:
        raise ImageError(f"{name} is damaged or cut short ({error}); get a complete copy of it") from error


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    # Broken EXIF data says nothing about the pixels, so they are used as stored.
    except Exception:
        return image


def _check_size(width: int, height: int, name: str) -> None:
    if width < 1 or height < 1:
        raise ImageError(f"{name} has no pixels; give one of at least 1 x 1")
    if width * height > MAX_PIXELS:
        raise _too_large(name)


def _too_large(name: str) -> ImageError:
    return ImageError(f"{name} has more than {MAX_PIXELS // 10**6} million pixels; make it smaller first")


def _deep_pixels(pixels: NDArray[Any]) -> NDArray[Any]:
    """Pixels of Pillow's deep modes as an array `_from_array` knows: 8 or 16 bits by their largest value."""
    if np.issubdtype(pixels.dtype, np.floating):
        in_bytes = pixels.max() > 1 and pixels.min() >= 0 and pixels.max() <= 255
        return pixels / 255 if in_bytes else pixels
    if pixels.dtype.kind == "u" or (pixels.min() >= 0 and 255 < pixels.max() <= 65535):
        return pixels.astype(np.uint16)
    if pixels.min() >= 0 and pixels.max() <= 255:
        return pixels.astype(np.uint8)
    raise ImageError("the image's integers do not fit 16 bits; rescale them to 0…65535")


def _from_array(array: NDArray[Any]) -> Image.Image:
    channels = 1 if array.ndim == 2 else array.shape[-1] if array.ndim == 3 else 0
    if channels not in (1, 3, 4):
        raise ImageError(f"the array has the shape {array.shape}; give height x width, or with 1, 3 or 4 channels last")
    _check_size(array.shape[1], array.shape[0], "the array")
    pixels = _to_bytes(array).reshape(*array.shape[:2], channels)
    return Image.fromarray(np.ascontiguousarray(np.repeat(pixels, 3, axis=2) if channels == 1 else pixels[..., :3]))


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
