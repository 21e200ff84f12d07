"""Features of data sets under many conditions, and the streams that are made of them for `labelfree.py`.

A data set is one npz file: text [C, E], scale, labels [n], and per condition `f9.<condition>` and `f1.<condition>`, the
features [n, E] at R = 0.9 and R = 1; `noise` [m, E], if there, are features of pictures of noise. Its arrays may be
spread over NAME.npz and NAME.more.npz.
"""

from __future__ import annotations

import argparse
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

import lessmore
from lessmore.assets import MODELS, shifts, world
from lessmore.config import preset
from lessmore.core.encoder import PLAIN, encode
from lessmore.data.registry import open_dataset
from lessmore.data.stream import make_stream
from lessmore.lab.report.tokens import as_picture
from lessmore.models.vlm import VLM
from lessmore.prompts import class_names

CLEAN = "none"
SHARE = 19  # one strange image for that many others: 5 %
NOISE = 100  # pictures
BATCH = 50
SCENES = 11  # seed of the embedded world's images
Indices = NDArray[np.int64]
Dice = np.random.Generator


@dataclass(frozen=True)
class Shelf:
    """One data set, seen by one model."""

    name: str
    text: Tensor
    scale: float
    labels: Indices
    conditions: tuple[str, ...]
    features: Tensor
    """At R = 0.9, image after image, condition after condition, then the garbage: [rows, E]."""
    base: NDArray[np.bool_]
    """Whether matched zero-shot (R = 1) is right, for all rows but the garbage."""

    @property
    def logits(self) -> Tensor:
        """Zero-shot's at R = 0.9, [rows, C]."""
        return self.scale * self.features @ self.text.T

    @property
    def garbage(self) -> Indices:
        """Rows of it."""
        return np.arange(len(self.base), len(self.features))

    def rows(self, condition: str, images: Indices) -> Indices:
        """Where these images are under a condition."""
        return self.conditions.index(condition) * len(self.labels) + images


class Stream(NamedTuple):
    """Images in their order."""

    condition: str
    kind: str
    rows: Indices
    images: Indices
    """Number of each in its data set; −1 where it does not count."""


def load(folder: Path) -> dict[str, Shelf]:
    """All data sets of a folder by name, each with the garbage that goes with it."""
    arrays: dict[str, dict[str, Any]] = defaultdict(dict)
    for path in sorted(folder.glob("*.npz")):
        arrays[path.name.split(".")[0]].update(np.load(path))
    shelves = {name: _shelf(name, found) for name, found in arrays.items()}
    return {name: _with_garbage(shelf, arrays[name], shelves) for name, shelf in shelves.items()}


def _unit(array: Any) -> Tensor:
    return F.normalize(torch.tensor(np.asarray(array, dtype=np.float32)), dim=-1)


def _shelf(name: str, found: dict[str, Any]) -> Shelf:
    conditions = tuple(key[3:] for key in found if key.startswith("f9."))
    text, labels = _unit(found["text"]), np.asarray(found["labels"], dtype=np.int64)
    features, full = (torch.cat([_unit(found[f"{R}.{c}"]) for c in conditions]) for R in ("f9", "f1"))
    base = (full @ text.T).argmax(dim=1).numpy() == np.tile(labels, len(conditions))
    return Shelf(name, text, float(found["scale"]), labels, conditions, features, base)


def _with_garbage(shelf: Shelf, found: dict[str, Any], shelves: dict[str, Shelf]) -> Shelf:
    """Pictures of noise (random directions where there are none) and as many images of the model's other data sets."""
    dice = np.random.default_rng(0)
    noise = _unit(found["noise"] if "noise" in found else dice.normal(size=(NOISE, shelf.text.shape[1])))
    others = [other for other in shelves.values() if other.name != shelf.name and other.scale == shelf.scale]
    foreign = [other.features[dice.choice(len(other.labels), NOISE // len(others), replace=False)] for other in others]
    return replace(shelf, features=torch.cat([shelf.features, noise, *foreign]))


def streams(shelf: Shelf, kinds: list[str], conditions: list[str], orders: int) -> list[Stream]:
    """One for every kind, condition and order."""
    return [
        KINDS[kind](shelf, condition, kind, np.random.default_rng(seed))
        for kind in kinds
        for condition in conditions
        for seed in range(orders)
    ]


def _orderly(choose: Callable[[Indices, Dice], Indices]) -> Callable[[Shelf, str, str, Dice], Stream]:
    """A kind of stream under one condition, from labels [n] → images [T]."""

    def make(shelf: Shelf, condition: str, kind: str, dice: Dice) -> Stream:
        images = choose(shelf.labels, dice)
        return Stream(condition, kind, shelf.rows(condition, images), images)

    return make


def _iid(labels: Indices, dice: Dice) -> Indices:
    return dice.permutation(len(labels))


def _sorted(labels: Indices, dice: Dice) -> Indices:
    classes = dice.permutation(labels.max() + 1)
    return np.concatenate([dice.permutation(np.flatnonzero(labels == k)) for k in classes])


def _blocks(length: int) -> Callable[[Indices, Dice], Indices]:
    def choose(labels: Indices, dice: Dice) -> Indices:
        each = [dice.permutation(np.flatnonzero(labels == k)) for k in range(labels.max() + 1)]
        runs = [images[j : j + length] for images in each for j in range(0, len(images), length)]
        return np.concatenate([runs[j] for j in dice.permutation(len(runs))])

    return choose


def _only(count: Callable[[int], int]) -> Callable[[Indices, Dice], Indices]:
    """Images of count(C) classes, repeated until there are as many as of all."""

    def choose(labels: Indices, dice: Dice) -> Indices:
        classes = dice.permutation(np.unique(labels))
        images = dice.permutation(np.flatnonzero(np.isin(labels, classes[: count(len(classes))])))
        return dice.permutation(np.resize(images, len(labels)))

    return choose


def _zipf(labels: Indices, dice: Dice) -> Indices:
    """The class of rank r comes in proportion to 1/r; images are repeated where a class has too few."""
    classes = dice.permutation(np.unique(labels))
    weights = 1 / np.arange(1, len(classes) + 1)
    counts = dice.multinomial(len(labels), weights / weights.sum())
    parts = [np.resize(dice.permutation(np.flatnonzero(labels == k)), m) for k, m in zip(classes, counts, strict=True)]
    return dice.permutation(np.concatenate(parts))


def _strange(choose: Callable[[Shelf, Indices, int, Dice], Indices]) -> Callable[[Shelf, str, str, Dice], Stream]:
    """An i.i.d. stream with 5 % more images in between, which do not count."""

    def make(shelf: Shelf, condition: str, kind: str, dice: Dice) -> Stream:
        images = _iid(shelf.labels, dice)
        rows = shelf.rows(condition, images)
        extra = choose(shelf, rows, len(rows) // SHARE, dice)
        at = np.sort(dice.integers(len(rows) + 1, size=len(extra)))
        return Stream(condition, kind, np.insert(rows, at, extra), np.insert(images, at, -1))

    return make


def _garbage(shelf: Shelf, rows: Indices, count: int, dice: Dice) -> Indices:
    return dice.choice(shelf.garbage, count)


def _fill_one_class(distinct: bool) -> Callable[[Shelf, Indices, int, Dice], Indices]:
    """The stream's own images that are most surely taken for one class they are not of; or the first of them again."""

    def choose(shelf: Shelf, rows: Indices, count: int, dice: Dice) -> Indices:
        k = int(dice.integers(len(shelf.text)))
        sure = shelf.logits[rows].softmax(dim=1)[:, k].numpy().copy()
        sure[shelf.labels[rows % len(shelf.labels)] == k] = -1
        return np.resize(rows[np.argsort(-sure)[: count if distinct else 1]], count)

    return choose


def _changing(chance: Callable[[Indices], NDArray[np.float64]], rounds: int = 1) -> Any:
    """i.i.d., `before>after`: each image is of the new domain with chance(position from 0 to 1)."""

    def make(shelf: Shelf, condition: str, kind: str, dice: Dice) -> Stream:
        images = np.concatenate([_iid(shelf.labels, dice) for _ in range(rounds)])
        before, after = condition.split(">")
        new = dice.random(len(images)) < chance(np.arange(len(images)) / len(images))
        return Stream(condition, kind, np.where(new, shelf.rows(after, images), shelf.rows(before, images)), images)

    return make


KINDS: dict[str, Callable[[Shelf, str, str, Dice], Stream]] = {
    "i.i.d.": _orderly(_iid),
    "sorted": _orderly(_sorted),
    "blocks of 10": _orderly(_blocks(10)),
    "blocks of 50": _orderly(_blocks(50)),
    "5 % garbage": _strange(_garbage),
    "5 % chosen to fill one class": _strange(_fill_one_class(distinct=True)),
    "5 % one image again and again": _strange(_fill_one_class(distinct=False)),
    "one class absent": _orderly(_only(lambda C: C - 1)),
    "half of the classes absent": _orderly(_only(lambda C: C // 2)),
    "Zipf": _orderly(_zipf),
    "a tenth of the classes": _orderly(_only(lambda C: max(2, C // 10))),
    "one class": _orderly(_only(lambda C: 1)),
    "sudden change": _changing(lambda t: (t >= 0.5).astype(float)),
    "gradual change": _changing(lambda t: np.clip(2 * t - 0.5, 0, 1)),
    "sudden change, long": _changing(lambda t: (t >= 0.5).astype(float), rounds=2),
}
"""Kinds of streams by name."""


def encode_sets(args: argparse.Namespace) -> None:
    """Write one npz file per data set, or, for an embedded model, one of the embedded world."""
    vlm = lessmore.load(args.model).to(args.device)
    args.output.mkdir(parents=True, exist_ok=True)
    for name in args.dataset:
        read = world_set if name == "world" else data_set
        label, found, batches = read(vlm, name, args)
        for condition in args.corruption:
            f1, f9 = _encoded(vlm, batches(condition))
            found |= {f"f1.{condition}": f1, f"f9.{condition}": f9}
            right = [100 * float(((f @ found["text"].T).argmax(1) == found["labels"]).mean()) for f in (f1, f9)]
            print(f"{label} {condition}: zero-shot {right[0]:.1f} at R = 1, {right[1]:.1f} at R = 0.9", flush=True)
        size = next(batches(CLEAN)).shape[1:]
        pictures = np.random.default_rng(0).normal(size=(NOISE, *size)).astype(np.float32)
        found["noise"] = _encoded(vlm, iter(torch.tensor(pictures).split(BATCH)))[1]
        np.savez(args.output / f"{label}.npz", **found)


def _encoded(vlm: VLM, batches: Iterator[Tensor]) -> tuple[NDArray[np.float16], NDArray[np.float16]]:
    """Features of pixels [B, 3, H, W] at R = 1 and at R = 0.9."""
    condensed = preset("default", R=0.9).condensation
    pairs = []
    with torch.no_grad():
        for pixels in batches:
            there = pixels.to(vlm.device)
            pairs.append([encode(vlm.vision, there, R).feature.half().cpu() for R in (PLAIN, condensed)])
    f1, f9 = (torch.cat(features).numpy() for features in zip(*pairs, strict=True))
    return f1, f9


def _pixels(vlm: VLM, pictures: Iterator[Any]) -> Iterator[Tensor]:
    """Batches [B, 3, H, W] of pictures."""
    while part := list(itertools.islice(pictures, BATCH)):
        pixels = [vlm.preprocess(picture) for picture in part]
        yield torch.cat([image.reshape(1, *image.shape[-3:]) for image in pixels])


def _common(vlm: VLM, classes: list[str], templates: Any, labels: list[int]) -> dict[str, Any]:
    text = vlm.classifier(classes, templates, cache=False).float().cpu().numpy()
    return {"text": text, "scale": np.float32(vlm.logit_scale), "labels": np.array(labels)}


def data_set(vlm: VLM, name: str, args: argparse.Namespace) -> Any:
    """The images that `--limit` keeps of a data set; with --other, as many that it does not keep."""
    data = open_dataset(name, args.root)
    kept = [visit.index for visit in make_stream(data, "sorted", 0, args.limit).visits]
    more = [visit.index for visit in make_stream(data, "sorted", 0, 2 * args.limit).visits] if args.other else kept
    chosen = sorted(set(more) - set(kept) if args.other else kept)
    templates = next(iter(data.templates.values()), "photo")
    found = _common(vlm, class_names(data.classes), templates, [data.labels[i] for i in chosen])

    def batches(condition: str) -> Iterator[Tensor]:
        stream = make_stream(data, "sorted", 0, None, None if condition == CLEAN else condition)
        place = {visit.index: i for i, visit in enumerate(stream.visits)}
        return _pixels(vlm, (stream.image(place[i]) for i in chosen))

    return name, found, batches


def world_set(vlm: VLM, name: str, args: argparse.Namespace) -> Any:
    """Scenes of 48 classes of the embedded world, half of them unseen in training."""
    assert args.model in MODELS, f"the data set world goes with the models {', '.join(MODELS)}"
    classes = world.test_classes(48, 0)
    scene = world.world_sample(args.limit, SCENES + int(args.other), classes)
    found = _common(vlm, world.world_class_names(classes), "photo", scene.index.tolist())

    def batches(condition: str) -> Iterator[Tensor]:
        kind, _, severity = condition.partition(":")
        shift = ("clean", 0) if condition == CLEAN else (kind, int(severity))
        parts = (shifts.draw_shifted(scene[i : i + 100], *shift)[0] for i in range(0, args.limit, 100))
        return _pixels(vlm, (as_picture(image) for part in parts for image in part))

    return args.model.replace("-", "_"), found, batches
