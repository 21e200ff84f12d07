"""Names of classes, files and models that are code in some format: read back as readers of the format see them."""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Callable
from pathlib import Path

from lessmore.lab.report.escape import csv_table, one_line, original
from lessmore.lab.report.write import to_html, to_latex, to_markdown
from tests.fuzz.outcomes import Outcome, Trial
from tests.unit.test_escape import Cells, cells_of_markdown, page, tex_cells

PIECES = (
    *("<script>window.hacked=1</script>", "<img src=x onerror=window.hacked=2>", "</td>", "</script>", "<!--", "-->"),
    *("]]>", "&lt;", "&#60;", "&", "<", ">", '"', "'", "`", "javascript:window.hacked=3", "<svg/onload=alert(1)>"),
    *("|", "||", "\\", "\\\\", "*", "**", "_", "~~", "[x](javascript:alert(1))", "![x](//x.invalid)", "$x^2$", "#"),
    *("=1+1", '=HYPERLINK("//x")', "@SUM(1)", "+1", "-1+1", "\t=1", "'=1", ";=1", ",", '"=1"', "cmd|' /C calc'!A0"),
    *("\\input{/etc/passwd}", "\\end{tabular}", "%", "{", "}", "^^M", "&", "\\\\[1em]", "*", "[2em]", "\\write18{ls}"),
    *("\x1b[31m", "\x1b]0;title\x07", "\r", "\n", "\x00", "\x9b31m", "\u202e", "\u2028", "\ufeff", "\udce4", "\x7f"),
    *("fox", "owl", "100 %", "é", "猫", "😀", " ", "1.5", "(+1.2 [0.4, 2.0])", "±", "–", "λ"),
)


def hostile_name(dice: random.Random) -> str:
    """A few pieces, or single signs."""
    if dice.random() < 0.2:
        return "".join(chr(dice.randrange(1, 0x250)) for _ in range(dice.randint(1, 12)))
    return "".join(dice.choice(PIECES) for _ in range(dice.randint(1, 5)))


def hostile_names(folder: Path, crafted: bool) -> Trial:
    """Three names in every place of a page; the cells that a parser finds must be the names, and nothing else."""
    formats = (_html, _markdown, _latex, _csv)

    def trial(dice: random.Random) -> tuple[Callable[[], bool | Outcome], str]:
        names = tuple(hostile_name(dice) for _ in range(3))
        check = dice.choice(formats)
        return lambda: check(names), f"{check.__name__} {names!r}"

    return trial


def _shown(name: str) -> str:
    return one_line(name)


def _html(names: tuple[str, ...]) -> bool:
    found, plain = (Cells(to_html(page(words), "x")) for words in (names, ("a", "b", "c")))
    text = [" ".join(cell.split()) for cell in found.cells]
    return (
        found.tags == plain.tags
        and len(text) == len(plain.cells)
        and all(text.count(_shown(name)) >= 3 for name in names if _shown(name))
    )


def _markdown(names: tuple[str, ...]) -> bool:
    rows = list(cells_of_markdown(to_markdown(page(names))))
    wanted = {_shown(name) for name in names}
    return len(rows) == 3 * 4 and {" ".join(row[0].split()) for row in rows} == {" ".join(w.split()) for w in wanted}


def _latex(names: tuple[str, ...]) -> bool:
    rows = list(tex_cells(to_latex(page(names))))
    return len(rows) == 3 * 4 and all(len(row) == 3 for row in rows)


def _csv(names: tuple[str, ...]) -> bool:
    text = csv_table({"name": name, "figure": -1.5} for name in names)
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    for delimiter in ",;\t":
        for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter):
            if any(cell[:1] in ("=", "+", "@", "\t", "\r") for cell in row):
                return False
    kept = [name.encode("utf-8", "replace").decode() for name in names]
    return [original(row["name"]) for row in rows] == kept
