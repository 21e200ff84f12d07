"""The demo three times over, with other images in another order each time, on both embedded models.

    python benchmarks/orders.py --output benchmarks/results/orders.json

Shifts and seeds are the demo's: nothing was chosen on them. Gains are paired with matched zero-shot on the same images.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from lessmore.assets import MODELS
from lessmore.lab import demo
from lessmore.lab.report.demo_summary import paired_gain


def main() -> None:
    """Run, print a table, write it as it grows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=demo.IMAGES)
    parser.add_argument("--orders", type=int, default=3)
    parser.add_argument("--output", default="benchmarks/results/orders.json")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print("| model | method | images | accuracy | gain over matched zero-shot, 95 % interval | gain in each order |")
    print("|---|---|---|---|---|---|")
    for model in MODELS:
        runs = [demo.run_demo(model, args.images, demo.SEED + 1000 * order) for order in range(args.orders)]
        for contender in demo.CONTENDERS:
            hits = [[stream.hits(contender.name) for stream in run.streams] for run in runs]
            plain = [[stream.hits(demo.BASELINE) for stream in run.streams] for run in runs]
            gaps = [[a - b for a, b in zip(x, y, strict=True)] for x, y in zip(hits, plain, strict=True)]
            gain = paired_gain([gap for order in gaps for gap in order])
            each = [100 * float(np.mean([gap.mean() for gap in order])) for order in gaps]
            accuracy = 100 * float(np.mean([h.mean() for order in hits for h in order]))
            images = sum(len(h) for order in hits for h in order)
            rows.append(
                {
                    "model": model,
                    "method": contender.name,
                    "images": images,
                    "accuracy": accuracy,
                    "gain": asdict(gain),
                    "gain_of_each_order": each,
                }
            )
            print(
                f"| {model} | {contender.name} | {images} | {accuracy:.2f} | {gain.value:+.2f} [{gain.low:+.2f}, "
                f"{gain.high:+.2f}] | {', '.join(f'{g:+.2f}' for g in each)} |",
                flush=True,
            )
        Path(args.output).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
