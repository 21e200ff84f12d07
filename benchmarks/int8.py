"""What int8 does to the answers: the same streams through engine `openvino` in float32 and in int8.

    nice -n 19 python benchmarks/int8.py --models DIR --data DIR --output benchmarks/results/int8.json
    python benchmarks/int8.py --report benchmarks/results/int8.json

TCA with preset `default` on two small real models, three data sets, clean and with contrast:2. int8 is calibrated once
per model and data set, on the first 64 clean images of the stream; with contrast:2 it has not seen the condition. A
line per stream is added as it ends, and a run that was cut off goes on with the next stream. Differences are paired by
image, with 95 % bootstrap intervals; the mean over streams draws images within each stream.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

import lessmore
from lessmore.data.registry import open_dataset
from lessmore.data.stream import make_stream
from lessmore.engines import build
from lessmore.engines.calibration import IMAGES
from lessmore.lab.loader import load_one
from lessmore.lab.provenance import environment
from lessmore.methods import Setup
from lessmore.methods.resolve import resolve
from lessmore.prompts import class_names

MODELS = {"photo-s8": "photo-s8", "photo-s14": "open_clip:local-dir:photo-s14"}
SETS = ("eurosat", "caltech101", "tiny-imagenet")
CONDITIONS = (None, "contrast:2")
PRECISIONS = ("float32", "int8")
KINDS = ("adapted", "zero_shot")


def stream_rows(args: argparse.Namespace, done: Sequence[Any]) -> Any:
    """A row per stream that is not done yet."""
    for name in args.only or MODELS:
        vlm = lessmore.load(MODELS[name].replace(name, str(args.models / name)), network=False)
        for data in SETS:
            dataset = open_dataset(data, args.data)
            templates = next(iter(dataset.templates.values()), "photo")
            text = vlm.classifier(class_names(dataset.classes), templates)
            preset = resolve("tca", shape=vlm.vision.shape).preset
            setup = Setup(vlm.vision, text, vlm.logit_scale, preset)
            clean = make_stream(dataset, "iid", 0, args.images, None)
            for condition in CONDITIONS:
                if (name, data, condition) in done:
                    continue
                setup = replace(setup, calibration=_pixels(clean, vlm, range(IMAGES)))
                stream = make_stream(dataset, "iid", 0, args.images, condition)
                yield {"model": name, "set": data, "condition": condition, **answers(setup, stream, vlm)}


def _pixels(stream: Any, vlm: Any, indices: Any) -> torch.Tensor:
    loaded = (load_one(stream, vlm.preprocess, i).pixels for i in indices)
    return torch.stack([torch.from_numpy(pixels) for pixels in loaded if pixels is not None])


@torch.no_grad()
def answers(setup: Setup, stream: Any, vlm: Any) -> dict[str, Any]:
    """Labels and answers of both precisions, an image through one and then the other."""
    methods = {name: build("openvino", "tca", replace(setup, precision=name)) for name in PRECISIONS}
    found: dict[str, list[int]] = {f"{name} {kind}": [] for name, kind in product(PRECISIONS, KINDS)}
    labels = []
    for i in tqdm(range(len(stream)), mininterval=30):
        pixels = load_one(stream, vlm.preprocess, i).pixels
        if pixels is None:
            continue
        labels.append(stream.label(i))
        for name, method in methods.items():
            outcome = method.predict(torch.from_numpy(pixels)[None])
            found[f"{name} adapted"].append(int(outcome.scores.argmax()))
            found[f"{name} zero_shot"].append(int(outcome.zero_shot.argmax()))
    return {"labels": labels, **found}


def report(rows: Sequence[dict[str, Any]]) -> None:
    """The table, and the means over streams."""
    print("| model | data | images | zero-shot f32 | float32 | int8 | difference | same answer |\n" + "|---" * 8 + "|")
    for row in rows:
        right = {key: np.array(row[key]) == np.array(row["labels"]) for key in row if " " in key}
        draws = gaps([row], "adapted")
        same = np.mean(np.array(row["int8 adapted"]) == np.array(row["float32 adapted"]))
        shares = " | ".join(
            f"{100 * right[key].mean():.1f}" for key in ("float32 zero_shot", "float32 adapted", "int8 adapted")
        )
        where = f"{row['set']}{', ' + row['condition'] if row['condition'] else ''}"
        print(f"| {row['model']} | {where} | {len(row['labels'])} | {shares} | {said(draws)} | {100 * same:.1f} % |")
    for kind in KINDS:
        for name in (None, *dict.fromkeys(row["model"] for row in rows)):
            chosen = [row for row in rows if name in (None, row["model"])]
            same = np.mean([np.mean(np.array(r[f"int8 {kind}"]) == np.array(r[f"float32 {kind}"])) for r in chosen])
            images = sum(len(row["labels"]) for row in chosen)
            print(f"{name or 'all'}, {kind}: {said(gaps(chosen, kind))}; same {100 * same:.1f} %; {images} images")


def gaps(rows: Sequence[dict[str, Any]], kind: str) -> NDArray[np.float64]:
    """int8 minus float32 in points, averaged over streams: the value, then 2,000 bootstrap draws."""
    random, sums = np.random.default_rng(0), np.zeros(2001)
    for row in rows:
        labels = np.array(row["labels"])
        gap = 1.0 * (np.array(row[f"int8 {kind}"]) == labels) - (np.array(row[f"float32 {kind}"]) == labels)
        picks = random.integers(0, len(gap), (2000, len(gap)))
        sums += np.concatenate([[gap.mean()], gap[picks].mean(axis=1)])
    return 100 * sums / len(rows)


def said(draws: NDArray[np.float64]) -> str:
    """A difference with its interval."""
    low, high = np.quantile(draws[1:], [0.025, 0.975])
    return f"{draws[0]:+.2f} [{low:+.2f}, {high:+.2f}]"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--only", nargs="+", choices=list(MODELS))
    parser.add_argument("--images", type=int, default=500, help="of each stream")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--report", type=Path, help="only print the table of this file")
    args = parser.parse_args()
    if args.report:
        report(json.loads(args.report.read_text())["rows"])
        return
    result = {"environment": environment(torch.device("cpu")), "images": args.images, "rows": []}
    if args.output.exists():
        result = json.loads(args.output.read_text())
    done = [(row["model"], row["set"], row["condition"]) for row in result["rows"]]
    for row in stream_rows(args, done):
        result["rows"].append(row)
        args.output.write_text(json.dumps(result) + "\n")
    report(result["rows"])


if __name__ == "__main__":
    main()
