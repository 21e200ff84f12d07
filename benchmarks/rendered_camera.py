"""What adaptation does on the rendered camera of the live page: accuracy by condition, gain and interval.

    python benchmarks/rendered_camera.py run --kind spot --cameras 6 --output benchmarks/results/camera-spot.json
    python benchmarks/rendered_camera.py table benchmarks/results/camera-spot.json

A camera is a seed; each delivers one round of the timeline, and frames of the covered lens are answered but not scored.
The matched row is zero-shot with all tokens. Intervals are a bootstrap over cameras.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

import lessmore
from lessmore import adapt
from lessmore.assets import camera, world

FIRST = 101
"""Seed of the first camera; the strengths of night and fog were set on cameras 11 to 14, by zero-shot alone."""


def settings(kind: str) -> dict[str, dict[str, Any]]:
    """What is compared: the plain model, `default`, and the page's own setting for this kind of camera."""
    own = camera.CAMERAS[kind].setting
    return {"zero-shot": {"method": "zeroshot", "R": 1.0}, "default": {}, own["preset"]: dict(own)}


def run(model: str, kind: str, cameras: int) -> dict[str, Any]:
    """Hits by setting and condition, one list for each camera; and where changes of domain were noticed."""
    vlm, compared = lessmore.load(model), settings(kind)
    classes = world.world_class_names(camera.camera_classes(kind))
    hits: dict[str, dict[str, list[list[bool]]]] = {name: defaultdict(list) for name in compared}
    noticed: dict[str, list[list[int]]] = {name: [] for name in compared}
    bar = tqdm(total=cameras * camera.ROUND * len(compared), unit="image")
    for seed in range(FIRST, FIRST + cameras):
        frames = [one for start in range(0, camera.ROUND, 60) for one in camera.camera_frames(kind, seed, start, 60)]
        for name, setting in compared.items():
            adapter = adapt(vlm, classes, cache=False, **setting)
            own: dict[str, list[bool]] = defaultdict(list)
            changes = []
            for frame in frames:
                answer = adapter((frame.pixels * 255).round().byte())
                if frame.label is not None:
                    own[frame.condition].append(answer.index == frame.label)
                changes.append(adapter.health().domain_changes)
                bar.update()
            for condition, values in own.items():
                hits[name][condition].append(values)
            noticed[name].append([i for i in range(1, len(changes)) if changes[i] > changes[i - 1]])
    return {"model": model, "kind": kind, "first": FIRST, "cameras": cameras, "hits": hits, "noticed": noticed}


def table(found: dict[str, Any]) -> str:
    """Markdown rows: accuracy by condition, and the gain over matched zero-shot with its 95 % interval."""
    conditions = list(found["hits"]["zero-shot"])
    lines = [
        f"| setting | {' | '.join(conditions)} | all | gain | changes noticed |",
        "|---|" + "---|" * (len(conditions) + 3),
    ]
    plain = _by_camera(found, "zero-shot", conditions)
    for name in found["hits"]:
        own = _by_camera(found, name, conditions)
        cells = [f"{100 * np.mean(_by_camera(found, name, [one])):.1f}" for one in conditions]
        low, high = _interval(own - plain)
        gain = "–" if name == "zero-shot" else f"{_signed((own - plain).mean())} [{_signed(low)}, {_signed(high)}]"
        seen = sum(map(len, found["noticed"][name]))
        lines.append(f"| {name} | {' | '.join(cells)} | {100 * own.mean():.1f} | {gain} | {seen} |")
    count = sum(len(found["hits"]["zero-shot"][one][0]) for one in conditions)
    last = found["first"] + found["cameras"] - 1
    lines.append(
        f"\n{found['model']}, {found['kind']}, cameras {found['first']} to {last}, {count} scored images each."
    )
    return "\n".join(lines)


def _by_camera(found: dict[str, Any], name: str, conditions: list[str]) -> Any:
    """Accuracy of every camera over some conditions."""
    rows = found["hits"][name]
    return np.array([np.mean([hit for one in conditions for hit in rows[one][i]]) for i in range(found["cameras"])])


def _interval(gains: Any) -> tuple[float, float]:
    picks = np.random.default_rng(0).integers(0, len(gains), (10_000, len(gains)))
    low, high = np.quantile(gains[picks].mean(axis=1), [0.025, 0.975])
    return float(low), float(high)


def _signed(share: float) -> str:
    return f"{100 * share:+.1f}".replace("-", "−")


def main() -> None:
    """Run, or print the table of a run."""
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = args.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run", help="answer all images and write the result")
    runs.add_argument("--model", default="tiny")
    runs.add_argument("--kind", choices=list(camera.CAMERAS), required=True)
    runs.add_argument("--cameras", type=int, default=8)
    runs.add_argument("--output", type=Path, required=True)
    commands.add_parser("table", help="print the table of a result").add_argument("result", type=Path)
    given = args.parse_args()
    torch.set_num_threads(1)
    if given.command == "run":
        given.output.write_text(json.dumps(run(given.model, given.kind, given.cameras)) + "\n", encoding="utf-8")
    print(table(json.loads((given.output if given.command == "run" else given.result).read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
