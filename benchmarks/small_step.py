"""Where the time of a small model's step goes, on engine `cpu`: its condensing blocks, or what comes after the tower.

    python benchmarks/small_step.py --output benchmarks/results/small-step.json

One thread, 102 classes, preset `default` at R = 0.9, the embedded `tiny`. Processor time of the thread, not wall-clock
time, so that other work on the machine matters less. Medians over steps; plain and adapted steps take turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from lessmore.cli.bench import PLAIN, BenchContender, setup_of, tower
from lessmore.engines import build
from lessmore.methods import tca


def main() -> None:
    """Measure, print, and write where told."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = measured(args.steps)
    print(json.dumps(found, indent=1))
    if args.output:
        args.output.write_text(json.dumps(found, indent=1) + "\n")


@torch.no_grad()
def measured(steps: int) -> dict[str, float]:
    """Milliseconds of a plain step, of an adapted one, and of the parts of the adapted one."""
    vision = tower("tiny")[0]
    image = torch.randn(1, 3, vision.shape.image_size, vision.shape.image_size)
    spent: dict[str, list[float]] = defaultdict(list)

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*values: Any) -> Any:
            start = time.thread_time()
            result = function(*values)
            spent[name].append(time.thread_time() - start)
            return result

        return run

    plain = build("cpu", "zeroshot", setup_of(vision, 102, BenchContender(PLAIN, "zeroshot", "none", 1.0)))
    method: Any = build("cpu", "tca", setup_of(vision, 102, BenchContender("TCA", "tca", "tca", 0.9)))
    parts = method.operations
    method.operations = parts._replace(**{name: timed(name, getattr(parts, name)) for name in parts._fields})
    tca.encode = timed("encode", tca.encode)  # type: ignore[attr-defined, assignment]
    contenders = {"plain step": timed("plain step", plain.predict), "step": timed("step", method.predict)}
    for i in range(steps + 20):
        if i == 20:
            spent.clear()
        for run in contenders.values():
            run(image)
    return {name: 1000 * statistics.median(values) for name, values in spent.items()}


if __name__ == "__main__":
    main()
