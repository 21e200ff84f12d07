"""The table of docs/hardening.md: `python -m tests.fuzz --count 2000` mutates every kind that often.

Half of it is crafted: nonsense under a right checksum. `--kind WORD` chooses kinds that hold the word. Defects are told
after the table, and the exit code is then 1.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch

from tests.fuzz.kinds import KINDS
from tests.fuzz.outcomes import DEFECTS, Outcome, Tally, tally


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="mutations of each kind")
    parser.add_argument("--kind", default="", help="only kinds that hold this word")
    parser.add_argument("--seed", type=int, default=0, help="other mutations")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print("| kind | content | tried | refused | accepted, equal | traceback | silent change | hang | s |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|", flush=True)
    defects: list[str] = []
    for name in (name for name in KINDS if args.kind in name):
        for crafted in (False, True):
            started = time.perf_counter()
            found = _tried(name, crafted, args.count // 2, args.seed)
            defects += [f"{name}: {told}" for told in found.defects]
            figures = [sum(found.counts.values()), *(found.counts[one] for one in _ORDER)]
            cells = [name, "crafted" if crafted else "damaged", *(f"{n:,}" for n in figures)]
            print(f"| {' | '.join(cells)} | {time.perf_counter() - started:.0f} |", flush=True)
    print(*defects, sep="\n", file=sys.stderr)
    return 1 if defects else 0


_IN_MEMORY = "/dev/shm"
"""Where Linux keeps files in memory: a disk would take half of the time."""
_ORDER = (Outcome.REFUSED, Outcome.EQUAL, *DEFECTS)


def _tried(name: str, crafted: bool, count: int, seed: int) -> Tally:
    with tempfile.TemporaryDirectory(dir=_IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None) as folder:
        os.environ["LESSMORE_CACHE"] = f"{folder}/lessmore-cache"
        return tally(KINDS[name](Path(folder), crafted), count, seed)


if __name__ == "__main__":
    sys.exit(main())
