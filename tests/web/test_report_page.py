"""The report in a browser: 5,000 rows, real keys and clicks, hostile names, nothing asked of any network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchmetrics")
pytest.importorskip("scipy")

from PIL import Image

from lessmore.lab.report.album import Album, AlbumEntry, Tokens
from lessmore.lab.report.html import render_report
from lessmore.lab.report.runs import find_runs
from lessmore.lab.report.tokens import jpeg_uri
from tests.synthetic_runs import write_run
from tests.web.chromium import Page

pytestmark = pytest.mark.browser

ROWS = 5_000
EVIL = [
    "</script><script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 2'>",
    "\"'&lt;b&gt; ]]> <!-- \u2028 end",
    "javascript:window.hacked=3",
    "plain name",
]
GRID = 4


def album(rows: list[dict[str, Any]], pictures: int) -> Album:
    """Pictures of the first images: their patches are kept, then merged, then pruned."""
    first = [row for row in rows if "error" not in row][:pictures]
    picture = jpeg_uri(Image.new("RGB", (32, 32), (250, 250, 250)), 32)
    maps = ("." * 16, "aabb" + "." * 12, "aabb" + "#" * 12)
    tokens = {row["i"]: Tokens((3, 6, 9), maps, (16, 14, 2)) for row in first}
    entries = tuple(AlbumEntry(row["prediction"], row, row["entropy"], picture) for row in first[:9])
    return Album(tuple(EVIL), {row["i"]: picture for row in first}, tokens, entries, len(entries), ("a <b>note</b>",))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    write_run(folder / "runs", ROWS, len(EVIL))
    order = "mixture:contrast:4,gaussian_noise:3,defocus_blur:2,none"
    write_run(folder / "runs", 60, len(EVIL), preset="paper", order=order)
    runs, _ = find_runs([folder / "runs"])
    runs.sort(key=lambda run: -len(run.rows))
    page = folder / "report.html"
    page.write_text(render_report(runs, [album(run.rows, 20) for run in runs], [EVIL[0]]), encoding="utf-8")
    return page


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with Page(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def page(browser: Page, file: Path) -> Iterator[Page]:
    """The page as a reader opens it; whatever a test does, nothing may complain and no request may leave."""
    browser.complaints.clear()
    browser.requests.clear()
    browser.open(file)
    browser.do("document.getElementById('pick').value = '0'")  # it opens on the run that differs most
    browser.do("document.getElementById('pick').dispatchEvent(new Event('change'))")
    yield browser
    assert browser.complaints == []
    assert all(url.startswith((file.as_uri(), "data:")) for url in browser.requests)
    assert browser.do("window.hacked") is None


def counted(page: Page) -> int:
    return int(page.text("#count").split(" of ")[0].replace(",", ""))


def truth(page: Page, test: str) -> int:
    """How many samples of the first run pass a test, counted from the data."""
    script = f"(r => r.label.filter((_, i) => {test}).length)(JSON.parse(document.getElementById('data').textContent)"
    return int(page.do(f"{script}.runs[0])"))


def test_five_thousand_rows_in_a_small_page(page: Page, file: Path) -> None:
    assert file.stat().st_size < 1_000_000
    assert page.text("#count") == "5,000 of 5,000 images"
    assert page.do("document.querySelectorAll('#list [role=option]').length") == 50
    assert page.text("#place") == "page 1 of 100"
    assert page.do("document.querySelector('#list [role=option]').getAttribute('aria-setsize')") == "5000"
    page.click("#next")
    assert page.text("#place") == "page 2 of 100"


def test_filters(page: Page) -> None:
    fixed = truth(page, "r.zero[i] !== r.label[i] && r.after[i] === r.label[i]")
    broken = truth(page, "r.zero[i] === r.label[i] && r.after[i] !== r.label[i] && r.after[i] >= 0")
    page.click("#verdicts label:has([value=fixed])")
    assert counted(page) == fixed > 100
    assert "fixed" in page.text("#shown-title")
    page.click("#verdicts label:has([value=broken])")
    assert counted(page) == broken > 100
    page.do("document.getElementById('domain').focus()")
    page.press("ArrowDown")
    both = truth(page, "r.zero[i] === r.label[i] && r.after[i] !== r.label[i] && r.after[i] >= 0 && r.domain[i] === 0")
    assert counted(page) == both < broken
    page.click("#verdicts label:has([value=failed])")
    page.do("document.getElementById('domain').focus()")
    page.press("ArrowUp")
    assert counted(page) == 1
    assert "is not an image" in page.text("#more")


def test_search_class_and_pictures(page: Page) -> None:
    page.click("#search")
    page.type("folder-3 image_00003")
    assert counted(page) == 1
    page.do("document.getElementById('search').select()")
    page.type("no such image")
    assert counted(page) == 0
    assert "No image passes" in page.text("#list")
    assert page.do("document.getElementById('shown').hidden")
    page.press("ArrowDown")
    page.do("document.getElementById('search').select()")
    page.type("onerror")
    assert counted(page) > 0
    page.do("document.getElementById('search').value = ''")
    page.do("document.getElementById('class').focus()")
    page.press("ArrowDown")
    chosen = int(page.do("document.getElementById('class').value"))
    assert counted(page) == truth(page, f"r.label[i] === {chosen}")
    page.click("#pictured")
    assert 0 < counted(page) <= 20


def test_the_list_by_keyboard(page: Page) -> None:
    page.click("#list [role=option]")
    assert page.do("document.activeElement.id") == "list"
    page.press("ArrowDown", 2)
    assert page.do("document.getElementById('list').getAttribute('aria-activedescendant')") == "row-2"
    assert page.do("document.getElementById('row-2').getAttribute('aria-selected')") == "true"
    assert page.text("#announce").split(":")[0] in ("fixed", "broken", "both right", "both wrong")
    page.press("ArrowUp")
    page.press("PageDown")
    assert page.text("#place") == "page 2 of 100"
    page.press("End")
    assert page.text("#place") == "page 100 of 100"
    assert page.do("document.getElementById('next').disabled")
    page.press("ArrowDown")
    page.press("Home")
    assert page.text("#place") == "page 1 of 100"
    inside = "((l, r) => r.top >= l.top - 1 && r.bottom <= l.bottom + 1)"
    page.press("ArrowDown", 30)
    boxes = "(document.getElementById('list').getBoundingClientRect(), document.getElementById('row-30')"
    assert page.do(f"{inside}{boxes}.getBoundingClientRect())"), "the chosen row is in view"


def test_the_slider_by_keyboard_paints_the_patches(page: Page) -> None:
    page.do("document.getElementById('block').focus()")
    page.press("Home")
    assert "All 16 patches" in page.text("#block-text")
    assert colour(page, 0, 0) == colour(page, 3, 3) == [250, 250, 250]
    page.press("ArrowRight", 2)
    assert page.text("#block-text").startswith(
        "After block 6: 14 patch tokens; of 16 patches 12 kept, 4 merged, 0 pruned"
    )
    left, right = colour(page, 0, 0), colour(page, 3, 0)
    assert left != right and colour(page, 0, 3) == [250, 250, 250]
    page.press("ArrowRight")
    assert colour(page, 0, 3) == [0, 0, 0] and colour(page, 0, 0) == left
    assert "12 pruned" in str(page.do("document.getElementById('block').getAttribute('aria-valuetext')"))
    assert "12 pruned" in str(page.do("document.getElementById('canvas').getAttribute('aria-label')"))
    page.press("ArrowLeft", 9)
    assert page.do("document.getElementById('block').value") == "0"


def colour(page: Page, x: int, y: int) -> list[int]:
    """Of the middle of a patch."""
    at = f"c.width * ({x} + 0.5) / {GRID}, c.height * ({y} + 0.5) / {GRID}"
    page.wait("document.getElementById('canvas').width > 100")
    copy = "Object.assign(document.createElement('canvas'), {width: c.width, height: c.height}).getContext('2d')"
    read = f"p.drawImage(c, 0, 0); return [...p.getImageData({at}, 1, 1).data].slice(0, 3)"
    return list(page.do(f"(c => {{ const p = {copy}; {read}; }})(document.querySelector('canvas'))"))


def test_a_threshold_is_chosen_and_found(page: Page) -> None:
    above = "JSON.parse(document.getElementById('data').textContent).runs[0].above.reported"
    panel = "article.panel:not([hidden])"
    slider = f"document.querySelector('{panel} .chooser [type=range]')"
    assert page.do(f"{slider}.value") == "70"
    page.do(f"{slider}.focus()")
    page.press("ArrowLeft", 5)
    taken, right = (page.do(f"{above}[{part}][65]") for part in (0, 1))
    told = page.text(f"{panel} .chooser [role=status]")
    assert told.startswith(f"{taken:,} of 4,999 answers pass")
    assert f"of these {100 * right / taken:.1f} % are right" in told
    assert page.text(f"{panel} .chooser output") == "65 %"
    page.do(f"document.querySelector('{panel} .chooser [type=number]').value = 62")
    page.click(f"{panel} .chooser button")
    shares = page.do(f"{above}[1].map((right, i) => {above}[0][i] ? right / {above}[0][i] : -1)")
    first = next(percent for percent, share in enumerate(shares) if share >= 0.62)
    assert page.do(f"{slider}.value") == str(first)
    page.do(f"document.querySelector('{panel} .chooser [type=number]').value = 100")
    page.click(f"{panel} .chooser button")
    if max(shares) < 1:
        assert page.text(f"{panel} .chooser [role=status]").startswith("No threshold gives 100.0 % here.")
        assert page.do(f"{slider}.value") == str(first)


def test_names_are_text(page: Page) -> None:
    assert page.do("[...document.querySelectorAll('script')].length") == 2
    shown = str(page.do("document.body.textContent"))
    for name in EVIL:
        assert name in shown
    page.do("(c => { c.value = '1'; c.dispatchEvent(new Event('change')); })(document.getElementById('class'))")
    assert EVIL[1] in page.text("#list") and EVIL[1] in page.text("#shown-title")
    assert page.do("document.querySelectorAll('#list img, #shown img').length") == 0


def test_a_foreign_script_would_not_run(page: Page) -> None:
    """The page's own rule for scripts, should a name ever slip through."""
    page.do("document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.hacked = 4'}))")
    assert page.do("window.hacked") is None
    assert any("Content Security Policy" in complaint for complaint in page.complaints)
    page.complaints.clear()


def test_another_run(page: Page, file: Path) -> None:
    assert page.do("[...document.querySelectorAll('article.panel')].map(p => p.hidden)") == [False, True]
    page.do("document.getElementById('pick').focus()")
    page.press("ArrowDown")
    assert page.do("[...document.querySelectorAll('article.panel')].map(p => p.hidden)") == [True, False]
    assert page.text("#count") == "60 of 60 images"
    page.click("[data-show='0']")
    assert page.text("#count") == "5,000 of 5,000 images"
    assert page.do("location.hash") == "#run-0"


def test_light_and_dark(page: Page, file: Path) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.do(ground)
    page.scheme(dark=True)
    dark = page.do(ground)
    assert light == "rgb(255, 255, 255)" and dark != light
    page.click("#theme")
    assert page.do(ground) == light and page.text("#theme") == "Dark"
    page.scheme(dark=False)
    page.click("#theme")
    assert page.do(ground) == dark
    page.open(file)
    assert page.do(ground) == dark, "the choice is remembered"
    page.do("localStorage.clear()")


@pytest.mark.parametrize("width", [360, 800, 1600])
def test_no_window_is_too_narrow(page: Page, file: Path, width: int) -> None:
    page.open(file, width=width)
    assert page.do("document.documentElement.scrollWidth") <= width
    assert page.do("document.querySelectorAll('main, header, nav, footer').length") == 4


@pytest.mark.parametrize("width", [360, 400])
def test_accuracy_and_gain_are_in_sight_on_a_telephone(page: Page, file: Path, width: int) -> None:
    """They were off-screen without a hint that there was more."""
    page.open(file, width=width)
    heads = "[...document.querySelectorAll('#summary thead th')]"
    right = page.do(f"Object.fromEntries({heads}.map(e => [e.innerText, e.getBoundingClientRect().right]))")
    edge = page.do("document.querySelector('#summary .wide').getBoundingClientRect().right")
    assert 0 < right["accuracy"] < right["gain"] <= edge < right["images"]
    shadow = "getComputedStyle(document.querySelector('#summary .wide')).backgroundAttachment"
    assert page.do(shadow) == "local, local, scroll, scroll", "a shadow says that there is more"


def test_the_way_by_tab_is_the_way_of_the_page(page: Page) -> None:
    seen = []
    for _ in range(60):
        page.press("Tab")
        seen.append(
            page.do("document.activeElement.id || document.activeElement.className || document.activeElement.tagName")
        )
    wanted = ["skip", "theme", "pick", "class", "domain", "search", "pictured", "list", "next", "block"]
    places = [seen.index(name) for name in wanted]
    assert places == sorted(places)


def test_the_browser_is_really_heard(browser: Page, tmp_path: Path) -> None:
    loud = tmp_path / "loud.html"
    loud.write_text("<!DOCTYPE html><title>x</title><script>console.error('heard'); null.thrown</script>")
    browser.complaints.clear()
    browser.open(loud)
    assert any("heard" in line for line in browser.complaints)
    assert any("thrown" in line for line in browser.complaints)
