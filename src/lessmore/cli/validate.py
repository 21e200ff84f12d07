"""Check that data sets are complete and readable before you spend hours on them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from lessmore.cli.common import FAILED, OK, add_json, new_parser, say, say_json
from lessmore.data.registry import expand_names
from lessmore.data.validate import Report, validate
from lessmore.errors import ConfigError

EXAMPLES = """examples:
  lessmore validate eurosat caltech101 --root data
  lessmore validate cross_dataset --root data --json
  lessmore validate birds.yaml folder:photos manifest:list.csv

Checks that every file exists, compares counts and class names with what is known of the set, and decodes a sample of
the images. The exit code is 1 if anything is wrong. Names and groups: lessmore ls datasets, lessmore ls groups.
"""


def parser() -> ArgumentParser:
    """Arguments of `lessmore validate`."""
    args = new_parser(__doc__, EXAMPLES)
    args.add_argument("datasets", type=str, nargs="+", help="names, groups, patterns, YAML files, folder: or manifest:")
    args.add_argument("--root", type=str | None, default=None, help="the directory that holds the data sets")
    args.add_argument("--sample", type=int, default=100, help="images of each data set to decode")
    args.add_argument("--seed", type=int, default=0, help="seed of the sample")
    add_json(args)
    args.add_argument("--quiet", action="store_true", help="no progress bars")
    return args


def run(args: Namespace) -> int:
    """Check the data sets one after another and print each result."""
    if args.sample < 0:
        raise ConfigError(f"--sample must be 0 or more, not {args.sample}")
    root = None if args.root is None else Path(args.root)
    reports = []
    for name in expand_names(args.datasets):
        reports.append(validate(name, root, args.sample, args.seed, args.quiet))
        if not args.json:
            say(_text(reports[-1]))
    if args.json:
        say_json([{**asdict(r), "ready": r.ready} for r in reports])
    return OK if all(report.ready for report in reports) else FAILED


def _text(report: Report) -> str:
    if report.ready:
        return f"{report.dataset}: ready, {report.images:,} images, {report.classes} classes, {report.decoded} decoded"
    lines = [f"{report.dataset}: not ready", *report.problems]
    # The problems of a set that could not be opened already say what it needs.
    return "\n  ".join([*lines, f"to get it: {report.obtain}"] if report.images else lines)
