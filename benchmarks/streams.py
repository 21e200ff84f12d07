"""Streams as cameras see them: gain and harm of every rule, by kind of stream; docs/streams.md.

    python benchmarks/stream_packs.py --root DATA --models MODELS --output PACK
    python benchmarks/streams.py measure --pack PACK --part fix report --compact --output OUT      # with a GPU
    python benchmarks/streams.py trial --compact OUT --rules camera --output OUT                     # without
    python benchmarks/streams.py tables OUT/*.json

A cell is model × set × condition × kind, the mean gain over matched zero-shot (same prompts, all tokens) of DRAWS
streams, with a bootstrap over photographs. `fix` is where rules are chosen; `report` was written down before the first
stream was run. Encodings are made once per frame and condensation; rules then run over all streams together.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from stream_candidates import CAMERA, CANDIDATES
from stream_compact import load_compact, save_compact
from stream_kinds import AFTER, BEFORE, COVER, COVER_KINDS, Stream, make_streams
from stream_pool import Pool, encode_pool, load_tower
from stream_rules import RULES, Rule, Run, condensations, run
from stream_tables import show, show_constants

DRAWS, FEW, RESAMPLES, SOON = 20, 5, 400, 30
PARTS: dict[str, dict[str, tuple[str, ...]]] = {
    "fix": {
        "photo-s8.eurosat_fix": ("none", "contrast:3", "gaussian_noise:1", "fog:4"),
        "photo-s8.caltech101_fix": ("none", "contrast:3", "gaussian_noise:1", "fog:4"),
        "tiny.world_fix": ("none", "contrast:3", "noise:3", "brightness:3"),
    },
    "report": {
        "photo-s8.eurosat_report": ("none", "glass_blur:2", "impulse_noise:1", "zoom_blur:2"),
        "photo-s8.tiny_imagenet_report": ("none", "motion_blur:2", "impulse_noise:1", "elastic_transform:2"),
        "photo-s14.eurosat_report": ("none", "glass_blur:2", "impulse_noise:1", "zoom_blur:2"),
        "photo-s14.caltech101_report": ("none", "motion_blur:2", "impulse_noise:1", "elastic_transform:2"),
        "photo-s14.tiny_imagenet_report": ("none", "motion_blur:2", "impulse_noise:1", "elastic_transform:2"),
        "tiny-siglip.world_report": ("none", "snow:3", "blur:3", "sketch:3"),
    },
}
"""Part → pack → conditions, the clean one first; written down before the first stream was run."""
Floats = NDArray[np.float64]


def gains(pool: Pool, made: list[Stream], found: Run) -> list[Floats]:
    """Per stream and scored frame: +1 where the rule mends zero-shot, −1 where it breaks it."""
    truth = np.append(np.tile(pool.labels, len(pool.conditions)), np.full(len(pool.black), -1))
    out = []
    for stream, answers in zip(made, found.answers.numpy(), strict=True):
        right = answers[: len(stream.rows)] == truth[stream.rows]
        out.append(right.astype(float) - pool.right[stream.rows])
    return out


def cells(pool: Pool, made: list[Stream], each: list[Floats]) -> dict[str, dict[str, list[float]]]:
    """Condition → kind → gain, low and high in points, zero-shot's accuracy; photographs are resampled."""
    F, photos = len(pool.labels), pool.photos.max() + 1
    draws = np.random.default_rng(0).multinomial(photos, np.full(photos, 1 / photos), size=RESAMPLES)
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for i, stream in enumerate(made):
        groups[stream.condition, stream.kind].append(i)
    out: dict[str, dict[str, list[float]]] = defaultdict(dict)
    for (condition, kind), members in groups.items():
        won, seen, base = np.zeros(photos), np.zeros(photos), 0.0
        for i in members:
            rows = made[i].rows[made[i].scored]
            np.add.at(won, pool.photos[rows % F], each[i][made[i].scored])
            np.add.at(seen, pool.photos[rows % F], 1)
            base += pool.right[rows].sum()
        spread = (draws @ won) / (draws @ seen).clip(1)
        values = [won.sum() / seen.sum(), *np.quantile(spread, (0.025, 0.975)), base / seen.sum()]
        out[condition][kind] = [round(100 * float(v), 3) for v in values]
    return dict(out)


def lens(made: list[Stream], each: list[Floats], watched: NDArray[Any]) -> dict[str, list[float]]:
    """Condition → after the cover: covered less uncovered on images 1–30 and 31–330, and the share of streams in which
    a change was noticed between the cover and 30 images after it."""
    pairs: dict[str, list[list[float]]] = defaultdict(list)
    kinds = dict(zip(COVER_KINDS, ([i for i, s in enumerate(made) if s.kind == k] for k in COVER_KINDS), strict=True))
    for covered, plain in zip(*kinds.values(), strict=True):
        late, early = each[covered][BEFORE + COVER :], each[plain][BEFORE:]
        difference = 100 * (late - early)
        noticed = watched[covered, BEFORE + COVER + SOON] > watched[covered, BEFORE]
        pairs[made[covered].condition].append([difference[:SOON].mean(), difference[SOON:].mean(), float(noticed)])
    assert AFTER > SOON
    return {condition: np.mean(rows, axis=0).round(3).tolist() for condition, rows in pairs.items()}


def measure_pool(pool: Pool, rules: list[Rule], draws: int) -> dict[str, Any]:
    """All cells of one pack."""
    made = make_streams(pool, draws, pool.conditions[:2])
    steps = sum(len(stream.rows) for stream in made)
    out: dict[str, Any] = {"streams": len(made), "steps": steps, "conditions": pool.conditions, "rules": {}}
    out |= {"classes": len(pool.texts.text), "photographs": int(pool.photos.max()) + 1, "frames": len(pool.labels)}
    few = [stream for stream in made if stream.draw < FEW and "%" not in stream.kind]
    for rule in rules:
        begun, own = time.monotonic(), few if rule.light else made
        found = run(rule, pool, own)
        each = gains(pool, own, found)
        out["rules"][rule.name] = {"cells": cells(pool, own, each), "lens": lens(own, each, found.watched.numpy())}
        steps = sum(len(stream.rows) for stream in own)
        print(f"{pool.name} {rule.name}: {steps} steps in {time.monotonic() - begun:.1f} s", flush=True)
    return out


def pool_of(
    folder: Path, name: str, conditions: tuple[str, ...], device: str, codes: set[str], size: float, whole: bool
) -> Pool:
    """Encode one pack."""
    model = name.split(".")[0]
    vision = load_tower(folder / f"{model}.pt", device, torch.float16 if device == "cuda" else torch.float32)
    begun, chosen = time.monotonic(), {k: v for k, v in condensations().items() if k in codes}
    pool = encode_pool(vision, folder / f"{name}.npz", conditions, chosen, size, whole)
    accuracy = [
        round(100 * float(pool.right[k * len(pool.labels) :][: len(pool.labels)][pool.labels >= 0].mean()), 1)
        for k in range(len(conditions))
    ]
    print(f"{name}: {len(pool.right)} frames in {time.monotonic() - begun:.1f} s; zero-shot {accuracy}", flush=True)
    return pool


def measure(args: argparse.Namespace) -> None:
    """Measure what the pack holds of some parts."""
    args.output.mkdir(parents=True, exist_ok=True)
    rules = asked(args.rules)
    for part in args.part:
        for name, conditions in PARTS[part].items():
            if not (args.pack / f"{name}.npz").is_file():
                continue
            codes = {rule.code for rule in rules} | {"default"}
            pool = pool_of(
                args.pack, name, conditions[: args.conditions], args.device, codes, args.size, not args.condensed
            )
            if args.compact:
                save_compact(pool, args.output)
            found = {"part": part, **measure_pool(pool, rules, args.draws)}
            (args.output / f"{name}.json").write_text(json.dumps(found), encoding="utf-8")


def asked(names: list[str] | None) -> list[Rule]:
    """The rules of these names; all but those with other constants unless given."""
    known = (*RULES, *CANDIDATES) if names else (*RULES, CAMERA)
    return [rule for rule in known if not names or rule.name in names]


def trial(args: argparse.Namespace) -> None:
    """Run rules on the compact encodings of `measure --compact`, and add them to what was measured on the tokens.

    Rules on final features lose nothing but the rounding of features; those with a memory are only approximated.
    """
    for path in sorted(args.compact.glob("*.features.npz")):
        name = path.name.removesuffix(".features.npz")
        part = next(part for part, packs in PARTS.items() if name in packs)
        target = args.output / f"{name}.json"
        found = json.loads(target.read_text(encoding="utf-8")) if target.is_file() else {"part": part, "rules": {}}
        pool, _ = load_compact(name, args.compact)
        fresh = measure_pool(pool, asked(args.rules), args.draws)
        rules = found["rules"] | {
            k: v | {"compact": True} for k, v in fresh["rules"].items() if k not in found["rules"]
        }
        target.write_text(json.dumps({"part": part, **fresh, "rules": rules}), encoding="utf-8")


def arguments() -> argparse.Namespace:
    """What was asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure", help="run the rules over the streams of a pack")
    measuring.add_argument("--pack", type=Path, required=True)
    measuring.add_argument("--part", nargs="+", default=["fix"], choices=list(PARTS))
    measuring.add_argument("--rules", nargs="*", help="names of rules; all unless given")
    measuring.add_argument("--output", type=Path, required=True)
    measuring.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    measuring.add_argument("--compact", action="store_true", help="also write encodings that a CPU can run rules on")
    measuring.add_argument("--conditions", type=int, help="only the first so many conditions of a pack")
    measuring.add_argument("--draws", type=int, default=DRAWS)
    measuring.add_argument("--size", type=float, default=1.0, help="share of the views, for a trial on a CPU")
    measuring.add_argument("--condensed", action="store_true", help="compare with zero-shot at R = 0.9: half the work")
    trying = commands.add_parser("trial", help="run rules on compact encodings, on a CPU")
    trying.add_argument("--compact", type=Path, required=True)
    trying.add_argument("--rules", nargs="*")
    trying.add_argument("--output", type=Path, required=True)
    trying.add_argument("--draws", type=int, default=DRAWS)
    showing = commands.add_parser("tables", help="print the tables of docs/streams-evidence.md")
    showing.add_argument("results", type=Path, nargs="+")
    showing.add_argument("--rules", nargs="*", help="only these; all unless given")
    constants = commands.add_parser("constants", help="print the table of constants in docs/labelfree.md")
    constants.add_argument("results", type=Path, nargs="+")
    return parser.parse_args()


if __name__ == "__main__":
    args = arguments()
    torch.backends.cuda.matmul.allow_tf32 = True
    commands = {"measure": measure, "trial": trial}
    commands |= {"tables": lambda args: show(args.results, args.rules)}
    commands |= {"constants": lambda args: show_constants(args.results)}
    commands[args.command](args)
