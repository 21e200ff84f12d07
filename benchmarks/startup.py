"""What a user waits for before the first answer: import, help, and the embedded model's first answer.

    python -m benchmarks.startup --rounds 9 --output benchmarks/results/startup.json

Every measurement is a process of its own, in turns, with warm files, by the clock. Torch is imported first, so that
what `import lessmore` adds, with all that an adapter needs, is seen alone; the first answer contains torch's import.
Medians of the rounds, with the smallest and the largest. Run it on an idle machine.

`--against PYTHON` measures another environment beside this one, such as one with an older lessmore. `--page
docs/speed.md` puts the table into that page.
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

from benchmarks.results_page import between

BEGIN, END = "<!-- numbers: benchmarks/startup.py -->", "<!-- end of the numbers of startup -->"
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


def table(results: dict[str, Any]) -> str:
    """The figures as Markdown: a line per measurement, a column per environment."""
    sides = results["sides"]
    lines = [f"| seconds | aim | {' | '.join(side['version'] for side in sides)} |", "|---|---|" + "---|" * len(sides)]
    for name in sides[0]["seconds"]:
        cells = ["{:.2f} [{:.2f}, {:.2f}]".format(*side["seconds"][name]) for side in sides]
        lines.append(f"| {name} | {AIMS.get(name, '–')} | {' | '.join(cells)} |")
    load = f"load average {results['load'][0]:.1f} at the end"
    told = f"Medians of {results['rounds']} rounds, [smallest, largest]; {load}."
    return "\n".join([*lines, "", told]) + "\n"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--against", default=None, help="Python of another environment")
    parser.add_argument("--output", type=Path, default=None)
    parser.add_argument("--page", type=Path, default=None, help="put the table into this page, between its marks")
    args = parser.parse_args()
    pythons = [sys.executable, *([args.against] if args.against else [])]
    sides = [summary(python, values) for python, values in measure(pythons, args.rounds).items()]
    results = {"rounds": args.rounds, "load": os.getloadavg(), "sides": sides}
    text = table(results)
    print(text)
    if args.output is not None:
        args.output.write_text(json.dumps(results, indent=1))
    if args.page is not None:
        args.page.write_text(between(args.page.read_text(encoding="utf-8"), BEGIN, END, text), encoding="utf-8")


if __name__ == "__main__":
    main()
