"""The documentation site that `make docs` left in `site`: search, versions, narrow windows, no request elsewhere."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.architecture.test_shape import ROOT
from tests.web.chromium import CHROMIUM, MISSING, Page
from tests.web.live import overflow

SITE = ROOT / "site"
BUILT = (SITE / "versions.json").is_file()
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason=MISSING),
    pytest.mark.skipif(not BUILT, reason="there is no site; make docs builds it"),
]
SHADOW = "[...document.querySelectorAll('*')].map(e => e.shadowRoot).find(r => r?.querySelector('dialog'))"
"""Where the theme keeps its search."""


class Quiet(SimpleHTTPRequestHandler):
    """Files of a folder, without a log."""

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def newest() -> str:
    return str(json.loads((SITE / "versions.json").read_text())[0]["version"])


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=SITE))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with Page(tmp_path / "profile") as page:
        yield page


def found(page: Page, word: str) -> list[str]:
    """Addresses of the pages that the search offers for a word."""
    page.wait("document.querySelector('.md-version') !== null")  # the scripts are there
    page.click(".md-search__button")
    page.wait(f"{SHADOW}?.querySelector('dialog[open] input') === {SHADOW}?.activeElement")
    page.type(word)
    links = f"[...{SHADOW}.querySelectorAll('a[href]')].map(a => a.href)"
    page.wait(f"{links}.length > 0")
    return list(page.do(links))


def test_search_finds_a_word_and_asks_nobody_else(page: Page, address: str, newest: str) -> None:
    page.visit(f"{address}/{newest}/index.html")
    links = found(page, "eviction")
    assert page.text(".md-version__current") == newest
    assert any("core.html" in link for link in links)
    assert [url for url in page.requests if not url.startswith((address, "data:", "blob:"))] == []
    assert page.complaints == []


def test_the_front_page_leads_to_the_newest_version(page: Page, address: str, newest: str) -> None:
    page.ask("Page.navigate", url=f"{address}/")
    page.wait(f"location.pathname === '/{newest}/index.html' && document.readyState === 'complete'")


@pytest.mark.parametrize(
    "name", ["index", "gallery", "paper", "tutorials/first-adapter", "tutorials/your-data", "results"]
)
def test_pages_fit_a_telephone(page: Page, address: str, newest: str, name: str) -> None:
    page.visit(f"{address}/{newest}/{name}.html", width=360, dark=True)
    page.wait("document.querySelector('.md-version') !== null")
    assert overflow(page) <= 0
    broken = "[...document.images].filter(i => i.loading !== 'lazy' && !i.naturalWidth).map(i => i.src)"
    assert page.do(broken) == []
