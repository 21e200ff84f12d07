"""Runs that take a moment: a folder of drawn images, sorted by class, and the files that a run leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lessmore.assets import shifts, world
from lessmore.lab.report.tokens import as_picture

CLASSES = world.test_classes(6, seed=3)
NAMES = world.world_class_names(CLASSES)


def draw_folder(folder: Path, images: int, seed: int = 5) -> Path:
    """Images before backgrounds the model has not seen, in a sub-folder per class."""
    scene = world.world_sample(images, seed, CLASSES)
    pixels, _ = shifts.draw_shifted(scene, "background", 5)
    for name in NAMES:
        (folder / name.replace(" ", "_")).mkdir(parents=True, exist_ok=True)
    for i, (image, label) in enumerate(zip(pixels, scene.index.tolist(), strict=True)):
        path = folder / NAMES[label].replace(" ", "_") / f"{i:03}.png"
        as_picture(image).save(path)
    return folder


def draw_set(root: Path, folder: str, split: str, seed: int, images: int) -> None:
    """A registered data set of drawn images."""
    drawn = draw_folder(root / folder, images, seed)
    rows = [
        [f"{path.parent.name}/{path.name}", NAMES.index(path.parent.name.replace("_", " ")), path.parent.name]
        for path in sorted(drawn.glob("*/*.png"))
    ]
    unseen = [["none.png", label, name.replace(" ", "_")] for label, name in enumerate(NAMES)]
    (root / split).write_text(json.dumps({"train": unseen, "val": [], "test": rows}))


def only_run(output: Path) -> Path:
    """The one run's folder."""
    (header,) = output.glob("*/spec.json")
    return header.parent


def results(output: Path) -> tuple[bytes, str]:
    """What must not depend on how a run came about: the bytes of its samples and the metrics of its summary."""
    folder = only_run(output)
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return (folder / "samples.jsonl").read_bytes(), json.dumps(summary["metrics"])


def lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a journal."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
