"""Small instances of every registered data set, in every layout, on disk. A picture's colour tells its label."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from lessmore.data.spec import Spec, specs

COOP = {
    "fgvc_aircraft": "fgvc_aircraft/images",
    "caltech101": "caltech-101/101_ObjectCategories",
    "stanford_cars": "stanford_cars",
    "dtd": "dtd/images",
    "eurosat": "eurosat/2750",
    "oxford_flowers": "oxford_flowers/jpg",
    "food101": "food-101/images",
    "oxford_pets": "oxford_pets/images",
    "sun397": "sun397/SUN397",
    "ucf101": "ucf101/UCF-101-midframes",
    "imagenet": "imagenet/images/val",
    "imagenet_a": "imagenet-adversarial/imagenet-a",
    "imagenet_v2": "imagenetv2/imagenetv2-matched-frequency-format-val",
    "imagenet_r": "imagenet-rendition/imagenet-r",
    "imagenet_sketch": "imagenet-sketch/images",
}
TPT = {
    "fgvc_aircraft": "fgvc_aircraft/images",
    "caltech101": "Caltech101",
    "stanford_cars": "StanfordCars",
    "dtd": "DTD/images",
    "eurosat": "eurosat",
    "oxford_flowers": "Flower102/jpg",
    "food101": "Food101/images",
    "oxford_pets": "OxfordPets",
    "sun397": "SUN397",
    "ucf101": "UCF101",
    "imagenet": "ImageNet/val",
    "imagenet_a": "imagenet-a",
    "imagenet_v2": "imagenetv2-matched-frequency-format-val",
    "imagenet_r": "imagenet-r",
    "imagenet_sketch": "ImageNet-Sketch",
}
TCA = {
    "fgvc_aircraft": "fgvc/data/images",
    "caltech101": "caltech101/101_ObjectCategories",
    "stanford_cars": "",
    "dtd": "dtd/images",
    "eurosat": "eurosat",
    "oxford_flowers": "oxford_flowers",
    "food101": "food-101/images",
    "oxford_pets": "oxford_pets/images",
    "sun397": "sun397/SUN397",
    "ucf101": "ucf101",
    "imagenet": "imagenet/val",
    "imagenet_a": "imagenet-a",
    "imagenet_v2": "imagenetv2",
    "imagenet_r": "imagenet-r",
    "imagenet_sketch": "imagenet-s/sketch",
}
LAYOUTS = {"coop": COOP, "tpt": TPT, "tca": TCA}
SPLITS = {"coop": None, "tpt": "data/data_splits", "tca": ""}
"""Where split files lie below the root; None: beside the images' folder, or in it where that is the data set's own."""

PER_SEVERITY = 4


def colour(label: int) -> tuple[int, int, int]:
    return label // 256, label % 256, 77


def label_of(image: Image.Image) -> int:
    high, low, mark = image.getpixel((0, 0))  # type: ignore[misc]
    assert mark == 77
    return high * 256 + low


def write_image(path: Path, label: int) -> None:
    """A PNG whatever the path's ending, for its colours are exact."""
    path.parent.mkdir(parents=True, exist_ok=True)
    stream = io.BytesIO()
    Image.new("RGB", (3, 2), colour(label)).save(stream, "PNG")
    path.write_bytes(stream.getvalue())


def build(root: Path, name: str, layout: str) -> tuple[list[str], list[int]]:
    """Put the set there; returns its ids and labels. Its classes are complete, but only a few have test images."""
    spec = specs()[name]
    folder = root / LAYOUTS[layout][name]
    labels = [0, len(spec.classes) // 2, len(spec.classes) - 1, 0]
    if spec.class_folders:
        return _class_folders(folder, spec, sorted(labels))
    paths = [_path(name, label, i) for i, label in enumerate(labels)]
    for path, label in zip(paths, labels, strict=True):
        write_image(folder / path, label)
    if name == "fgvc_aircraft":
        _variants(folder.parent, spec, paths, labels)
    else:
        own = {"coop": root / Path(COOP[name]).parts[0]}.get(layout, root / (SPLITS[layout] or ""))
        write_split(own / str(spec.split), spec.classes, paths, labels)
    return paths, labels


def _path(name: str, label: int, i: int) -> str:
    if name in ("oxford_pets", "oxford_flowers", "fgvc_aircraft"):
        return f"{1000 + i}.jpg"
    return f"{'cars_test' if name == 'stanford_cars' else f'kind{label}'}/{i}.jpg"


def _class_folders(folder: Path, spec: Spec, labels: list[int]) -> tuple[list[str], list[int]]:
    paths = [f"{spec.class_folders[label]}/{i}.JPEG" for i, label in enumerate(labels)]
    for path, label in zip(paths, labels, strict=True):
        write_image(folder / path, label)
    (folder / "README.txt").write_text("no class")
    return paths, labels


def _variants(folder: Path, spec: Spec, paths: Sequence[str], labels: Sequence[int]) -> None:
    (folder / "variants.txt").write_text("\n".join(spec.classes) + "\n")
    rows = [f"{Path(path).stem} {spec.classes[label]}\n" for path, label in zip(paths, labels, strict=True)]
    (folder / "images_variant_test.txt").write_text("".join(rows))


def write_split(file: Path, classes: Sequence[str], paths: Sequence[str], labels: Sequence[int]) -> None:
    """A split file whose train list names every class and whose test list only those given."""
    named = [name.replace(" ", "_") for name in classes]
    test = [[path, label, named[label]] for path, label in zip(paths, labels, strict=True)]
    train = [[f"train/{label}.jpg", label, name] for label, name in enumerate(named)]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"train": train, "val": [], "test": test}))


def build_cifar(folder: Path, corruptions: Sequence[str]) -> None:
    """Arrays whose first pixel is (label's byte, severity, 77)."""
    folder.mkdir(parents=True)
    labels = np.tile(np.arange(PER_SEVERITY) * 20, 5)
    np.save(folder / "labels.npy", labels)
    images = np.zeros((len(labels), 32, 32, 3), np.uint8)
    images[..., 0] = labels[:, None, None]
    images[..., 1] = np.repeat(np.arange(1, 6), PER_SEVERITY)[:, None, None]
    images[..., 2] = 77
    for corruption in corruptions:
        np.save(folder / f"{corruption}.npy", images)
