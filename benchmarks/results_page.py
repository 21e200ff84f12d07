"""The tables of docs/results.md, made of the committed JSON and of a few sentences per table written by hand.

    python benchmarks/results_page.py           # writes docs/results.md
    python benchmarks/results_page.py --check   # exit code 1 if it is not up to date

benchmarks/results/reproduce/MODEL/TABLE.json is what `lessmore reproduce` writes, benchmarks/results/prose/TABLE.md
(or, for one model alone, TABLE.MODEL.md) says what to make of it. Only what stands between the two marks is touched.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lessmore.errors import ConfigError
from lessmore.lab.report.escape import markdown
from lessmore.lab.report.grid import TablePage
from lessmore.lab.report.write import markdown_table
from lessmore.paper.kinds import of_kinds
from lessmore.paper.show import table_page
from lessmore.paper.stored import read_table
from lessmore.storage.files import replacing

REPOSITORY = Path(__file__).resolve().parents[1]
BEGIN = "<!-- tables: made by benchmarks/results_page.py; edit prose and reproduce in benchmarks/results instead -->"
END = "<!-- end of the tables -->"
PROSE = Path("benchmarks", "results", "prose")
FIELD_BEGIN, FIELD_END = "<!-- the field: made likewise -->", "<!-- end of the field -->"


def main() -> int:
    """Write or check the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, say whether the page is up to date")
    check = parser.parse_args().check
    target = REPOSITORY / "docs" / "results.md"
    before = target.read_text(encoding="utf-8")
    after = spliced(before, REPOSITORY)
    if check or before == after:
        print("up to date" if before == after else f"{target.name} is not what the JSON says; run this without --check")
        return int(before != after)
    with replacing(target) as new:
        new.write_text(after, encoding="utf-8")
    return 0


def spliced(text: str, repository: Path) -> str:
    """The page with its tables as the JSON has them now."""
    if BEGIN not in text:
        raise ConfigError(f"the page lacks its marks; put {BEGIN} and {END} where the tables belong")
    if FIELD_BEGIN in text:
        text = between(text, FIELD_BEGIN, FIELD_END, field(repository))
    return between(text, BEGIN, END, tables(repository))


def between(text: str, begin: str, end: str, content: str) -> str:
    """The text with something else between two marks."""
    before, _, rest = text.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ConfigError(f"the page lacks its marks; put {begin} and {end} where the tables belong")
    return f"{before}{begin}\n{content}{end}{after}"


def stored(repository: Path) -> list[list[Mapping[str, Any]]]:
    """The committed tables of every model."""
    places = sorted((repository / "benchmarks" / "results" / "reproduce").glob("*"))
    return [read_table(folder) for folder in places if any(folder.glob("*.json"))]


def field(repository: Path) -> str:
    """Tables of kinds of streams, model after model."""
    found = [value for values in stored(repository) for value in values if of_kinds(value)]
    parts = [part for v in found for part in of_table(v, table_page(v), repository / PROSE, [])]
    return "".join(f"\n{part}\n" for part in parts)


def tables(repository: Path) -> str:
    """All other tables, model after model."""
    groups = [[value for value in values if not of_kinds(value)] for values in stored(repository)]
    parts = [part for values in groups if values for part in of_model(values, repository / PROSE)]
    return "".join(f"\n{part}\n" for part in parts)


def of_model(values: list[Mapping[str, Any]], prose: Path) -> list[str]:
    """Heading, what holds for all tables, and the tables."""
    pages = [table_page(value) for value in values]
    common = [note for note in pages[0].notes if len(pages) > 1 and all(note in other.notes for other in pages)]
    parts = [f"## The paper's tables, with {values[0]['model']}", *map(markdown, common)]
    for value, shown in zip(values, pages, strict=True):
        parts += of_table(value, shown, prose, common)
    return parts


def of_table(value: Mapping[str, Any], shown: TablePage, prose: Path, said: list[str]) -> list[str]:
    """Heading, what we make of it, command, grids, and the notes that are not said above."""
    words = [prose / f"{value['table']}.{value['model']}.md", prose / f"{value['table']}.md"]
    written = next((file.read_text(encoding="utf-8").strip() for file in words if file.is_file()), "")
    notes = [markdown(note) for note in shown.notes if note not in said]
    parts = [f"### {markdown(value['title'])}", written, f"```\n{shown.command}\n```"]
    return [part for part in (*parts, *(markdown_table(grid).rstrip() for grid in shown.grids), *notes) if part]


if __name__ == "__main__":
    sys.exit(main())
