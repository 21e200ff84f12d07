"""The 19 usual corruptions at severities 1 to 5, computed on the fly and seeded by the image's id alone.

They are those of the package imagecorruptions-imaug, whose constants were chosen for photographs of about 224 pixels:
on much larger images a severity looks milder, on CIFAR's 32 pixels harsher than in CIFAR-C. Numbers to compare with
published ones need the published files.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lessmore.errors import ConfigError, ImageError
from lessmore.registry import Registry

MAIN = (
    *("gaussian_noise", "shot_noise", "impulse_noise"),
    *("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    *("snow", "frost", "fog", "brightness"),
    *("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
)
"""The 15 corruptions of the benchmark, in its order."""
EXTRA = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
"""The four that the benchmark keeps for validation."""
SEVERITIES = 5
"""The highest severity; the lowest is 1."""
SMALLEST = 32
"""Least number of pixels on each side; below it the corruptions are not defined."""

_ONE_AT_A_TIME = threading.Lock()

Corrupter = Callable[[NDArray[np.uint8], int, int], NDArray[np.uint8]]
"""A function of pixels `[H, W, 3]`, a severity from 1 to 5 and a seed of 32 bits; it returns the corrupted pixels."""
CORRUPTIONS: Registry[Corrupter] = Registry("corruption", "lessmore.corruptions", adopt=lambda found: found)
"""Every corruption by name."""

register_corruption = CORRUPTIONS.register
"""Decorator: register a `Corrupter`."""


@dataclass(frozen=True)
class Corruption:
    """One corruption at one severity; its text form is `contrast:4`."""

    name: str
    severity: int

    def __post_init__(self) -> None:
        """Validate once; every later use may trust the values."""
        CORRUPTIONS.find(self.name)
        if not 1 <= self.severity <= SEVERITIES:
            raise ConfigError(f"severity goes from 1 to {SEVERITIES}, not {self.severity}")

    def __str__(self) -> str:
        return f"{self.name}:{self.severity}"


def parse_corruption(text: str) -> Corruption:
    """`contrast:4` → a `Corruption`."""
    name, colon, severity = text.strip().partition(":")
    if not colon or not severity.isdecimal():
        raise ConfigError(f"the corruption {text!r} has no severity; write {name or 'contrast'}:1 to :{SEVERITIES}")
    return Corruption(name, int(severity))


def corrupt(image: Image.Image, corruption: Corruption, seed_text: str) -> Image.Image:
    """An image under a corruption.

    Args:
        image: RGB.
        corruption: Which, and how severe.
        seed_text: All that random parts depend on besides the corruption; usually the image's id.

    Raises:
        ImageError: A side has fewer than 32 pixels; enlarging the image would be a second corruption.
    """
    if min(image.size) < SMALLEST:
        width, height = image.size
        raise ImageError(f"an image of {width} x {height} pixels cannot be corrupted; enlarge it to {SMALLEST} or more")
    pixels = np.asarray(image)
    changed = CORRUPTIONS.find(corruption.name)(pixels, corruption.severity, _seed(seed_text, corruption))
    return Image.fromarray(changed)


def _from_package(name: str, pixels: NDArray[np.uint8], severity: int, seed: int) -> NDArray[np.uint8]:
    package = _package()
    # Two of the functions draw from the system's entropy unless they are handed a seed; the others take none.
    own = inspect.signature(package.corruption_dict[name]).parameters
    more = {"seed": seed} if "seed" in own else {}
    with _seeded(seed):
        try:
            changed: NDArray[np.uint8] = package.corrupt(pixels, severity, name, **more)
        except FloatingPointError:
            return pixels.copy()  # spatter divides by its largest drop: none fell on this image
    return changed


for _name in MAIN + EXTRA:
    CORRUPTIONS.add(_name, functools.partial(_from_package, _name), source=f"lessmore.data.corrupt.{_name}")


def _package() -> ModuleType:
    try:
        import imagecorruptions
    except ImportError as error:
        raise ConfigError("corruptions need imagecorruptions-imaug: pip install 'lessmore[corrupt]'") from error
    return imagecorruptions


def _seed(text: str, corruption: Corruption) -> int:
    """32 bits: what the global generator takes."""
    return int.from_bytes(hashlib.sha256(f"{corruption}\n{text}".encode()).digest()[:4], "big")


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Numpy's global generator at `seed`, and afterwards as it was; a lock keeps threads out of each other's draws."""
    with _ONE_AT_A_TIME:
        before = np.random.get_state()  # noqa: NPY002
        np.random.seed(seed)  # noqa: NPY002
        try:
            with np.errstate(invalid="raise"):
                yield
        finally:
            np.random.set_state(before)  # noqa: NPY002
