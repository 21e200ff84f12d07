"""Names of classes, files and models from an adversary, in every format, as readers of the format see them."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from html.parser import HTMLParser

import pytest

from lessmore.lab.report.escape import csv_table, harmless, latex, markdown, one_line, original
from lessmore.lab.report.grid import TableGrid, TablePage, Text
from lessmore.lab.report.write import to_html, to_latex, to_markdown

NAMES = (
    "plain name",
    "a|b || c\\|d",
    "<script>alert(1)</script>",
    "<!-- & &lt;b&gt; &#60;",
    "[click](javascript:alert(1)) ![x](http://x.invalid/y.png)",
    "[1](2)",
    "**bold** _it_ ~~gone~~ `code` $x^2$ # head",
    '=HYPERLINK("http://x.invalid";"a")',
    "@SUM(1+1)*cmd|' /C calc'!A0",
    "-2+3",
    "'=quoted",
    "x;=1+1\t=2",
    "\\input{/etc/passwd} \\end{tabular} 50% of $x$ #1 {y} ~z^ a_b & c",
    "[2em] first in the row",
    "* starred",
    "100 % of μ → λ ± 3 – 5",
    "tea ☕ 猫 é",
)
BROKEN = ("two\nlines\r\nand \x1b[31mred\x07", "abc\u202edcba", "not utf-8 \udce4")
TEX_SIGNS = {
    "textbackslash": "\\",
    "textasciitilde": "~",
    "textasciicircum": "^",
    "pm": "±",
    "dagger": "†",
    "ddagger": "‡",
    "lambda": "λ",
    "beta": "β",
    "to": "→",
}


def page(names: tuple[str, ...]) -> TablePage:
    """Every name in every place that a name can stand in."""
    lines = tuple((Text(name), Text(name, strong=True, rest=name), Text("81.0 (+1.2 [0.4, 2.0])")) for name in names)
    grids = [TableGrid(name, (name, name, "figures"), lines, words=2) for name in names]
    return TablePage(names[0], tuple(grids), names, command=f"lessmore reproduce x --model {names[-1]}")


def cells_of_markdown(text: str) -> Iterator[list[str]]:
    """Rows of all tables, their inline marks taken away, as a CommonMark parser reads them."""
    parser = pytest.importorskip("markdown_it").MarkdownIt("gfm-like", {"linkify": False})
    row: list[str] = []
    for token in parser.parse(text):
        if token.type == "tr_open":
            row = []
        elif token.type == "tr_close":
            yield row
        elif token.type == "inline":
            kinds = {child.type for child in token.children}
            assert kinds <= {"text", "text_special", "strong_open", "strong_close", "softbreak"}, kinds
            row.append("".join(child.content for child in token.children))
        else:
            assert not token.type.startswith("html")


def test_markdown_reads_as_it_was_meant() -> None:
    rows = [row for row in cells_of_markdown(to_markdown(page(NAMES)))]
    size = 1 + len(NAMES)
    assert len(rows) == len(NAMES) * size
    for n, row in enumerate(rows):
        name = one_line(NAMES[n // size] if n % size == 0 else NAMES[n % size - 1])
        told = [name, name, "figures"] if n % size == 0 else [name, f"{name} {name}", "81.0 (+1.2 [0.4, 2.0])"]
        assert row[:3] == told
    assert len({len(row) for row in rows[1:size]}) == 1


def tex_cells(text: str) -> Iterator[list[str]]:
    """Rows of all tabulars as TeX splits them, with its category codes; fails at whatever is none of our commands."""
    for body in re.findall(r"\\begin\{tabular\}\{[lr]+\}(.*?)\\end\{tabular\}", text, re.DOTALL):
        row, cell, depth = [], "", 0
        tokens = re.findall(r"\\[A-Za-z]+ *|\\.|[^\\]", body, re.DOTALL)
        after_break = False
        for token in tokens:
            sign = token.strip()
            if after_break and sign:
                assert sign not in "[*", "an optional argument of the line break before"
                after_break = False
            if token == "&" and not depth:
                row, cell = [*row, cell], ""
            elif token == "\\\\":
                yield [" ".join(part.split()) for part in (*row, cell)]
                row, cell, after_break = [], "", True
            elif sign in ("\\toprule", "\\midrule", "\\bottomrule"):
                after_break = True
            elif sign.startswith("\\") and sign[1:] in TEX_SIGNS:
                cell += TEX_SIGNS[sign[1:]]
            elif sign.startswith("\\") and len(sign) == 2 and sign[1] in "&%$#_{}":
                cell += sign[1]
            elif token in "{}":
                depth += 1 if token == "{" else -1
            else:
                assert token == "$" or sign == "\\textbf" or token not in "\\%#^_~&", token
                cell += "" if token == "$" or sign == "\\textbf" else token
        assert depth == 0 and not cell.strip()


def test_latex_reads_as_it_was_meant() -> None:
    text = to_latex(page(NAMES))
    assert all(line.startswith(("% needs", "% lessmore")) for line in text.splitlines() if line.startswith("%"))
    rows = list(tex_cells(text))
    size = 1 + len(NAMES)
    assert len(rows) == len(NAMES) * size
    dashes = {"–": "--", "−": "-"}
    for n, row in enumerate(rows):
        name = one_line(NAMES[n // size] if n % size == 0 else NAMES[n % size - 1])
        for sign, instead in dashes.items():
            name = name.replace(sign, instead)
        assert row[0] == name and len(row) == 3
        if n % size:
            assert row[1] == f"{name} {name}"


class Cells(HTMLParser):
    """Texts of the cells, and every tag. What a narrow screen folds under a cell stands in others and is left out."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.folded = False
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert all(value is None or name in ATTRIBUTES or name == "aria-label" for name, value in attrs), attrs
        if tag in ("td", "th"):
            self.cells.append("")
        self.folded |= tag == "small" and ("class", "narrow") in attrs

    def handle_endtag(self, tag: str) -> None:
        self.folded &= tag != "small"

    def handle_data(self, data: str) -> None:
        if self.cells and not self.folded:
            self.cells[-1] += data


ATTRIBUTES = {
    "http-equiv",
    "class",
    "scope",
    "id",
    "tabindex",
    "role",
    "lang",
    "charset",
    "name",
    "content",
    "rel",
    "href",
}


def test_html_reads_as_it_was_meant() -> None:
    found = Cells(to_html(page(NAMES), "a test"))
    assert not found.tags & {"script", "img", "a", "iframe"}
    told = [cell for cell in found.cells if cell]
    for name in NAMES:
        assert told.count(name) >= len(NAMES)


def test_csv_reads_as_it_was_meant_and_holds_no_formula() -> None:
    text = csv_table({"name": name, "figure": -1.5} for name in NAMES)
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [original(row["name"]) for row in rows] == list(NAMES)
    assert {row["figure"] for row in rows} == {"-1.5"}
    for delimiter in ",;\t":  # as spreadsheets of other countries split
        for row in csv.reader(io.StringIO(text), delimiter=delimiter):
            assert not any(re.match(r"[=+@\t\r]|-(?!1\.5)", cell) for cell in row[:1])


@pytest.mark.parametrize("text", ["=1", "'=1", "''@x", "'plain", "plain", "＝1", "\t=1", ""])
def test_a_quoted_formula_is_found_again(text: str) -> None:
    assert original(harmless(text)) == text
    assert harmless(-1.5) == -1.5 and harmless(None) is None


@pytest.mark.parametrize("text", BROKEN)
def test_control_signs_and_halves_of_letters_are_shown_as_such(text: str) -> None:
    table = csv_table([{"name": text}])
    for written in (to_markdown(page((text,))), to_latex(page((text,))), to_html(page((text,)), "x"), table):
        assert written.encode("utf-8")
    for written in (to_markdown(page((text,))), to_latex(page((text,))), markdown(text), latex(text)):
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202e]", written)
    assert "\ufffd" in one_line(text) and "\n" not in one_line(text)
    assert len(to_latex(page((text,))).splitlines()) == len(to_latex(page(("x",))).splitlines())
