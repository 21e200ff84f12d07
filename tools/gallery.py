"""Draw the pictures of docs/gallery.md, all of the embedded world and the embedded model.

    python tools/gallery.py docs/gallery            # all four; minutes on one core
    python tools/gallery.py docs/gallery way kept   # some of them

Each picture NAME.png has its numbers beside it in NAME.json. They are narrow, so that a telephone can show them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from lessmore import Adapter, adapt
from lessmore.assets import camera, shifts, world
from lessmore.lab.report.tokens import as_picture, token_panels
from lessmore.models.load import load
from lessmore.paper.figures import style
from lessmore.storage.files import replacing, write_json

WIDTH, DPI, SIDE = 4.8, 150, 192
LABEL = 9.0
"""Letters, in points: legible when the picture is 330 pixels wide."""
CLASSES = world.test_classes(48, seed=1)
NAMES = world.world_class_names(CLASSES)
SEED = 82_000
BUDGETS = (1.0, 0.95, 0.9, 0.8, 0.7)
REDUCERS = {"TCA's condensing": "tca", "ToMe": "tome", "EViT": "evit"}
SETTINGS: dict[str, dict[str, Any]] = {"zero-shot": {"method": "zeroshot", "R": 1.0}, "adapted": {}}
CAMERAS, FIRST, FRAMES, WINDOW = 6, 101, 330, 30
"""Rendered cameras, the seed of the first, frames of each, and frames that accuracy is averaged over."""


def as_bytes(pixels: Tensor) -> Tensor:
    """Pixels between 0 and 1 as whole numbers, as a file has them."""
    return (pixels * 255).round().byte()


def drawn(count: int, kind: str, severity: int) -> tuple[list[Tensor], NDArray[np.int64]]:
    """Images [3, S, S] of the world under a shift, and their labels [count]."""
    scene = world.world_sample(count, SEED, CLASSES)
    pixels = shifts.draw_shifted(scene, kind, severity)[0]
    return [as_bytes(one) for one in pixels], scene.index.numpy()


def way(folder: Path) -> None:
    """One image: what the model sees, what each block leaves, and what is answered before and after."""
    vlm = load("tiny")
    images, labels = drawn(200, "contrast", 3)
    adapter = adapt(vlm, NAMES, R=0.7, cache=False)
    found = [adapter(image, trace=True) for image in images]
    i = next(i for i in range(100, 200) if found[i].changed and found[i].index == labels[i])
    answer, trace = found[i], found[i].trace
    assert trace is not None
    figure = style.canvas(4.6, WIDTH)
    top, bottom = style.split_rows(figure, [2.1, 1.0])
    pictures = [as_picture(images[i]).resize((SIDE, SIDE), Image.Resampling.NEAREST)]
    pictures += token_panels(pictures[0], trace, side=SIDE)
    left = trace.left[0].tolist()
    titles = ["64 patches", *(f"block {b}: {n} tokens" for b, n in zip(trace.blocks, left, strict=True))]
    for ax, one, title in zip(top.subplots(2, 3).flat, pictures, titles, strict=True):
        style.show_picture(ax, one, title).axes.title.set_fontsize(LABEL)
    shown = list(dict.fromkeys([answer.index, *answer.zero_shot_scores.topk(3).indices.tolist()]))[:3]
    bars(bottom.subplots(), [NAMES[c] for c in shown], answer.zero_shot_scores[shown], answer.scores[shown])
    data = {"image": i, "label": NAMES[labels[i]], "left": left, "before": answer.zero_shot_scores.tolist()}
    save(figure, folder, "way", data | {"after": answer.scores.tolist()})


def bars(ax: Any, names: list[str], before: Tensor, after: Tensor) -> None:
    """Probabilities of some classes, before and after adaptation."""
    rows = np.arange(len(names))
    ax.barh(rows - 0.2, after.numpy(), 0.38, color=style.SERIES[0], label="adapted")
    ax.barh(rows + 0.2, before.numpy(), 0.38, color=style.SERIES[4], label="zero-shot")
    ax.set_yticks(rows, names)
    ax.invert_yaxis()
    ax.set_xlim(0, 1)
    finish(ax, "probability", "")
    ax.grid(visible=False)
    ax.legend(fontsize=LABEL, frameon=False, loc="lower right")


def kept(folder: Path) -> None:
    """Images on grounds the model has never seen, and what is left of them after the last condensing block."""
    images, labels = drawn(5, "background", 5)
    figure = style.canvas(9.0, WIDTH)
    axes: Any = figure.subplots(len(images), 3)
    left = {R: condensed(axes[:, column], images, R) for column, R in ((1, 0.9), (2, 0.7))}
    for ax, image, label in zip(axes[:, 0], images, labels, strict=True):
        picture = as_picture(image).resize((SIDE, SIDE), Image.Resampling.NEAREST)
        style.show_picture(ax, picture, below=NAMES[label].replace(" ", "\n", 1)).axes.xaxis.label.set_fontsize(LABEL)
    titles = ["64 patches", *(f"R = {R}: {n} tokens" for R, n in left.items())]
    for ax, title in zip(axes[0], titles, strict=True):
        ax.set_title(title, fontsize=LABEL, color=style.INK)
    save(figure, folder, "kept", {"labels": [NAMES[i] for i in labels], "left": left})


def condensed(axes: Any, images: list[Tensor], R: float) -> int:
    """Draw what the last condensing block left of every image, and say how many tokens that is."""
    adapter, left = adapt("tiny", NAMES, R=R, cache=False), set()
    for ax, image in zip(axes, images, strict=True):
        trace = adapter(image, trace=True).trace
        assert trace is not None
        style.show_picture(ax, token_panels(as_picture(image), trace, side=SIDE)[-1])
        left.add(int(trace.left[0, -1]))
    (count,) = left  # a budget leaves the same number of every image
    return count


def change(folder: Path) -> None:
    """Accuracy before and after night falls, adapted and not, averaged over cameras."""
    names, vlm = world.world_class_names(camera.camera_classes("belt")), load("tiny")
    hits: dict[str, list[NDArray[np.bool_]]] = {"zero-shot": [], "adapted": []}
    noticed = []
    for seed in range(FIRST, FIRST + CAMERAS):
        frames = [one for start in range(0, FRAMES, 30) for one in camera.camera_frames("belt", seed, start, 30)]
        labels = np.array([frame.label for frame in frames])
        for name, settings in SETTINGS.items():
            adapter = adapt(vlm, names, cache=False, **settings)
            answers, changes = answers_and_changes(adapter, [as_bytes(frame.pixels) for frame in frames])
            hits[name].append(answers == labels)
            noticed += [changes] if name == "adapted" else []
    figure = style.canvas(4.0, WIDTH)
    top, bottom = style.split_rows(figure, [1.0, 3.0])
    for ax, number in zip(top.subplots(1, 5), (60, 140, 162, 200, 320), strict=True):
        one = camera.camera_frames("belt", FIRST, number, 1)[0]
        style.show_picture(ax, as_picture(one.pixels), str(number)).axes.title.set_fontsize(LABEL)
    curves(bottom.subplots(), {name: np.mean(rows, axis=0) for name, rows in hits.items()})
    data = {"cameras": CAMERAS, "noticed": noticed, "window": WINDOW}
    save(figure, folder, "change", data | {name: np.mean(rows, axis=0).tolist() for name, rows in hits.items()})


def answers_and_changes(adapter: Adapter, images: list[Tensor]) -> tuple[NDArray[np.int64], list[int]]:
    """Class numbers answered [n], and the numbers of the images at which a change of domain was noticed."""
    answers, changes, before = [], [], 0
    for i, image in enumerate(images):
        answers.append(adapter(image).index)
        now = adapter.health().domain_changes
        changes += [i] if now > before else []
        before = now
    return np.array(answers), changes


def curves(ax: Any, hits: dict[str, NDArray[np.float64]]) -> None:
    """Running accuracy over the stream, with its night shaded."""
    night = [i for i in range(FRAMES) if camera.condition_at(i) == "night"]
    ax.axvspan(night[0], night[-1], color="#e8e8f0")
    ax.text(np.mean(night), 0.02, "night", ha="center", fontsize=LABEL, color=style.MUTED)
    for (name, rows), colour in zip(hits.items(), (style.SERIES[4], style.SERIES[0]), strict=True):
        smooth = np.convolve(rows, np.ones(WINDOW) / WINDOW, mode="valid")
        ax.plot(np.arange(WINDOW - 1, FRAMES), smooth, color=colour, label=name, linewidth=1.8)
    ax.set_ylim(0, 1)
    finish(ax, f"image; accuracy of the last {WINDOW} images", "")
    ax.legend(fontsize=LABEL, frameon=False, loc="lower left")


def cost(folder: Path) -> None:
    """Accuracy of zero-shot against the cost of an image, by reducer and budget, and of `default`."""
    vlm = load("tiny")
    images, labels = drawn(400, "background", 5)
    found: dict[str, list[tuple[float, float, float]]] = {}
    compared: dict[str, dict[str, Any]] = {
        **{name: {"method": "zeroshot", "reducer": reducer} for name, reducer in REDUCERS.items()},
        "default (adapted)": {},
    }
    for name, settings in compared.items():
        for R in BUDGETS:
            adapter = adapt(vlm, NAMES, R=R, cache=False, **settings)
            right = np.array([adapter(image).index for image in images]) == labels
            gmacs = adapter.answerer.method.macs() / 1e9
            found.setdefault(name, []).append((R, gmacs, float(right.mean())))
    figure = style.canvas(3.6, WIDTH)
    ax: Any = figure.subplots()
    for (name, points), colour, marker in zip(found.items(), style.SERIES, style.MARKERS, strict=False):
        _, x, y = zip(*points, strict=True)
        ax.plot(x, y, color=colour, marker=marker, label=name, linewidth=1.4, markersize=5)
    finish(ax, "GMACs per image", "accuracy")
    ax.legend(fontsize=LABEL, frameon=False, loc="lower right")
    save(figure, folder, "cost", {"images": len(images), "R, GMACs, accuracy": found})


def finish(ax: Any, x: str, y: str) -> None:
    """Labels in letters that a telephone can show."""
    style.label_axes(ax, x=x, y=y)
    ax.tick_params(labelsize=LABEL)
    ax.xaxis.label.set_fontsize(LABEL)
    ax.yaxis.label.set_fontsize(LABEL)


def save(figure: Any, folder: Path, name: str, data: dict[str, Any]) -> None:
    """Write the picture, in few colours, and its numbers."""
    with replacing(folder / f"{name}.png") as new:
        figure.savefig(new, format="png", dpi=DPI)
        with Image.open(new) as picture:
            small = picture.convert("RGB").quantize(255, dither=Image.Dither.NONE)
        small.save(new, "PNG", optimize=True)
    write_json(folder / f"{name}.json", data)
    print(f"{folder / name}.png, .json")


PICTURES: dict[str, Callable[[Path], None]] = {"way": way, "kept": kept, "change": change, "cost": cost}


def main() -> None:
    """Draw what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(PICTURES)}; all where none is named")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    for name in args.names or PICTURES:
        PICTURES[name](args.folder)


if __name__ == "__main__":
    main()
