"""The table of docs/serve.md, made from benchmarks/results/serve.json.

python benchmarks/serve_numbers.py           # writes docs/serve.md
python benchmarks/serve_numbers.py --check   # exit code 1 if it is not up to date
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lessmore.storage.files import replacing

REPOSITORY = Path(__file__).resolve().parents[1]
PAGE, RESULTS = REPOSITORY / "docs" / "serve.md", REPOSITORY / "benchmarks" / "results" / "serve.json"
BEGIN, END = "<!-- numbers: benchmarks/serve.py -->", "<!-- end of the numbers -->"
Found = Any


def main() -> int:
    """Write or check the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, say whether the table is up to date")
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    if not parser.parse_args().check:
        write_numbers(results)
    elif PAGE.read_text(encoding="utf-8") != page_with(results, PAGE.read_text(encoding="utf-8")):
        print("docs/serve.md is not what benchmarks/results/serve.json says", file=sys.stderr)
        return 1
    return 0


def write_numbers(results: Mapping[str, Any]) -> None:
    """Put the table into the page."""
    text = page_with(results, PAGE.read_text(encoding="utf-8"))
    with replacing(PAGE) as new:
        new.write_text(text, encoding="utf-8")


def page_with(results: Mapping[str, Any], page: str) -> str:
    """The page with the table of these results; without results it stays as it is."""
    if not results:
        return page
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{numbers(results)}\n{END}{rest.partition(END)[2]}"


def numbers(results: Mapping[str, Any]) -> str:
    """The table: what was measured, and the figures."""
    rows = ["| what | figure |", "|---|---|"]
    for part, make in ROWS.items():
        if part in results:
            rows += [f"| {what} | {figure} |" for what, figure in make(results[part]["found"])]
    any_part = next(iter(results.values()))["machine"]
    about = f"{any_part['cores']} cores, {any_part['threads']} threads, torch {any_part['torch']}"
    loads = [one["machine"]["load before"] for one in results.values()]
    told = f"load of the machine before the parts {min(loads)} to {max(loads)}"
    return "\n".join([*rows, "", f"On {about}; {told}. `python -m benchmarks.serve` measures them."])


def _overhead(found: Found) -> list[tuple[str, str]]:
    rates = ", ".join(f"{name} {rate}" for name, rate in found["images/s"].items())
    low, middle, high = (f"{100 * one:.1f}" for one in found["of the bare engine"])
    where = f"{found['shape']} shape, {found['clients']} clients, JPEGs of 640 x 480"
    return [
        (f"images/s, {where}", rates),
        (f"images/s of the bare engine's, median of {found['rounds']} rounds", f"{middle} % [{low}, {high}]"),
    ]


def _load(found: Found) -> list[tuple[str, str]]:
    return [
        (f"`tiny`, {one['clients']} streams, {one['server']}",
         f"{one['requests/s']:.0f} requests/s, p50 {one['p50 ms']} ms, p99 {one['p99 ms']} ms, "
         f"{one['failures']} failures")
        for one in found
    ]  # fmt: skip


def _eviction(found: Found) -> list[tuple[str, str]]:
    what = f"first answer of an evicted stream; {found['streams']:,} registered, {found['resident']} in memory"
    cold = f"median {found['evicted: median ms']} ms, p99 {found['evicted: p99 ms']} ms"
    return [(what, f"{cold}; in memory {found['in memory: median ms']} ms")]


def _journal(found: Found) -> list[tuple[str, str]]:
    what = f"journal's share of a step, {found['model']}, {found['classes']} classes"
    return [
        (what, f"{100 * found['share']:.2f} % ({found['record ms']} of {found['step ms']} ms)"),
        ("journal, bytes per image", f"{found['bytes per image']:,}"),
    ]


def _restart(found: Found) -> list[tuple[str, str]]:
    what = f"restart of {found['streams']} streams, each with {found['images each']:,} images in its journal"
    return [(what, f"{found['seconds']} s")]


def _kills(found: Found) -> list[tuple[str, str]]:
    what = f"SIGKILL under load, {found['kills']} times, {found['streams']} streams, {found['answers']:,} answers"
    told = f"{found['missing']} missing, {found['twice']} twice, {found['differing bytes']} differing bytes"
    return [(what, told)]


ROWS: dict[str, Callable[[Found], list[tuple[str, str]]]] = {
    "overhead": _overhead,
    "load": _load,
    "eviction": _eviction,
    "journal": _journal,
    "restart": _restart,
    "kills": _kills,
}


if __name__ == "__main__":
    sys.exit(main())
