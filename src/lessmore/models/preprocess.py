"""Image preprocessing with Pillow and numpy alone, equal pixel for pixel to what CLIP and SigLIP were trained with.

Two host libraries describe it: open_clip (torchvision transforms on Pillow images) and transformers (image processors
in their Pillow form). They agree on everything but the rounding of an odd centre crop, hence `centre`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from lessmore.errors import ConfigError, ImageError

Mode = Literal["crop", "squash", "keep"]
Interpolation = Literal["bicubic", "bilinear", "nearest", "lanczos"]
Centre = Literal["round", "floor"]
Triple = tuple[float, float, float]

CLIP_MEAN: Triple = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD: Triple = (0.26862954, 0.26130258, 0.27577711)

_FILTERS = {
    "bicubic": Image.Resampling.BICUBIC,
    "bilinear": Image.Resampling.BILINEAR,
    "nearest": Image.Resampling.NEAREST,
    "lanczos": Image.Resampling.LANCZOS,
}
_PATCHES, _PATCH = 256, 16
"""What SigLIP 2 NaFlex was published with."""
# A strip of 1 x 10,000 pixels would be blown up to gigabytes before its centre is cut out.
_MAX_RESIZED_PIXELS = 50_000_000


@dataclass(frozen=True)
class Preprocess:
    """A Pillow RGB image → float32 tensor [3, size, size], resized, cropped and normalised; with `keep` [3, H, W]."""

    size: int
    """Side of the square; with `keep`, of a square that has as many patches as an image may have."""
    mode: Mode = "crop"
    """`crop`: resize the short side, cut out the centre; `squash`: resize to the square, whatever the shape; `keep`:
    resize to the largest grid of whole patches in the image's own shape."""
    interpolation: Interpolation = "bicubic"
    mean: Triple = CLIP_MEAN
    std: Triple = CLIP_STD
    short_side: int | None = None
    """With `crop`: length of the short side before the cut, `size` unless given."""
    centre: Centre = "round"
    """With `crop`: half pixels of the offset go to the nearest even number (torchvision) or down (transformers)."""
    patch: int | None = None
    """With `keep`: side of a patch; the grid has at most (size / patch)² of them, unless `patches` says otherwise."""
    patches: int | None = None
    """With `keep`: most patches of an image."""

    def __post_init__(self) -> None:
        """Validate once; every later use may trust the values."""
        if self.size < 1 or (self.short_side is not None and self.short_side < self.size):
            raise ConfigError(f"short side {self.short_side} must be at least the crop size {self.size}, itself >= 1")
        if self.mode == "keep" and ((self.patch or 0) < 1 or self.most_patches < 1):
            raise ConfigError(
                f"mode 'keep' needs a patch of at least 1 and at most the size {self.size}; give patch=16"
            )
        if self.mode not in ("crop", "squash", "keep") or self.interpolation not in _FILTERS:
            raise ConfigError(
                f"mode {self.mode!r} with interpolation {self.interpolation!r} is not known; "
                f"use crop, squash or keep with one of {', '.join(_FILTERS)}"
            )
        if len(self.mean) != 3 or len(self.std) != 3 or min(self.std) <= 0:
            raise ConfigError("mean and std need three numbers each, those of std above 0")

    @property
    def most_patches(self) -> int:
        """With `keep`: how many patches an image has at most."""
        return self.patches if self.patches is not None else (self.size // (self.patch or self.size)) ** 2

    def __call__(self, image: Image.Image) -> Tensor:
        """Pillow image → float32 [3, size, size], or [3, H, W] with `keep`."""
        pixels = np.asarray(self.resize(image), dtype=np.float32) / np.float32(255)
        normal = (pixels - np.array(self.mean, np.float32)) / np.array(self.std, np.float32)
        return torch.from_numpy(np.ascontiguousarray(normal.transpose(2, 0, 1)))

    def resize(self, image: Image.Image) -> NDArray[np.uint8]:
        """Pillow image → uint8 [size, size, 3], or [H, W, 3] with `keep`, before normalisation."""
        image = image.convert("RGB")
        if self.mode == "keep":
            side = self.patch or self.size
            rows, columns = largest_grid(image.height, image.width, side, self.most_patches)
            return np.asarray(image.resize((columns * side, rows * side), _FILTERS[self.interpolation]))
        if self.mode == "squash":
            return np.asarray(image.resize((self.size, self.size), _FILTERS[self.interpolation]))
        width, height = self._resized(*image.size)
        if width * height > _MAX_RESIZED_PIXELS:
            raise ImageError(f"an image of {image.width} x {image.height} pixels is too long; crop it closer to square")
        image = image.resize((width, height), _FILTERS[self.interpolation])
        left, top = self._offset(width), self._offset(height)
        return np.asarray(image)[top : top + self.size, left : left + self.size]

    def _resized(self, width: int, height: int) -> tuple[int, int]:
        short = self.short_side or self.size
        if width <= height:
            return short, int(short * height / width)
        return int(short * width / height), short

    def _offset(self, length: int) -> int:
        spare = length - self.size
        return spare // 2 if self.centre == "floor" else round(spare / 2)

    @classmethod
    def from_open_clip(cls, config: Mapping[str, Any], patch: int | None = None) -> Preprocess:
        """From open_clip's `model.visual.preprocess_cfg`.

        Args:
            config: The settings.
            patch: Side of a patch of a tower that takes images of any shape, which then keep theirs; None for others.
        """
        modes: dict[str, Mode] = {"shortest": "crop", "squash": "squash"}
        mode = config.get("resize_mode") or "shortest"
        if mode not in modes:
            raise ConfigError(f"open_clip resize_mode {mode!r} is not supported; pass open_clip's transform instead")
        # open_clip itself reads every other name, "random" among them, as bicubic at inference.
        interpolation: Interpolation = "bilinear" if config.get("interpolation") == "bilinear" else "bicubic"
        mean, std = _triple(config.get("mean") or CLIP_MEAN), _triple(config.get("std") or CLIP_STD)
        size = _side(config.get("size", 224))
        if patch is not None:
            return cls(size, "keep", "bilinear", mean, std, patch=patch)
        return cls(size, modes[mode], interpolation, mean, std)

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Preprocess:
        """From the dictionary of a transformers CLIP or SigLIP image processor (`preprocessor_config.json`)."""
        config = {k: v for k, v in config.items() if v is not None}
        if _kind(config) == "siglip2":
            return cls._kept(config)
        crops = bool(config.get("do_center_crop", _kind(config) == "clip"))
        _check_hf(config)
        interpolation = _pillow_filter(config.get("resample", Image.Resampling.BICUBIC))
        mean, std = _hf_normalisation(config)
        size = config.get("size", 224)
        short = size if isinstance(size, int) else size.get("shortest_edge")
        if short is None:
            squashed = _side((size.get("height"), size.get("width")))
            if crops and _crop_side(config, squashed) != squashed:
                raise ConfigError("squashing and then cropping is not supported; pass a function as preprocess instead")
            return cls(squashed, "squash", interpolation, mean, std)
        if not crops:
            raise ConfigError("resizing the short side without a centre crop is not supported; set do_center_crop")
        return cls(_crop_side(config, short), "crop", interpolation, mean, std, short_side=short, centre="floor")

    @classmethod
    def _kept(cls, config: Mapping[str, Any]) -> Preprocess:
        """SigLIP 2 NaFlex."""
        _check_hf(config)
        patch, most = int(config.get("patch_size", _PATCH)), int(config.get("max_num_patches", _PATCHES))
        interpolation = _pillow_filter(config.get("resample", Image.Resampling.BILINEAR))
        size = patch * max(1, math.isqrt(most))
        return cls(size, "keep", interpolation, *_hf_normalisation(config), patch=patch, patches=most)


def largest_grid(height: int, width: int, patch: int, most: int) -> tuple[int, int]:
    """Rows and columns of the largest grid of whole patches that an image is scaled to.

    Sides are rounded up to whole patches. The scale is found by bisection to 1e-5, as for the published weights: a
    finer search would now and then give another grid.

    Args:
        height: Of the image, in pixels.
        width: Of the image, in pixels.
        patch: Side of a patch, in pixels.
        most: Patches that the grid may have.
    """

    def grid(scale: float) -> tuple[int, int]:
        rows, columns = (max(1, math.ceil(side * scale / patch)) for side in (height, width))
        return rows, columns

    low, high = 1e-5 / 10, 100.0
    while high - low >= 1e-5:
        scale = (low + high) / 2
        low, high = (scale, high) if math.prod(grid(scale)) <= most else (low, scale)
    return grid(low)


def _side(size: Any) -> int:
    sides = set(size) if isinstance(size, Sequence) else {size}
    if len(sides) != 1 or not all(isinstance(side, int) for side in sides):
        raise ConfigError(f"only square inputs are supported, not {size}; pass a function as preprocess instead")
    return int(sides.pop())


def _triple(values: Any) -> Triple:
    numbers = list(values) if isinstance(values, Sequence) else [values] * 3
    if len(numbers) != 3:
        raise ConfigError(f"mean and std need three numbers each, not {numbers}")
    return float(numbers[0]), float(numbers[1]), float(numbers[2])


def _kind(config: Mapping[str, Any]) -> str:
    name = config.get("image_processor_type") or config.get("feature_extractor_type") or ""
    for kind in ("Siglip2", "Siglip", "CLIP"):
        if name.removesuffix("Fast").removesuffix("Pil") in (f"{kind}ImageProcessor", f"{kind}FeatureExtractor"):
            return kind.lower()
    raise ConfigError(f"the image processor {name!r} is not CLIP's or SigLIP's; pass a function as preprocess instead")


def _check_hf(config: Mapping[str, Any]) -> None:
    factor = config.get("rescale_factor", 1 / 255)
    steps = config.get("do_resize", True) and config.get("do_rescale", True) and not config.get("do_pad", False)
    if not steps or abs(factor * 255 - 1) > 1e-6:
        raise ConfigError("only image processors that resize and rescale by 1/255 without padding are supported")
    size = config.get("size", {})
    if isinstance(size, Mapping) and not {k for k, v in size.items() if v} <= {"shortest_edge", "height", "width"}:
        raise ConfigError(f"the image processor's size {dict(size)} is not supported; use shortest_edge or a square")


def _hf_normalisation(config: Mapping[str, Any]) -> tuple[Triple, Triple]:
    if not config.get("do_normalize", True):
        return (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    clip = _kind(config) == "clip"
    mean, std = (CLIP_MEAN, CLIP_STD) if clip else ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    return _triple(config.get("image_mean", mean)), _triple(config.get("image_std", std))


def _crop_side(config: Mapping[str, Any], default: int) -> int:
    crop = config.get("crop_size", default)
    return _side(crop if isinstance(crop, int) else (crop.get("height"), crop.get("width")))


def _pillow_filter(number: int) -> Interpolation:
    names: dict[int, Interpolation] = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
    if int(number) not in names:
        raise ConfigError(f"resample={number} is not supported; use one of {names}")
    return names[int(number)]
