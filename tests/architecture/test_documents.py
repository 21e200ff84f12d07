"""Documents name files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.architecture.test_shape import ROOT, SOURCE

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/methods/*.md")])
PAGES.append(ROOT / "docs" / "tutorials" / "README.md")  # the others there are made from notebooks
HISTORY = "CHANGELOG.md"
"""Names files of its time."""
HOMES = (ROOT, SOURCE, ROOT / "docs", ROOT / "benchmarks", ROOT / "tests" / "methods")


def leads_somewhere(target: Path) -> bool:
    """Whether there is such a file, or the notebook that `make docs` makes it from."""
    return target.exists() or target.with_suffix(".ipynb").exists()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_modules_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?:|mailto:|#)([^)#\s]+)", text)
    missing = [link for link in links if not leads_somewhere(page.parent / link)]
    if page.name != HISTORY:
        named = re.findall(r"`((?:[\w.-]+/)+[\w-]+\.py)`", text)  # a bare name may be a user's file or another's
        missing += [name for name in named if "NAME" not in name and not any((home / name).exists() for home in HOMES)]
    assert missing == []
