"""Random views of one image: crops, resized to the tower's size and flipped, optionally with AugMix.

Crops are cut from the original and resampled on the tower's device. They have their own generator, seeded by the
image's pixels and a seed: the same image gives the same views at any place in a stream and, up to rounding in the
resampling, on any device. No other generator is touched.
"""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import PIL.Image
import torch
import torch.nn.functional as F
from torch import Tensor

from lessmore.core.condense.source import Step
from lessmore.core.encoder import encode
from lessmore.errors import ConfigError
from lessmore.methods.augmix import augmix
from lessmore.methods.registry import Episodic, Facts, Outcome, Setup
from lessmore.methods.zeroshot import zero_shot_logits
from lessmore.models.preprocess import Preprocess
from lessmore.models.vlm import VLM

_TRIES = 10
_LOG_RATIO = math.log(4 / 3)  # aspect ratios from 3:4 to 4:3


@dataclass(frozen=True)
class ViewOptions:
    """How many views, and how small their crops may be."""

    views: int = 64
    """The plain image and random crops of it."""
    smallest: float = 0.08
    """Smallest share of the image's area in a crop; the largest is all of it."""

    def __post_init__(self) -> None:
        """Validate once; every later use may trust the values."""
        if self.views < 2:
            raise ConfigError(f"views must be at least 2, the plain image and a random one, not {self.views}")
        if not 0 < self.smallest <= 1:
            raise ConfigError(f"smallest must lie in (0, 1], not {self.smallest}")


Options = TypeVar("Options", bound=ViewOptions)


class ViewEnsemble(Episodic, Generic[Options]):
    """Answers each image from several views of it, without training and without a memory."""

    def __init__(self, setup: Setup, options: Options) -> None:
        self.setup = setup
        self.options = options
        self.facts = Facts(training_free=True, kind="episodic", views=options.views)

    def views(self, image: PIL.Image.Image | Tensor, seed: int) -> Tensor:
        """The plain image and random crops of it, `[V, 3, S, T]`.

        Args:
            image: RGB, or preprocessed pixels `[3, S, T]`.
            seed: Seeds the crops, together with the image.
        """
        return make_views(self.setup.model, image, seed, self.options)

    def predict(self, pixels: Tensor) -> Outcome:
        """Answer one image, given its views `[V, 3, S, T]`."""
        encoded = encode(self.setup.vision, pixels, self.setup.preset.condensation)
        logits = zero_shot_logits(encoded, self.setup.text, self.setup.logit_scale)
        scores = self.combine(encoded.feature, logits)
        return Outcome(logits[0], scores, logits[0].softmax(dim=-1), None, first_view_steps(encoded.steps))

    @abstractmethod
    def combine(self, features: Tensor, logits: Tensor) -> Tensor:
        """Probabilities of the image, `[C]`.

        Args:
            features: Of the views, L2-normalised, `[V, E]`, the plain image's first.
            logits: Of the same views, `[V, C]`.
        """


def make_views(
    vlm: VLM, image: PIL.Image.Image | Tensor, seed: int, options: ViewOptions, mixed: bool = False
) -> Tensor:
    """The plain image and random views of it, `[V, 3, S, T]`, in the tower's precision on its device.

    Args:
        vlm: The model; its preprocessing and device are used.
        image: RGB, or preprocessed pixels `[3, S, T]`, from which the crops are then cut.
        seed: Seeds the crops, together with the image.
        options: How many views, and how small their crops may be.
        mixed: Apply AugMix to the crops.
    """
    black, white = _ends(vlm)
    if isinstance(image, Tensor):
        plain = image.cpu().float()
        levels = ((plain - black) / (white - black) * 255).round().clamp(0, 255).byte()
    else:
        plain = vlm.preprocess(image)
        levels = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)
    draw = torch.Generator().manual_seed(content_seed(levels, seed))
    levels, size = levels.to(vlm.device).float(), (plain.shape[1], plain.shape[2])
    crops = torch.stack([random_crop(levels, size, options.smallest, draw) for _ in range(options.views - 1)])
    if mixed:
        crops = augmix(crops, draw)
    black, white = black.to(crops.device), white.to(crops.device)
    return torch.cat([plain.to(crops.device)[None], black + crops / 255 * (white - black)]).to(vlm.dtype)


def first_view_steps(steps: list[Step]) -> list[Step]:
    """What the condensing blocks did to the first of several views."""
    return [
        step._replace(target=step.target[:1], anchor=None if step.anchor is None else step.anchor[:1]) for step in steps
    ]


def random_crop(levels: Tensor, size: tuple[int, int], smallest: float, draw: torch.Generator) -> Tensor:
    """A random crop in whole levels, `[3, S, T]`, flipped with probability ½.

    Args:
        levels: The image, `[3, H, W]` in levels 0…255.
        size: Height S and width T of the result, in pixels.
        smallest: Least fraction of the image's area that a crop covers.
        draw: Generator on the CPU, from which everything random comes.
    """
    # Always the same count of numbers, so that a rejected try does not change the crops that follow.
    *tries, (flip, *_) = torch.rand(_TRIES + 1, 4, generator=draw, dtype=torch.float64).tolist()
    height, width = levels.shape[1:]
    y, x, h, w = _box(tries, height, width, smallest)
    crop = _resized(levels[:, y : y + h, x : x + w], size)
    return crop.flip(-1) if flip < 0.5 else crop


def _box(tries: list[list[float]], height: int, width: int, smallest: float) -> tuple[int, int, int, int]:
    """Top, left, height and width of a crop: the first try that fits, else the largest allowed one in the centre."""
    for area, ratio, y, x in tries:
        pixels = height * width * (smallest + area * (1 - smallest))
        stretch = math.exp((2 * ratio - 1) * _LOG_RATIO)
        w, h = round(math.sqrt(pixels * stretch)), round(math.sqrt(pixels / stretch))
        if 0 < w <= width and 0 < h <= height:
            return int(y * (height - h + 1)), int(x * (width - w + 1)), h, w
    h, w = min(height, round(width * 4 / 3)), min(width, round(height * 4 / 3))
    return (height - h) // 2, (width - w) // 2, h, w


def _resized(crop: Tensor, size: tuple[int, int]) -> Tensor:
    """`[3, h, w]` → `[3, S, T]`, bilinear with a wider filter when shrinking (as Pillow does)."""
    return F.interpolate(crop[None], size, mode="bilinear", antialias=True)[0].round()


def content_seed(levels: Tensor, seed: int) -> int:
    """A seed that depends on a picture and on a number, and on nothing else.

    Args:
        levels: The picture, on the CPU.
        seed: The number.
    """
    digest = hashlib.blake2b(f"{seed} {tuple(levels.shape)}".encode(), digest_size=8)
    digest.update(levels.contiguous().numpy().tobytes())
    return int.from_bytes(digest.digest(), "big")


def _ends(vlm: VLM) -> tuple[Tensor, Tensor]:
    """What preprocessing makes of black and of white, `[3, 1, 1]` each; it is linear in between."""
    if isinstance(vlm.preprocess, Preprocess):
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in (vlm.preprocess.mean, vlm.preprocess.std))
        return -mean / std, (1 - mean) / std
    side = vlm.vision.shape.image_size
    black, white = (vlm.preprocess(PIL.Image.new("RGB", (side, side), name)) for name in ("black", "white"))
    middle = slice(side // 2, side // 2 + 1)
    return black[:, middle, middle], white[:, middle, middle]
