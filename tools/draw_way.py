"""Draw the chart of docs/architecture.md as a picture, so that pages need no script from elsewhere.

    python tools/draw_way.py        # docs/way.mmd becomes docs/way.svg; needs npm and Chromium

Mermaid comes from npm into a temporary folder and runs in headless Chromium.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
MERMAID = "mermaid@11"
SETTINGS = {"startOnLoad": False, "theme": "neutral", "htmlLabels": False, "flowchart": {"htmlLabels": False}}
PAGE = """<!doctype html><meta charset="utf-8"><body><script src="package/dist/mermaid.min.js"></script><script>
mermaid.initialize(%s);
mermaid.render("way", %s).then(drawn => document.body.innerHTML = drawn.svg)</script>"""


def main() -> None:
    """Draw it."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None or shutil.which("npm") is None:
        sys.exit("draw_way: npm and Chromium are needed; install both (make browser brings Chromium)")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run(["npm", "pack", "--silent", MERMAID], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        with tarfile.open(next(folder.glob("*.tgz"))) as packed:
            packed.extract("package/dist/mermaid.min.js", folder, filter="data")
        page = folder / "page.html"
        page.write_text(PAGE % (json.dumps(SETTINGS), json.dumps((DOCS / "way.mmd").read_text(encoding="utf-8"))))
        command = [
            browser,
            "--headless=new",
            "--no-sandbox",
            "--virtual-time-budget=20000",
            "--dump-dom",
            page.as_uri(),
        ]
        dom = subprocess.run([*command, page.as_uri()], check=True, capture_output=True, text=True, timeout=120).stdout
    picture = re.search(r"<svg.*</svg>", dom, re.DOTALL)
    if picture is None:
        sys.exit("draw_way: Mermaid drew nothing; is docs/way.mmd a chart?")
    drawn = picture.group().replace("<br>", "<br/>").replace('style="', 'style="background: white; ', 1)
    (DOCS / "way.svg").write_text(drawn + "\n", encoding="utf-8")  # on white, so that dark pages show it too


if __name__ == "__main__":
    main()
