"""Compare two runs image by image: the difference of their accuracies with its interval."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from lessmore.cli.common import OK, SOME_FAILED, add_json, new_parser, say, say_json
from lessmore.lab.compare import PairedRuns, compare_runs

EXAMPLES = """examples:
  lessmore compare runs-before runs-after
  lessmore compare runs/eurosat_tiny_tca_tca_R0.9_iid_seed0_0123 runs/eurosat_tiny_tda_none_R0.9_iid_seed0_4567
  lessmore compare baseline candidate --json

A run of the first folder is paired with the run of the second that saw the same images in the same order. The
difference is the second's accuracy minus the first's, in points, with its 95 % bootstrap interval over the images that
both answered.
Each stream has a line of its own: further orders of the same images are no further images. Runs without a partner are
listed, and the command then ends with exit code 3.
"""


def parser() -> ArgumentParser:
    """Arguments of `lessmore compare`."""
    args = new_parser(__doc__, EXAMPLES)
    args.add_argument("first", type=str, help="a run, or a folder of runs")
    args.add_argument("second", type=str, help="another")
    add_json(args)
    return args


def run(args: Namespace) -> int:
    """Print a line per pair; 0, or 3 if some runs have no partner."""
    pairs, lonely = compare_runs(Path(args.first), Path(args.second))
    if args.json:
        say_json({"pairs": [asdict(pair) for pair in pairs], "without_partner": lonely})
    else:
        say("\n".join(map(comparison_line, pairs)))
    for name in lonely:
        say(f"lessmore compare: {name} has no partner", error=True)
    return SOME_FAILED if lonely else OK


def comparison_line(pair: PairedRuns) -> str:
    """A pair in one line."""
    low, high = pair.difference_ci
    left = f"; {pair.alone} images with one answer left out" if pair.alone else ""
    return (
        f"{pair.stream} seed {pair.seed}: {100 * pair.first_accuracy:.2f} % → {100 * pair.second_accuracy:.2f} %, "
        f"{100 * pair.difference:+.2f} [{100 * low:+.2f}, {100 * high:+.2f}] points on {pair.images} images; "
        f"only the first right {pair.only_first_right}, only the second {pair.only_second_right}, "
        f"McNemar p = {pair.mcnemar_p:.3g}{left}"
    )
