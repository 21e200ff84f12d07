"""Collect the summaries of many runs into one table: Markdown, LaTeX, HTML, or CSV with every number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from lessmore.cli.common import OK, SOME_FAILED, add_json, check_writable, new_parser, say, say_json, writing
from lessmore.lab.report.escape import csv_table
from lessmore.lab.report.runs import find_runs
from lessmore.lab.report.tables import SummaryView, result_page, result_table, run_lines
from lessmore.lab.report.write import to_html, to_latex, to_markdown
from lessmore.storage.files import replacing

EXAMPLES = """examples:
  lessmore build results
  lessmore build results --output table.tex
  lessmore build results/*eurosat* more-results --output all.csv

Markdown, LaTeX and HTML have a row per setting and a column per data set; the best of each model is bold. CSV has a
line per run with every number, for further analysis. Unfinished runs are left out and listed, and the command then ends
with exit code 3 instead of 0.
"""
ENDINGS = (".md", ".tex", ".html", ".csv")


def parser() -> ArgumentParser:
    """Arguments of `lessmore build`."""
    args = new_parser(__doc__, EXAMPLES)
    args.add_argument("runs", type=str, nargs="+", help="folders of runs, searched to any depth, or summary files")
    add_json(args)
    args.add_argument("--output", "-o", type=str, default="-", help="table.md, .tex, .html or .csv; - prints Markdown")
    return args


def run(args: Namespace) -> int:
    """Write the table; 0, or 3 if some runs are not finished."""
    output = None if args.output == "-" else Path(args.output)
    if output is not None:
        check_writable(output, ENDINGS)
    with writing(output):
        return _run(args, output)


def _run(args: Namespace, output: Path | None) -> int:
    summaries, left_out = collect([Path(name) for name in args.runs])
    if output is not None:
        with replacing(output) as new:
            new.write_text(_write(summaries, left_out, output.suffix.lower()), encoding="utf-8")
    if args.json:
        say_json({"runs": list(run_lines(summaries)), "left_out": left_out})
    elif output is None:
        print(_write(summaries, left_out, ".md"), end="")
    for name in left_out:
        say(f"lessmore build: left out {name}", error=True)
    return SOME_FAILED if left_out else OK


def _write(summaries: list[SummaryView], left_out: list[str], ending: str) -> str:
    if ending == ".csv":
        return csv_table(run_lines(summaries))
    page = result_page(result_table(summaries, left_out))
    if ending == ".html":
        return to_html(replace(page, title="Results"), "lessmore build")
    return to_latex(page) if ending == ".tex" else to_markdown(page)


def collect(paths: Sequence[Path]) -> tuple[list[SummaryView], list[str]]:
    """Summaries of finished runs, each once, and the names of the others with what is wrong with them."""
    found, left_out = find_runs(paths)
    return [run.summary for run in found], left_out
