"""The documentation site: pages are in its menu, notebooks hold no outputs, public names are in its reference."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import lessmore
from tests.architecture.test_shape import ROOT
from tools.site_versions import publish

NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))


def pages(entry: Any) -> Iterator[str]:
    """The pages of a part of the menu."""
    if isinstance(entry, str):
        yield entry
    else:
        for part in entry if isinstance(entry, list) else entry.values():
            yield from pages(part)


def test_every_page_is_in_the_menu() -> None:
    menu = list(pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    found = [*(ROOT / "docs").rglob("*.md"), *NOTEBOOKS]  # `make docs` makes a page of each notebook
    written = {path.relative_to(ROOT / "docs").with_suffix(".md").as_posix() for path in found}
    assert sorted(menu) == sorted(written)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_hold_no_outputs_and_describe_their_pictures(notebook: Path) -> None:
    cells = [cell for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert len(cells) >= 4
    assert [cell for cell in cells if cell["outputs"] or cell["execution_count"] is not None] == []
    drawing = [cell for cell in cells if re.search(r"subplots\(|\.resize\(", "".join(cell["source"]))]
    assert all(cell["metadata"].get("alt") for cell in drawing)


def test_versions_are_offered_newest_first(tmp_path: Path) -> None:
    for name in ("0.9", "dev", "0.10"):
        built = tmp_path / "built"
        built.mkdir()
        (built / "index.html").write_text(name)
        publish(built, tmp_path / "site", name)
    offered = json.loads((tmp_path / "site" / "versions.json").read_text())
    assert [one["version"] for one in offered] == ["0.10", "0.9", "dev"]
    assert [one["aliases"] for one in offered] == [["latest"], [], []]
    assert 'url=0.10/index.html"' in (tmp_path / "site" / "index.html").read_text()


def test_every_public_name_is_in_the_reference() -> None:
    text = (ROOT / "docs" / "api" / "index.md").read_text(encoding="utf-8")
    named = {line.rpartition(".")[2] for line in re.findall(r"^::: (lessmore[.\w]+)$", text, re.MULTILINE)}
    assert set(lessmore.__all__) <= named
