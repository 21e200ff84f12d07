"""Collect the summaries of many runs into one table: Markdown, LaTeX, or CSV with every figure."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from lessmore.cli.common import OK, SOME_FAILED, check_writable, new_parser
from lessmore.errors import ConfigError
from lessmore.files import replacing
from lessmore.report.formats import to_csv, to_latex, to_markdown
from lessmore.report.tables import Summary, table

SCHEMA = "lessmore.run/1"
EXAMPLES = """examples:
  lessmore build results
  lessmore build results --output table.tex
  lessmore build results/*eurosat* more-results --output all.csv

Markdown and LaTeX have a row per setting and a column per data set; the best of each model is bold. CSV has a line per
run with all figures, for further work. Runs that are not finished are left out and listed, and the command then ends
with exit code 3 instead of 0.
"""
ENDINGS = (".md", ".tex", ".csv")


def parser() -> ArgumentParser:
    """Arguments of `lessmore build`."""
    args = new_parser(__doc__, EXAMPLES)
    args.add_argument("runs", type=str, nargs="+", help="folders of runs, searched to any depth, or summary files")
    args.add_argument("--output", "-o", type=str, default="-", help="table.md, .tex or .csv; - prints Markdown")
    return args


def run(args: Namespace) -> int:
    """Write the table; 0, or 3 if some runs are not finished."""
    output = None if args.output == "-" else Path(args.output)
    if output is not None:
        check_writable(output, ENDINGS)
    summaries, left_out = collect([Path(name) for name in args.runs])
    text = _write(summaries, left_out, ".md" if output is None else output.suffix.lower())
    if output is None:
        print(text, end="")
    else:
        with replacing(output) as new:
            new.write_text(text, encoding="utf-8")
    for name in left_out:
        print(f"lessmore build: left out {name}", file=sys.stderr)
    return SOME_FAILED if left_out else OK


def _write(summaries: list[Summary], left_out: list[str], ending: str) -> str:
    if ending == ".csv":
        return to_csv(summaries)
    arranged = table(summaries, left_out)
    return to_latex(arranged) if ending == ".tex" else to_markdown(arranged)


def collect(paths: Sequence[Path]) -> tuple[list[Summary], list[str]]:
    """Summaries of finished runs, each once, and the names of the others with what is wrong with them."""
    files = {file.resolve(): file for path in paths for file in _summary_files(path)}
    found: dict[str, Summary] = {}
    left_out = []
    for file in files.values():
        summary, problem = _read(file)
        if problem:
            left_out.append(f"{file.parent.name} ({problem})")
        else:
            found[summary["key"]] = summary
    if not found:
        raise ConfigError(
            f"there is no finished run in {', '.join(map(str, paths))}; give the --output of lessmore run"
        )
    return list(found.values()), left_out


def _summary_files(path: Path) -> Iterator[Path]:
    """Where summaries are or, of runs that have begun, would be."""
    if path.is_file():
        yield path
    elif path.is_dir():
        yield from sorted({file.parent / "summary.json" for file in path.rglob("s*.json") if file.stem in _MARKS})
    else:
        raise ConfigError(f"there is no file or folder {path}; check the path")


_MARKS = ("spec", "summary")
_PARTS = ("key", "spec", "dataset", "metrics", "provenance")


def _read(file: Path) -> tuple[dict[str, Any], str]:
    try:
        summary = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}, "not finished"
    except (OSError, ValueError):
        return {}, "not readable"
    if not isinstance(summary, dict) or summary.get("schema") != SCHEMA or not all(part in summary for part in _PARTS):
        return {}, f"not a summary of the form {SCHEMA}"
    return summary, "" if summary["metrics"]["n"] else "no image could be read"
