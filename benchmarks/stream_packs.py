"""Make the packs of `streams.py` from data sets and models: photographs as JPEG, class embeddings, vision towers.

    python benchmarks/stream_packs.py --root DATA --models MODELS --output PACK

Of every set, `fix` and `report` have photographs of their own.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image
from stream_pool import DEEP_CLASSES, save_pack, save_tower
from streams import PARTS

import lessmore
from lessmore.assets import world
from lessmore.data.dataset import Dataset
from lessmore.data.registry import open_dataset
from lessmore.data.stream import make_stream
from lessmore.lab.report.tokens import as_picture
from lessmore.models.preprocess import Preprocess
from lessmore.models.vlm import VLM
from lessmore.prompts import class_names

QUALITY, WORLD_SCENES = 88, {"fix": (480, 31, 0), "report": (480, 47, 5)}
"""Quality of the JPEGs; scenes, their seed and the seed of their classes."""


class Share(NamedTuple):
    """How many photographs of a class a part takes, and of one of the larger classes."""

    each: int
    most: int
    side: int
    """Pixels that are kept."""


SHARES = {"eurosat": Share(100, 100, 64), "caltech101": Share(5, 14, 144), "tiny_imagenet": Share(3, 10, 64)}


def chosen(data: Dataset, share: Share, part: str) -> list[int]:
    """Images of a part; the order is the same for both parts, `report` begins where `fix` ends."""
    dice, labels = np.random.default_rng(19), np.asarray(data.labels)
    order = [dice.permutation(np.flatnonzero(labels == k)) for k in range(len(data.classes))]
    large = np.argsort([-len(images) for images in order], kind="stable")[:DEEP_CLASSES]
    out: list[int] = []
    for k, images in enumerate(order):
        want = min(share.most if k in large else share.each, len(images) // 2)
        out += images[:want].tolist() if part == "fix" else images[want : 2 * want].tolist()
    return out


def square(image: Image.Image, side: int) -> Image.Image:
    """The centre of an image, no larger than `side`."""
    short = min(image.size)
    left, top = (image.width - short) // 2, (image.height - short) // 2
    cut = image.convert("RGB").crop((left, top, left + short, top + short))
    return cut if short <= side else cut.resize((side, side), Image.Resampling.BICUBIC)


def photographs(vlm: VLM, name: str, part: str, root: Path, path: Path) -> None:
    """Pack a part of a data set."""
    data, share = open_dataset(name, root), SHARES[name]
    side = max(share.side, 200) if name == "caltech101" and vlm.vision.shape.image_size > 112 else share.side
    order = make_stream(data, "sorted", 0)
    place = {visit.index: i for i, visit in enumerate(order.visits)}
    images = chosen(data, share, part)
    templates = next(iter(data.templates.values()), "photo")
    text = vlm.classifier(class_names(data.classes), templates, cache=False)
    pictures = [square(order.image(place[i]), side) for i in images]
    _save(vlm, path, pictures, [data.labels[i] for i in images], text.float().cpu().numpy())


def scenes(vlm: VLM, part: str, path: Path) -> None:
    """Pack scenes of the embedded world."""
    count, seed, classes_seed = WORLD_SCENES[part]
    classes = world.test_classes(48, classes_seed)
    scene = world.world_sample(count, seed, classes)
    text = vlm.classifier(world.world_class_names(classes), "photo", cache=False).float().cpu().numpy()
    pictures = [as_picture(image) for image in world.draw_scene(scene)[0]]
    _save(vlm, path, pictures, scene.index.tolist(), text)


def _save(vlm: VLM, path: Path, pictures: list[Image.Image], labels: list[int], text: np.ndarray) -> None:  # type: ignore[type-arg]
    preprocess = vlm.preprocess
    assert isinstance(preprocess, Preprocess)
    facts = {"text": text, "scale": vlm.logit_scale, "mean": preprocess.mean, "std": preprocess.std}
    save_pack(path, pictures, labels, 95 if "world" in path.name else QUALITY, **facts)
    print(f"{path.name}: {len(labels)} images, {path.stat().st_size / 2**20:.1f} MiB", flush=True)


def main() -> None:
    """Write what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    models: dict[str, VLM] = {}
    for part, packs in PARTS.items():
        for name in packs:
            model, sets = name.split(".")
            folder = args.models / model
            if model not in models:
                models[model] = lessmore.load(str(folder) if folder.is_dir() else model)
                if folder.is_dir():
                    save_tower(models[model].vision, args.output / f"{model}.pt")
            path = args.output / f"{name}.npz"
            if "world" in sets:
                scenes(models[model], part, path)
            else:
                photographs(models[model], sets.removesuffix(f"_{part}"), part, args.root, path)


if __name__ == "__main__":
    main()
