"""Tables as a page in a browser: hundreds of names that are code elsewhere are texts, and nothing runs or loads."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from lessmore.lab.report.escape import one_line
from lessmore.lab.report.grid import TableGrid, TablePage, Text
from lessmore.lab.report.write import to_html
from tests.fuzz.names import hostile_name
from tests.web.chromium import Page

pytestmark = pytest.mark.browser
TAGS = "HTML HEAD META LINK TITLE STYLE BODY MAIN FOOTER H1 H2 P CODE DIV TABLE THEAD TBODY TR TH TD B SMALL SPAN"
NAMES = tuple(hostile_name(random.Random(f"page {i}")) for i in range(300))


def test_hostile_names_are_texts(tmp_path: Path) -> None:
    lines = tuple((Text(name), Text(name, strong=True, rest=name), Text(name)) for name in NAMES)
    grid = TableGrid(NAMES[0], (NAMES[1], NAMES[2], NAMES[3]), lines, words=2, below=NAMES[4:7])
    file = tmp_path / "page.html"
    file.write_text(to_html(TablePage(NAMES[7], (grid,), NAMES, command=NAMES[8]), NAMES[9]), encoding="utf-8")
    with Page(tmp_path / "profile") as page:
        page.open(file)
        assert page.complaints == []
        assert page.requests == [file.as_uri()]
        assert page.do("window.hacked") is None
        known = set(TAGS.split())
        assert set(page.do("[...new Set([...document.querySelectorAll('*')].map(e => e.tagName))]")) <= known
        assert page.do("document.querySelectorAll('tbody tr').length") == len(NAMES)
        cells = page.do("[...document.querySelectorAll('tbody tr')].map(r => r.children[0].firstChild.textContent)")
        assert [" ".join(one_line(cell).split()) for cell in cells] == [one_line(name) for name in NAMES]


@pytest.mark.parametrize("width", [360, 400])
def test_accuracy_and_gain_are_in_sight_on_a_telephone(width: int, tmp_path: Path) -> None:
    """Four columns of words came before the first number."""
    model, method = "a_long_folder_of_models/one", "matched zero-shot"
    line = (Text(model), Text(method), Text("none"), Text("default"), Text("68.56", True, "± 5.18 (+12.02 ± 7.36)"))
    head = ("model", "method", "reducer", "preset", "mixture:contrast:4,gaussian_noise:3,defocus_blur:2")
    file = tmp_path / "page.html"
    file.write_text(to_html(TablePage("Results", (TableGrid("", head, (line,), words=4),), ()), "a test"))
    with Page(tmp_path / "profile") as page:
        page.open(file, width=width)
        assert page.do("document.querySelector('td:last-child').getBoundingClientRect().right") <= width
        assert page.text("tbody th").split("\n") == [model, f"{method}, none, default"]
        page.open(file, width=1280)
        assert page.text("tbody th") == model, "words have columns of their own here"
        assert page.do("[...document.querySelectorAll('td')].every(e => e.getBoundingClientRect().width > 0)")


def test_the_rule_of_the_page_stops_what_would_slip_through(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    text = to_html(TablePage("x", (), ()), "a test").replace("</main>", "<script>window.hacked = 1</script></main>")
    file.write_text(text.replace("</main>", "<img src='http://127.0.0.1:9/x.png'></main>"), encoding="utf-8")
    with Page(tmp_path / "profile") as page:
        page.open(file)
        assert page.do("window.hacked") is None
        assert any("Content Security Policy" in complaint for complaint in page.complaints)
