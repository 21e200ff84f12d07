"""What the tests of the live page share: the page in a browser, beside a real server."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests.serve.server import Server
from tests.web.chromium import Page

ROOT = Path(__file__).parents[2]
EVIL = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script> &amp; 'key'"
LONG = "W" * 120 + " and then some words"
AXE = Path(os.environ.get("AXE_CORE") or ROOT / "node_modules" / "axe-core" / "axe.min.js")
NO_AXE = "axe-core is not installed; make browser installs it, or set AXE_CORE to its axe.min.js"


def show(page: Page, server: Server, width: int = 1280, dark: bool = False, part: str = "") -> None:
    """The live page, connected."""
    page.ask("Page.navigate", url="about:blank")  # the same address with another fragment would be no new page
    page.visit(f"{server.address}/{part}", width=width, dark=dark)
    page.wait("document.getElementById('connection').textContent === 'connected'")


def says(page: Page, selector: str, text: str) -> None:
    """Wait until an element has a text in it."""
    page.wait(f"(document.querySelector({json.dumps(selector)})?.textContent ?? '').includes({json.dumps(text)})")


def faults(page: Page) -> list[Any]:
    """What axe-core finds wrong with the page as it stands."""
    if not page.do("typeof axe === 'object'"):
        page.do(AXE.read_text(encoding="utf-8") + ";0")
    found = page.do("axe.run().then((r) => r.violations.map((v) => [v.id, v.help, v.nodes.map((n) => n.html)]))")
    return list(found)


def overflow(page: Page) -> int:
    """Pixels by which the page is wider than its window."""
    return int(page.do("document.documentElement.scrollWidth - document.documentElement.clientWidth"))
