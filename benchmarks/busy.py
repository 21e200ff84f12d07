"""What a CPU engine does on cores that are busy: the same step in processes that differ in how their threads wait.

    python benchmarks/busy.py --rounds 15 --output benchmarks/results/busy.json
    python benchmarks/busy.py --busy 1 --rounds 15     # with that many busy processes beside

Each contender is a process of its own, because how OpenMP's threads wait is set when it starts. They take turns: only
one works at a time, so `--busy` and whatever else runs on the machine is all the competition there is. Plain ViT-B/16
with random weights, float32, one image. Ratios are taken round by round, with 95 % intervals.
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

CONTENDERS: dict[str, tuple[str, int, dict[str, str]]] = {
    "cpu, 1 thread": ("cpu", 1, {}),
    "cpu, 2 threads": ("cpu", 2, {}),
    "cpu, 2 threads, OMP_WAIT_POLICY=passive": ("cpu", 2, {"OMP_WAIT_POLICY": "passive"}),
    "openvino, 1 thread": ("openvino", 1, {}),
    "openvino, 2 threads": ("openvino", 2, {}),
}
BASE = "cpu, 1 thread"


def child(engine: str, threads: int) -> None:
    """Answer an image whenever a line comes in; say how long it took, in wall-clock and in processor seconds."""
    import torch

    from lessmore.cli.bench import PLAIN, BenchContender, setup_of, tower
    from lessmore.engines import build

    torch.set_num_threads(threads)
    vision = tower("ViT-B-16")[0]
    method = build(engine, "zeroshot", setup_of(vision, 102, BenchContender(PLAIN, "zeroshot", "none", 1.0)))
    image = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        method.predict(image)
        for _ in sys.stdin:
            start, spent = time.perf_counter(), time.process_time()
            method.predict(image)
            print(time.perf_counter() - start, time.process_time() - spent, flush=True)


class Contender:
    """A process that answers on demand."""

    def __init__(self, engine: str, threads: int, settings: dict[str, str]) -> None:
        command = [sys.executable, __file__, "--child", engine, str(threads)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), **settings}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.spent: list[float] = []
        self.ask()  # it is ready once it has answered
        self.spent.clear()

    def ask(self) -> float:
        """One image; its seconds."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        wall, spent = map(float, self.process.stdout.readline().split())
        self.spent.append(spent)
        return wall


def measured(rounds: int, busy: int) -> list[dict[str, Any]]:
    """A row per contender."""
    from lessmore.lab.latency import time_ratio

    beside = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
    made: dict[str, Contender] = {}
    times: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    try:
        for name, how in CONTENDERS.items():
            made[name] = Contender(*how)
        for turn in range(rounds):
            names = list(made)
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                times[name].append(made[name].ask())
    finally:
        for process in (*beside, *(one.process for one in made.values())):
            process.kill()
            process.wait()
    return [
        {
            "name": name,
            "ms": 1000 * statistics.median(times[name]),
            "processor_ms": 1000 * statistics.median(made[name].spent),
            "of_one_thread": list(time_ratio(times[name], times[BASE])),
        }
        for name in made
    ]


def main() -> None:
    """Measure, print, and write where told."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--busy", type=int, default=0, help="processes that do nothing but compute beside")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child[0], int(args.child[1]))
        return
    before = os.getloadavg()
    rows = measured(args.rounds, args.busy)
    for row in rows:
        value, low, high = row["of_one_thread"]
        print(f"{row['name']:<42}{row['ms']:9.0f} ms{row['processor_ms']:9.0f} ms{value:8.2f} ({low:.2f}–{high:.2f})")
    result = {
        "load": [before[0], os.getloadavg()[0]],
        "cores": os.cpu_count(),
        "busy": args.busy,
        "rounds": args.rounds,
    }
    if args.output:
        args.output.write_text(json.dumps({**result, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
