"""The server's calls as a page, from its OpenAPI document.

python tools/api_reference.py            # writes docs/http-api.md
python tools/api_reference.py --check    # exit code 1 if the page is not what the code says
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import lessmore
from lessmore.serve.app import make_app
from lessmore.serve.page.reference import sections_of
from lessmore.serve.registry import StreamRegistry
from lessmore.serve.service import Service
from lessmore.serve.settings import ServerSettings
from lessmore.serve.store import FolderStore

PAGE = Path(__file__).parents[1] / "docs" / "http-api.md"
_HEAD = """# HTTP API

`tools/api_reference.py` writes this page from the OpenAPI document of [`lessmore serve`](serve.md), which a running
server has at `/openapi.json`, and a test keeps it so. Every call may also answer with an error; [the table of
errors](serve.md#errors) has them all.
"""


def main() -> int:
    """Write the page, or check it."""
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--check", action="store_true", help="write nothing")
    text = api_page(openapi())
    if not args.parse_args().check:
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        print("docs/http-api.md is not what the code says; run python tools/api_reference.py", file=sys.stderr)
        return 1
    return 0


def openapi() -> dict[str, Any]:
    """The document of a server."""
    with tempfile.TemporaryDirectory() as name:
        store, settings = FolderStore(Path(name), fsync=False), ServerSettings()
        registry = StreamRegistry("sqlite://", fsync=False)
        found: dict[str, Any] = make_app(Service(lessmore.load("tiny"), ["a"], settings, registry, store), []).openapi()
        registry.close()
        store.close()
    return found


def api_page(document: dict[str, Any]) -> str:
    """The page of a document."""
    parts = [_HEAD]
    for title, entries in sections_of(document):
        parts.append(f"## {title}\n")
        parts += [
            "\n".join([f"### {one.title}\n", f"{one.text}\n", *(f"- {line}" for line in one.lines)]) + "\n"
            for one in entries
        ]
    return "\n".join(parts)


if __name__ == "__main__":
    sys.exit(main())
