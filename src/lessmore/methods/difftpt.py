"""Diff-TPT: TPT with extra views, variations of the image that a diffusion model generated beforehand.

Only views whose logits are similar to the image's (by cosine) are used, and of these the most confident.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import PIL.Image
import torch
import torch.nn.functional as F
from torch import Tensor

from lessmore.data.formats import ENDINGS
from lessmore.data.images import load_image
from lessmore.errors import ConfigError, ImageError
from lessmore.methods.registry import Setup, register_method
from lessmore.methods.tpt import TPT, TPTOptions, confident_views


@dataclass(frozen=True)
class DiffTPTOptions(TPTOptions):
    """TPT's settings and those of the variations, as published."""

    selection: float = 0.3
    steps: int = 4
    folder: str = ""
    """Folder of the variations: for every image a sub-folder of image files, named by `image_key`."""
    variations: int = 63
    """How many of them join the views."""
    similar: float = 0.8
    """Share of the other views that stays, those whose logits have the largest cosine with the image's."""

    def __post_init__(self) -> None:
        """Validate once; every later use may trust the values."""
        super().__post_init__()
        if not 0 < self.similar <= 1 or self.variations < 1:
            raise ConfigError(f"similar must lie in (0, 1], variations from 1, not {self.similar}, {self.variations}")
        if not self.folder or not Path(self.folder).is_dir():
            raise ConfigError(
                f"diff-tpt reads variations of the images from a folder, and folder={self.folder!r} is none; make them "
                "with a diffusion model as docs/methods/diff-tpt.md shows, and give their folder"
            )


def image_key(image: PIL.Image.Image) -> str:
    """A name for an image by its content: 16 hexadecimal digits of a hash of its size and RGB values."""
    image = load_image(image)
    return hashlib.sha256(f"{image.width} {image.height} ".encode() + image.tobytes()).hexdigest()[:16]


def similar_views(logits: Tensor, share: float) -> Tensor:
    """Numbers of the views most similar to the first one, which comes first itself.

    Args:
        logits: Of all views, `[V, C]`.
        share: Fraction of the other V−1 views to keep, rounded down; those with the largest cosine stay.
    """
    alike = F.cosine_similarity(logits[1:], logits[:1], dim=-1)
    order = alike.sort(descending=True, stable=True).indices[: int(share * len(alike))]
    return torch.cat([order.new_zeros(1), order + 1])


@register_method("diff-tpt", DiffTPTOptions)
class DiffTPT(TPT):
    """TPT with more views and another way to choose among them."""

    options: DiffTPTOptions

    def __init__(self, setup: Setup, options: DiffTPTOptions) -> None:
        super().__init__(setup, options)
        self.facts = replace(self.facts, views=options.views + options.variations)

    def views(self, image: PIL.Image.Image | Tensor, seed: int) -> Tensor:
        """TPT's views and the variations from the folder, `[V, 3, S, S]`.

        Args:
            image: RGB; preprocessed pixels are refused, because the folder is found by the image's content.
            seed: Seeds the random crops, together with the image.

        Raises:
            ImageError: Preprocessed pixels were given.
            ConfigError: The folder has too few variations of this image.
        """
        if isinstance(image, Tensor):
            raise ImageError(
                "diff-tpt finds variations by the image's own pixels; give the image, not preprocessed ones"
            )
        plain = super().views(image, seed)
        drawn = [self.setup.model.preprocess(load_image(file)) for file in self._files(image_key(image))]
        return torch.cat([plain, torch.stack(drawn).to(plain)])

    def _files(self, key: str) -> list[Path]:
        """The first `variations` image files of the folder named `key`, sorted by name."""
        place, wanted = Path(self.options.folder) / key, self.options.variations
        files = sorted(f for f in place.glob("*") if f.name.lower().endswith(ENDINGS)) if place.is_dir() else []
        if len(files) < wanted:
            raise ConfigError(
                f"{place} holds {len(files)} variations of this image and {wanted} are wanted; make them as "
                "docs/methods/diff-tpt.md shows, or set variations= lower"
            )
        return files[:wanted]

    def choose(self, logits: Tensor) -> Tensor:
        """Numbers of the views to use, from the logits `[V, C]` of all of them."""
        alike = similar_views(logits, self.options.similar)
        return alike[confident_views(logits[alike], self.options.selection)]
