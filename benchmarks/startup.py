"""What a user waits for before the first answer: import, help, and the embedded model's first answer.

    python benchmarks/startup.py --rounds 9 --output benchmarks/results/startup.json

Every measurement is a process of its own, in turns, with warm files, by the clock. Torch is imported first, so that
what `import lessmore` adds, with all that an adapter needs, is seen alone; the first answer contains torch's import.
Medians of the rounds, with the smallest and the largest. Run it on an idle machine.

`--against PYTHON` measures another environment beside this one, such as one with an older lessmore.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

IMPORTS = """
import json, time
a = time.perf_counter()
import torch
b = time.perf_counter()
import lessmore
lessmore.adapt, lessmore.Adapter, lessmore.load
c = time.perf_counter()
print(json.dumps({"torch": b - a, "import beyond torch": c - b}))
"""
ANSWER = """
import json, time
import numpy as np
a = time.perf_counter()
import lessmore
adapter = lessmore.adapt("tiny", ["red circle", "blue square"], cache=False)
adapter(np.zeros((64, 64, 3), np.uint8))
print(json.dumps({"first answer with tiny": time.perf_counter() - a}))
"""
AIMS = {"import beyond torch": 1.0, "lessmore --help": 0.4, "first answer with tiny": 2.0}
"""Seconds of wall time."""


def inside(python: str, program: str) -> dict[str, float]:
    """What a program measures of itself."""
    asked = [python, "-c", program]
    values: dict[str, float] = json.loads(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)
    return values


def whole(python: str) -> dict[str, float]:
    """A process from its start to its end, by the clock and on the processor."""
    before, start = os.times(), time.perf_counter()
    subprocess.run([python, "-m", "lessmore", "--help"], capture_output=True, check=True)
    seconds, after = time.perf_counter() - start, os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return {"lessmore --help": seconds, "lessmore --help, on the processor": spent}


def measure(pythons: list[str], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Every measurement of every interpreter, in turns; the first round warms files and is left out."""
    found: dict[str, dict[str, list[float]]] = {python: {} for python in pythons}
    for number in range(rounds + 1):
        for python in pythons:
            values = inside(python, IMPORTS) | whole(python) | inside(python, ANSWER)
            for name, seconds in values.items():
                if number:
                    found[python].setdefault(name, []).append(seconds)
    return found


def summary(python: str, values: dict[str, list[float]]) -> dict[str, Any]:
    """Median, smallest and largest of each measurement, and the version measured."""
    version = subprocess.run([python, "-m", "lessmore", "--version"], capture_output=True, text=True).stdout.strip()
    rows = {name: [statistics.median(all_), min(all_), max(all_)] for name, all_ in values.items()}
    return {"version": version or "unknown", "seconds": rows}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--against", default=None, help="Python of another environment")
    parser.add_argument("--output", type=Path, default=None)
    args = parser.parse_args()
    pythons = [sys.executable, *([args.against] if args.against else [])]
    sides = [summary(python, values) for python, values in measure(pythons, args.rounds).items()]
    for side in sides:
        print(f"{side['version']}, load average {os.getloadavg()[0]:.1f}")
        for name, (middle, low, high) in side["seconds"].items():
            aim = f", aim {AIMS[name]:g}" if name in AIMS else ""
            print(f"  {name:<36} {middle:6.2f} s [{low:.2f}, {high:.2f}]{aim}")
    if args.output is not None:
        args.output.write_text(json.dumps({"rounds": args.rounds, "load": os.getloadavg(), "sides": sides}, indent=1))


if __name__ == "__main__":
    main()
