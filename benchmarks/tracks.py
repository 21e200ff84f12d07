"""Frames of one object as one answer: accuracy and calibration per track, against averaging zero-shot.

    python benchmarks/answers_encode.py --views 12 ... --output ENCODINGS       makes the encodings, see there
    python benchmarks/tracks.py --encodings ENCODINGS --models MODELS --output benchmarks/results/tracks.json

Tracks are jittered views of one image each, through `engines.answers` as it is, one track after another or eight at a
time in turn, in two orders. `frames` is how many of each track have been seen. Zero-shot is matched (R = 1).
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from answers_streams import Encodings, answerer, over_classes, plain_of, quality, read_encodings
from confidence import rounded
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from lessmore.engines.answers import Answerer
from lessmore.storage.files import replacing

FRAMES = (1, 2, 4, 8, 12)
ORDERS, TOGETHER = 2, 8
VERSIONS = ("zero-shot, mean logits", "zero-shot, mean probabilities", "track")


def visits(one: Encodings, seed: int, in_turn: bool) -> NDArray[np.int64]:
    """Rows in the order of a stream."""
    dice = np.random.default_rng(seed)
    rows = [dice.permutation(np.flatnonzero(one.track == t)) for t in dice.permutation(one.track.max() + 1)]
    groups = [rows[i : i + TOGETHER] for i in range(0, len(rows), TOGETHER)] if in_turn else [[row] for row in rows]
    return np.concatenate([np.stack(group, axis=1).reshape(-1) for group in groups])


def measure(made: Answerer, one: Encodings, seed: int, in_turn: bool) -> list[dict[str, Any]]:
    """Results of one stream, one for every number of frames."""
    made.reset()
    sums: dict[int, Tensor] = defaultdict(lambda: torch.zeros(2, len(one.text), dtype=torch.float64))
    found: dict[int, list[Tensor]] = defaultdict(list)
    labels: dict[int, list[int]] = defaultdict(list)
    for row in visits(one, seed, in_turn).tolist():
        t, logits = int(one.track[row]), one.zero_shot(np.array([row]))[0].double()
        answer = made.answer(one.encoded(row), lambda row=row: plain_of(one, row), track=str(t))
        sums[t] = sums[t] + torch.stack([logits, logits.softmax(0)])
        if (n := answer.frames) in FRAMES:
            found[n].append(torch.stack([(sums[t][0] / n).softmax(0), sums[t][1] / n, answer.scores.double()]))
            labels[n].append(int(one.labels[row]))
    about = {"model": one.model, "set": one.dataset, "condition": one.condition, "in_turn": in_turn, "seed": seed}
    return [
        about
        | {"frames": n, "tracks": len(rows)}
        | {name: quality(torch.stack(rows)[:, i], np.array(labels[n])) for i, name in enumerate(VERSIONS)}
        for n, rows in found.items()
    ]


def show(rows: list[dict[str, Any]]) -> None:
    """Print means over orders."""
    streams: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        kind = "in turn" if row["in_turn"] else "one by one"
        streams[f"{row['model']} {row['set']} {row['condition']} {kind}", row["frames"]].append(row)
    print("tracks; each: accuracy, mean confidence, ECE, NLL")
    for (name, frames), orders in streams.items():
        cells = []
        for version in VERSIONS:
            mean = {
                k: float(np.mean([o[version][k] for o in orders])) for k in ("accuracy", "confidence", "ece", "nll")
            }
            cells.append(f"{version} " + " ".join(f"{value:.3f}" for value in mean.values()))
        print(f"{name:42} {orders[0]['tracks']:4} × {frames:2} | " + " | ".join(cells))


def main() -> None:
    """Measure, print, and write where told."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encodings", type=Path, required=True)
    parser.add_argument("--models", type=Path, default=Path("."), help="folder of the models that are not embedded")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    rows: list[dict[str, Any]] = []
    known: dict[str, Answerer] = {}
    for file in tqdm(sorted(args.encodings.glob("*.views*.npz")), unit="file"):
        one = read_encodings(file)
        made = over_classes(known[one.model], one) if one.model in known else answerer(one, "tca", args.models)
        known[one.model] = made
        for seed in range(ORDERS):
            for in_turn in (False, True):
                rows += measure(made, one, seed, in_turn)
    show(rows)
    if args.output:
        with replacing(args.output) as temporary:
            temporary.write_text("[\n" + ",\n".join(map(json.dumps, rounded(rows))) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
