"""The documentation site: every page is in its menu, and every public name is in its reference."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

import lessmore
from tests.architecture.test_shape import ROOT


def pages(entry: Any) -> Iterator[str]:
    """The pages of a part of the menu."""
    if isinstance(entry, str):
        yield entry
    else:
        for part in entry if isinstance(entry, list) else entry.values():
            yield from pages(part)


def test_every_page_is_in_the_menu() -> None:
    menu = list(pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    written = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(menu) == sorted(written)


def test_every_public_name_is_in_the_reference() -> None:
    text = (ROOT / "docs" / "api" / "index.md").read_text(encoding="utf-8")
    named = {line.rpartition(".")[2] for line in re.findall(r"^::: (lessmore[.\w]+)$", text, re.MULTILINE)}
    assert set(lessmore.__all__) <= named
