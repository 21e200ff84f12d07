"""Does removing the domain's mean from the logits help, and when does it hurt? No labels, no tuning; docs/labelfree.md.

    python benchmarks/labelfree.py encode --model MODEL --root DATA --dataset eurosat --corruption none contrast:2 \
        --output FEATURES
    python benchmarks/labelfree.py encode --model tiny --dataset world --corruption none noise:3 --output FEATURES
    python benchmarks/labelfree.py measure --features FEATURES --part fix report --plot docs/labelfree.png
    python benchmarks/labelfree.py measure --features FRESH --part fresh
    python benchmarks/labelfree.py measure --features NEW --part new
    python benchmarks/labelfree.py tables

The rule is `lessmore.core.debias.observe` itself. Gains are points over matched zero-shot (same prompts, R = 1) on
the same images, the mean of three orders. The interval of one stream is a paired bootstrap over its images, orders
together; that of a mean over streams is a bootstrap over streams, too narrow where streams share images. `fix` are
the streams on which the rule was made, `report` others, `fresh` and `new` whatever is in a folder.
"""

from __future__ import annotations

import argparse
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from labelfree_rules import (
    ABLATIONS,
    BASELINES,
    BOLDER,
    CAREFUL,
    DEFAULT,
    ENDLESS,
    FIXED,
    MEAN,
    OURS,
    TDA,
    TRIED,
    TUNED_TDA,
    UNWATCHED,
    ZERO_SHOT,
    Rule,
    changes,
    lopsided,
    padded,
    run,
    strength,
)
from labelfree_streams import CLEAN, KINDS, Shelf, Stream, encode_sets, load, streams
from labelfree_tables import RESAMPLES, mean_of, picture, show
from numpy.typing import NDArray
from tqdm import tqdm

from lessmore.core import debias
from lessmore.core.class_texts import ClassTexts
from lessmore.methods.tda import TUNED
from lessmore.storage.files import replacing

SCHEMA = "lessmore.labelfree/1"
ORDERS, CHANGE_ORDERS, WINDOW = 3, 24, 100
ORDERLY = ["i.i.d.", "sorted"]
BESIDE = (MEAN, BOLDER, FIXED, DEFAULT)
STATIONARY = [*ORDERLY, "blocks of 10", "blocks of 50"]
CHANGING = ["sudden change", "gradual change"]
HARM = [kind for kind in KINDS if "change" not in kind]
ABLATED = [*ORDERLY, "Zipf", "a tenth of the classes", "one class"]
RANGES = ((0, 50), (50, 100), (100, 200), (200, 500), (500, 1000))
FIX = ["none", "contrast:2", "contrast:4", "brightness:4", "gaussian_noise:2", "defocus_blur:2", "fog:2"]
OTHER = [
    "contrast:3",
    "brightness:5",
    "gaussian_noise:1",
    "defocus_blur:1",
    "fog:4",
    "jpeg_compression:4",
    "pixelate:4",
]
EMBEDDED = ["none", "contrast:3", "noise:3", "brightness:3"]
EMBEDDED_OTHER = ["background:3", "snow:3", "blur:3", "sketch:3"]
PARTS: dict[str, dict[str, list[str]]] = {
    "fix": {"eurosat": FIX, "caltech101": FIX, "tiny": EMBEDDED},
    "report": {
        "eurosat": OTHER,
        "caltech101": OTHER,
        "tiny_imagenet": FIX + OTHER,
        "tiny": EMBEDDED_OTHER,
        "tiny_siglip": EMBEDDED + EMBEDDED_OTHER,
    },
}
CHANGES: dict[str, dict[str, list[str]]] = {
    "fix": {
        "eurosat": ["none>contrast:2", "contrast:4>none", "brightness:4>contrast:2"],
        "caltech101": ["none>contrast:4", "contrast:4>none", "brightness:4>contrast:2"],
        "tiny": ["none>contrast:3", "contrast:3>none"],
    },
    "report": {
        "eurosat": ["pixelate:4>brightness:5", "fog:4>defocus_blur:1"],
        "caltech101": ["jpeg_compression:4>contrast:3", "contrast:3>pixelate:4"],
        "tiny_imagenet": ["none>contrast:3", "contrast:3>none"],
        "tiny_siglip": ["none>snow:3", "snow:3>none"],
    },
}
Cells = dict[tuple[str, str, str, str], NDArray[np.float64]]
"""Set, condition, kind and rule → gain, low, high."""
Floats = NDArray[np.float64]


def gains(shelf: Shelf, made: Sequence[Stream], answers: NDArray[np.int64]) -> tuple[Floats, NDArray[np.bool_]]:
    """Per stream and position: +1 fixed, −1 broken, 0 the same as matched zero-shot; and what counts; [B, T] each."""
    images, rows = padded([s.images for s in made]), padded([s.rows for s in made])
    lengths = np.array([len(s.rows) for s in made])
    counts = (images >= 0) & (np.arange(images.shape[1]) < lengths[:, None])
    right = answers == shelf.labels[images]
    return np.where(counts, right - shelf.base[np.where(counts, rows, 0)].astype(float), 0.0), counts


def cells(shelf: Shelf, rule: Rule, kinds: list[str], conditions: list[str], draws: NDArray[np.int64]) -> Cells:
    """Gain of a rule on each condition and kind, with the interval of a paired bootstrap: draws [resamples, n]."""
    made = streams(shelf, kinds, conditions, ORDERS)
    gain, counts = gains(shelf, made, run(rule, shelf, made).answers)
    found: Cells = {}
    for first in range(0, len(made), ORDERS):
        won, seen = np.zeros((2, len(shelf.labels)))
        for b in range(first, first + ORDERS):
            images, valid = padded([made[b].images, np.zeros(gain.shape[1], int)])[0], counts[b]
            np.add.at(won, images[valid], gain[b, valid])
            np.add.at(seen, images[valid], 1)
        low, high = np.quantile((draws @ won) / (draws @ seen).clip(1), (0.025, 0.975))
        key = shelf.name, made[first].condition, made[first].kind, rule.name
        found[key] = 100 * np.array([won.sum() / seen.sum(), low, high])
    return found


def summary(found: Cells) -> dict[str, Any]:
    """Per kind, rule, and clean or shifted: gain; the same over zero-shot at R = 0.9; what the rule gains more."""
    out: dict[str, Any] = {}
    for kind, name in dict.fromkeys((kind, name) for _, _, kind, name in found):
        for domain in ("shifted", "clean"):
            keys = [k for k in found if k[2:] == (kind, name) and (k[1] == CLEAN) == (domain == "clean")]
            if keys:
                own, bare, ours = (
                    np.array([found[(*key[:3], other)][0] for key in keys])
                    for other in (name, ZERO_SHOT.name, OURS.name)
                )
                row = {
                    "gain": mean_of(own),
                    "over zero-shot at R = 0.9": mean_of(own - bare),
                    "rule less this": mean_of(ours - own),
                }
                out.setdefault(kind, {}).setdefault(name, {})[domain] = row
    return out


def by_stream(found: Cells) -> dict[str, Any]:
    """Set, condition, kind → gain, low, high of the rule; over R = 0.9 alone; BESIDE's gains; low, high of the last."""
    out: dict[str, Any] = {}
    for (name, condition, kind, rule), cell in found.items():
        if rule == OURS.name:
            bare, *others = (float(found[name, condition, kind, other.name][0]) for other in (ZERO_SHOT, *BESIDE))
            interval = found[name, condition, kind, BESIDE[-1].name][1:].tolist()
            row = [*cell.tolist(), float(cell[0]) - bare, *others, *interval]
            out.setdefault(name, {}).setdefault(condition, {})[kind] = row
    return out


def recovery(shelf: Shelf, pairs: list[str]) -> list[dict[str, Any]]:
    """As many images of a new domain as of the old; how long until a rule does as well as one that knew it all along.

    Points below that one in each range after the change, and the first image from which on WINDOW images are less than
    1 point below; the same images in the same order, mean of CHANGE_ORDERS orders.
    """
    known = [f"{after}>{after}" for after in (change.split(">")[1] for change in pairs)]
    made = streams(shelf, ["sudden change, long"], pairs + known, CHANGE_ORDERS)
    rows: list[dict[str, Any]] = [{"set": shelf.name, "change": change} for change in pairs]
    for rule in (OURS, UNWATCHED, ENDLESS):
        gain = gains(shelf, made, run(rule, shelf, made).answers)[0][:, len(shelf.labels) :]
        changed, settled = gain.reshape(2, len(pairs), CHANGE_ORDERS, -1).mean(axis=2)
        for row, below, level in zip(rows, 100 * (settled - changed), settled, strict=True):
            back = np.flatnonzero(np.convolve(below, np.full(WINDOW, 1 / WINDOW), mode="valid") <= 1)
            row[rule.name] = {
                "gain once settled": 100 * float(level.mean()),
                "below": [float(below[a:b].mean()) for a, b in RANGES],
                "images": int(back[0]) if len(back) else None,
            }
    return rows


def false_alarms(shelf: Shelf, conditions: list[str]) -> dict[str, Any]:
    """How often a change is noticed on streams where nothing changes."""
    row: dict[str, Any] = {"set": shelf.name}
    for kind in STATIONARY:
        watched = run(OURS, shelf, streams(shelf, [kind], conditions, ORDERS), changes).watched.numpy()
        row[kind] = {
            "steps, %": 100 * float(watched[-1].mean()) / len(watched),
            "streams with any": int((watched[-1] > 0).sum()),
            "streams": watched.shape[1],
        }
    return row


def strengths(shelves: Mapping[str, Shelf], conditions: Mapping[str, list[str]]) -> dict[str, Any]:
    """w after some images, and the share of images with w = 0 in percent, means over streams."""
    out: dict[str, Any] = {}
    for kind in ("i.i.d.", "sorted", "a tenth of the classes", "one class"):
        parts: dict[str, list[Floats]] = {"shifted": [], "clean": []}
        for name, chosen in conditions.items():
            made = streams(shelves[name], [kind], chosen, ORDERS)
            w = run(OURS, shelves[name], made, strength).watched.numpy().T
            for stream, course in zip(made, w, strict=True):
                row = [
                    *(course[i - 1] for i in (1, 3, 10, 30, 100, 300, 1000) if i <= len(course)),
                    100 * (course == 0).mean(),
                ]
                parts["clean" if stream.condition == CLEAN else "shifted"].append(np.array(row))
        out[kind] = {domain: np.mean(rows, axis=0).tolist() for domain, rows in parts.items() if rows}
    return out


def shapes(shelves: Mapping[str, Shelf], conditions: Mapping[str, list[str]]) -> dict[str, Any]:
    """Lopsided at the end of streams: 10 %, half and 90 % of the streams are below."""
    out: dict[str, Any] = {}
    for kind in ("i.i.d.", "sorted", "half of the classes absent", "a tenth of the classes", "one class"):
        found = [
            run(OURS, shelves[name], streams(shelves[name], [kind], chosen, ORDERS), lopsided).watched[-1].numpy()
            for name, chosen in conditions.items()
        ]
        out[kind] = np.quantile(np.concatenate(found), (0.1, 0.5, 0.9)).tolist()
    return out


def scales(shelves: Mapping[str, Shelf], conditions: Mapping[str, list[str]]) -> dict[str, Any]:
    """Mean gain on shifted streams where the logits are larger or smaller than the model has them."""
    out: dict[str, Any] = {}
    for factor in (0.5, 1.0, 2.0, 4.0):
        rows: dict[str, list[float]] = {kind: [] for kind in ORDERLY}
        for name, chosen in conditions.items():
            shelf = replace(shelves[name], scale=factor * shelves[name].scale)
            made = streams(shelf, ORDERLY, [c for c in chosen if c != CLEAN], ORDERS)
            gain, counts = gains(shelf, made, run(OURS, shelf, made).answers)
            for stream, value in zip(made, gain.sum(axis=1) / counts.sum(axis=1), strict=True):
                rows[stream.kind].append(100 * float(value))
        out[f"{factor:g}"] = {kind: float(np.mean(values)) for kind, values in rows.items()}
    return out


def whitening(shelves: Mapping[str, Shelf], conditions: Mapping[str, list[str]]) -> dict[str, list[float]]:
    """Gain on shifted conditions with all images known beforehand: the centre alone, and more than the centre."""
    out: dict[str, list[float]] = {}
    for name, chosen in conditions.items():
        shelf = shelves[name]
        for condition in (c for c in chosen if c != CLEAN):
            rows = shelf.rows(condition, np.arange(len(shelf.labels)))
            f, t = (x - x.mean(dim=0) for x in (shelf.features[torch.tensor(rows)], shelf.text))
            values, axes = torch.linalg.eigh(f.T @ f / len(f))
            values = values.clamp_min(1e-9)
            maps = {"centre alone": torch.ones_like(values)}
            maps |= {f"largest directions removed: {k}": (values < values[-k]).float() for k in (1, 3, 8)}
            maps |= {f"whitened, identity × {k}": (values + k * values.mean()) ** -0.5 for k in (1, 10)}
            for label, weights in maps.items():
                moved = torch.nn.functional.normalize(t @ axes * weights, dim=1)
                right = (f @ axes * weights @ moved.T).argmax(dim=1).numpy() == shelf.labels
                out.setdefault(label, []).append(100 * float(right.mean() - shelf.base[rows].mean()))
    return {label: mean_of(values) for label, values in out.items()}


def check(shelf: Shelf) -> dict[str, float]:
    """The mapped run against one stream at a time, called as the library calls it."""
    made = streams(shelf, ORDERLY, [shelf.conditions[0]], 1)
    answers, texts = run(OURS, shelf, made).answers, ClassTexts.of(shelf.text, shelf.scale)
    same = 0
    for stream, found in zip(made, answers, strict=True):
        state, features = (
            debias.empty_stream_mean(shelf.text.shape[1], len(shelf.text), "cpu"),
            shelf.features[torch.tensor(stream.rows)],
        )
        for f, answer in zip(features, found, strict=True):
            logits, state = debias.observe(state, texts.logits(f), f, texts, CAREFUL)
            same += int(logits.argmax() == answer)
    return {"answers": answers.size, "same": same}


def measure(shelves: Mapping[str, Shelf], part: str) -> dict[str, Any]:
    """Everything the page says about one part."""
    conditions = PARTS.get(part) or {name: list(shelf.conditions) for name, shelf in shelves.items()}
    pairs = CHANGES.get(part) or {name: _pairs(shelf.conditions) for name, shelf in shelves.items()}
    found: Cells = {}
    for name, chosen in conditions.items():
        found |= _all_cells(shelves[name], chosen, pairs.get(name, []))
    return {
        "streams": {
            name: {"images": len(shelves[name].labels), "classes": len(shelves[name].text), "conditions": chosen}
            for name, chosen in conditions.items()
        },
        "check": check(next(iter(shelves.values()))),
        "summary": summary(found),
        "change": [row for name, some in pairs.items() for row in recovery(shelves[name], some)],
        "alarms": [false_alarms(shelves[name], chosen) for name, chosen in conditions.items()],
        "strength": strengths(shelves, conditions),
        "lopsided": shapes(shelves, conditions),
        "scale": scales(shelves, conditions),
        "whitening": whitening(shelves, conditions),
        "cells": by_stream(found),
    }


def _pairs(conditions: Sequence[str]) -> list[str]:
    """From the first condition, usually none, to the next two, and back from these."""
    first, *others = conditions
    return [change for other in others[:2] for change in (f"{first}>{other}", f"{other}>{first}")]


def _all_cells(shelf: Shelf, conditions: list[str], pairs: list[str]) -> Cells:
    n, tuned = len(shelf.labels), shelf.name in TUNED
    draws = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
    plans = [(rule, HARM, conditions) for rule in (OURS, *BESIDE, ZERO_SHOT)]
    others = [rule for rule in BASELINES if rule not in (*BESIDE, ZERO_SHOT) and (rule != TUNED_TDA or tuned)]
    plans += [(rule, ORDERLY, conditions) for rule in (*others, *TRIED)]
    plans += [(rule, ABLATED, conditions) for rule in ABLATIONS]
    plans += [(rule, CHANGING, pairs) for rule in (OURS, *BESIDE, ZERO_SHOT, UNWATCHED, ENDLESS) if pairs]
    found: Cells = {}
    for rule, kinds, chosen in tqdm(plans, desc=shelf.name, leave=False):
        found |= cells(shelf, rule, kinds, chosen, draws)
    same = {} if tuned else {key: cell for key, cell in found.items() if key[3] == TDA.name}
    return found | {(*key[:3], TUNED_TDA.name): cell for key, cell in same.items()}


def write(path: Path, found: dict[str, Any]) -> None:
    """As JSON with rows on a line, numbers to two places, atomically."""
    text = json.dumps(
        json.loads(json.dumps(found), parse_float=lambda x: round(float(x), 2)), indent=1, ensure_ascii=False
    )
    with replacing(path) as new:
        new.write_text(re.sub(r"\[[^][{}]*\]", lambda row: " ".join(row[0].split()), text) + "\n", encoding="utf-8")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    whole = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = whole.add_subparsers(dest="command", required=True)
    encode = commands.add_parser("encode", help="write the features of data sets")
    encode.add_argument("--model", required=True)
    encode.add_argument("--root", type=Path)
    encode.add_argument("--dataset", nargs="+", required=True, help="`world` for the embedded models")
    encode.add_argument("--corruption", nargs="+", default=[CLEAN])
    encode.add_argument("--limit", type=int, default=1000)
    encode.add_argument("--other", action="store_true", help="other images than without it")
    encode.add_argument("--device", default="cpu")
    encode.add_argument("--output", type=Path, required=True)
    again = commands.add_parser("measure", help="run all streams")
    again.add_argument("--features", type=Path, required=True)
    again.add_argument("--part", nargs="+", choices=[*PARTS, "fresh", "new"], default=list(PARTS))
    again.add_argument("--plot", type=Path)
    for command in (again, commands.add_parser("tables", help="print what was measured")):
        command.add_argument("--output", type=Path, default=Path("benchmarks/results/labelfree.json"))
    return whole


def main() -> None:
    """Encode, measure, or print what was measured."""
    args = parser().parse_args()
    warnings.filterwarnings("ignore", message=".*index_copy_.*")  # in TDA: slow when mapped, and right
    if args.command == "encode":
        encode_sets(args)
        return
    found = json.loads(args.output.read_text()) if args.output.exists() else {"schema": SCHEMA, "parts": {}}
    shelves = load(args.features) if args.command == "measure" else {}
    for part in args.part if shelves else ():
        found["parts"][part] = measure(shelves, part)
        write(args.output, found)
    if shelves and args.plot:
        picture(shelves, args.plot)
    for part, results in found["parts"].items():
        print(show(part, results))


if __name__ == "__main__":
    main()
