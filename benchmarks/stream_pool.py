"""The images of `streams.py`: packed here, and encoded view by view on any device.

A pack is one npz file per model and set: photographs as JPEG, labels, class embeddings and the scale of the logits; a
tower is one pt file. With them the measurement needs neither data sets nor text towers.
"""

from __future__ import annotations

import io
import lzma
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from stream_views import corrupted, draw_views, gaussian, take_views
from torch import Tensor

import lessmore
from lessmore.assets import MODELS
from lessmore.config import Condensation
from lessmore.core.class_texts import ClassTexts
from lessmore.core.encoder import PLAIN, encode
from lessmore.core.vit import ViT

VIEWS, DEEP_VIEWS, DEEP_CLASSES, DEEP_PHOTOS = 4, 60, 12, 10
"""Views of every photograph; of photographs of the classes that fill streams of few classes; how many of these."""
COVERED = 50
"""Frames of a covered lens: black ones, and as many photographs blurred beyond recognition under each condition."""
BATCH = 250
Indices = NDArray[np.int64]


class Codes(NamedTuple):
    """Rows under one condensation, condition after condition, then the black frames."""

    features: Tensor
    """`[rows, E]`."""
    tokens: Tensor
    """`[rows, L, D]`."""


@dataclass(eq=False)
class Pool:
    """All frames of one data set, seen by one model."""

    name: str
    texts: ClassTexts
    conditions: tuple[str, ...]
    labels: Indices
    """Of the frames of one condition, `[F]`; −1 for those that show nothing."""
    photos: Indices
    """Which photograph a frame is a view of, `[F]`; −1 for those that show nothing."""
    deep: Indices
    """Classes with many views."""
    codes: dict[str, Codes]
    """By the name of a condensation."""
    right: NDArray[np.bool_]
    """Whether matched zero-shot (all tokens) is right, `[conditions · F + COVERED]`."""

    def rows(self, condition: str, frames: Indices) -> Indices:
        """Where frames are under a condition."""
        return self.conditions.index(condition) * len(self.labels) + frames

    @property
    def black(self) -> Indices:
        """Rows of black frames."""
        return len(self.labels) * len(self.conditions) + np.arange(COVERED)


def save_tower(vision: ViT, path: Path) -> None:
    """Write a vision tower in float16; the bytes of the exponents are compressed, nothing is lost."""
    state = vision.state_dict()
    flat = np.concatenate([tensor.half().cpu().numpy().ravel() for tensor in state.values()])
    low, high = flat.view(np.uint8).reshape(-1, 2).T
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    packed = np.frombuffer(lzma.compress(high.tobytes(), preset=1), np.uint8)
    parts = {"low": torch.from_numpy(low.copy()), "high": torch.from_numpy(packed.copy())}
    torch.save({"shape": vision.shape, "shapes": shapes, **parts}, path)


def load_tower(path: Path, device: str, dtype: torch.dtype) -> ViT:
    """A tower of `save_tower`, or an embedded one."""
    if path.stem in MODELS:
        return lessmore.load(path.stem).to(device, dtype).vision
    found = torch.load(path, weights_only=False)
    high = np.frombuffer(lzma.decompress(found["high"].numpy().tobytes()), np.uint8)
    flat = np.stack([found["low"].numpy(), high], axis=1)
    values, state, start = torch.from_numpy(flat.copy().view(np.float16).ravel()), {}, 0
    for name, shape in found["shapes"].items():
        size = int(np.prod(shape))
        state[name] = values[start : start + size].view(shape).to(device, dtype)
        start += size
    vision = ViT(found["shape"]).to(device, dtype)
    vision.load_state_dict(state)
    return vision.eval().requires_grad_(False)


def save_pack(path: Path, images: list[Image.Image], labels: list[int], quality: int, **more: Any) -> None:
    """Write square RGB images and what belongs to them."""
    coded = []
    for image in images:
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=quality)
        coded.append(np.frombuffer(buffer.getvalue(), np.uint8))
    ends = np.cumsum([len(part) for part in coded])
    np.savez(path, jpegs=np.concatenate(coded), ends=ends, labels=np.array(labels), **more)


def read_pack(path: Path, side: int) -> tuple[Tensor, dict[str, Any]]:
    """Photographs `[N, 3, side, side]` in [0, 1], and the other arrays of a pack."""
    found = dict(np.load(path))
    begins = np.concatenate([[0], found["ends"][:-1]])
    pictures = []
    for begin, end in zip(begins, found["ends"], strict=True):
        image = Image.open(io.BytesIO(found["jpegs"][begin:end].tobytes())).convert("RGB")
        pixels = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)[None].float() / 255
        if pixels.shape[-1] != side:
            pixels = F.interpolate(pixels, size=(side, side), mode="bicubic", antialias=True)
        pictures.append(pixels.clamp(0, 1))
    return torch.cat(pictures), found


class Frames(NamedTuple):
    """The frames of one condition before they are encoded."""

    photos: Tensor
    """`[F]`."""
    views: Tensor
    """`[F, 6]`."""
    deep: Indices


def plan_frames(labels: Indices, seed: int, size: float = 1.0) -> Frames:
    """VIEWS of every photograph and DEEP_VIEWS more of some photographs of some classes; `size` scales the numbers."""
    dice, counts, each = np.random.default_rng(seed), np.bincount(labels), max(1, round(VIEWS * size))
    many = np.argsort(-counts + dice.random(len(counts)))[: max(2, int(DEEP_CLASSES * size))]
    deep = [np.flatnonzero(labels == k)[: max(2, int(DEEP_PHOTOS * size))] for k in many]
    photos = np.concatenate([np.arange(len(labels)).repeat(each), np.concatenate(deep).repeat(int(DEEP_VIEWS * size))])
    numbers = np.concatenate([np.tile(np.arange(each), len(labels)), np.ones(len(photos) - each * len(labels), int)])
    covered = dice.integers(len(labels), size=COVERED)
    photos, numbers = np.append(photos, covered), np.append(numbers, np.ones(COVERED, int))
    views = draw_views(torch.from_numpy(numbers), torch.Generator().manual_seed(seed))
    return Frames(torch.from_numpy(photos), views, np.sort(many))


def pixels_of(images: Tensor, frames: Frames, condition: str, world: bool, seed: int) -> Iterator[Tensor]:
    """Batches of all frames under a condition, `[B, 3, S, S]` in [0, 1], on the device of `images`."""
    dice = torch.Generator(images.device).manual_seed(seed)
    for part in torch.arange(len(frames.photos)).split(BATCH):
        seen = take_views(images[frames.photos[part].to(images.device)], frames.views[part].to(images.device))
        lens = (part >= len(frames.photos) - COVERED).to(images.device)[:, None, None, None]
        seen = torch.where(lens, gaussian(seen, images.shape[-1] / 8), seen)
        yield corrupted(seen, condition, world, dice)


def black_frames(images: Tensor) -> Tensor:
    """What a covered sensor gives: black with a little noise, `[COVERED, 3, S, S]`."""
    dice = torch.Generator(images.device).manual_seed(0)
    return (0.01 * torch.randn(COVERED, *images.shape[1:], generator=dice, device=images.device)).abs()


@torch.no_grad()
def encode_pool(
    vision: ViT,
    pack: Path,
    conditions: tuple[str, ...],
    condensations: dict[str, Condensation],
    size: float = 1.0,
    whole: bool = True,
) -> Pool:
    """Encode every frame of a pack under every condition and condensation.

    Zero-shot looks at the whole image, or, in half the time, at what the default condensation leaves of it.
    """
    weight = vision.positions
    images, found = read_pack(pack, vision.shape.image_size)
    images, world = images.to(weight.device), "world" in pack.name
    kept = np.arange(0, len(images), max(1, round(0.1 / size))) if size < 1 else np.arange(len(images))
    images, labels = images[kept], found["labels"][kept]
    frames = plan_frames(labels, 0, size)
    mean, std = (torch.tensor(found[key]).float().to(weight.device)[:, None, None] for key in ("mean", "std"))
    texts = ClassTexts.of(torch.from_numpy(found["text"]).to(weight.device), float(found["scale"]))
    seen: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in condensations}
    right = []
    batches = (part for k, c in enumerate(conditions) for part in pixels_of(images, frames, c, world, k))
    shown = torch.from_numpy(labels)[frames.photos]
    shown[-COVERED:] = -1
    for part in [batches, iter([black_frames(images)])]:
        for pixels in part:
            ready = ((pixels - mean) / std).to(weight.dtype)
            baseline = encode(vision, ready, PLAIN if whole else condensations["default"])
            right.append(texts.logits(baseline.feature).argmax(dim=1).cpu())
            for name, condensation in condensations.items():
                code = baseline if name == "default" and not whole else encode(vision, ready, condensation)
                seen[name].append((code.feature, code.tokens.half()))
    codes = {name: Codes(*(torch.cat(x) for x in zip(*parts, strict=True))) for name, parts in seen.items()}
    truth = torch.cat([shown.repeat(len(conditions)), torch.full((COVERED,), -1)])
    answers = torch.cat(right)
    photos = torch.where(shown < 0, -1, frames.photos).numpy()
    return Pool(pack.stem, texts, conditions, shown.numpy(), photos, frames.deep, codes, (answers == truth).numpy())
