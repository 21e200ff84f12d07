"""Pages about the server that the code can check: the API reference and the dashboard."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.serve_numbers import RESULTS, page_with
from lessmore.serve.metrics import Metrics
from tests.serve.server import Server

ROOT = Path(__file__).parents[2]


def test_the_reference_is_what_the_code_says() -> None:
    command = [sys.executable, str(ROOT / "tools" / "api_reference.py"), "--check"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert told.returncode == 0, told.stderr


def test_the_page_of_the_calls_needs_no_script_and_nothing_from_elsewhere(shared_server: Server) -> None:
    told = shared_server.client.get("/docs")
    page, document = told.text, shared_server.client.get("/openapi.json").json()
    assert (
        "<script" not in page and "//" not in page and "default-src 'none'" in told.headers["Content-Security-Policy"]
    )
    for path, calls in document["paths"].items():
        for method in calls:
            assert f"<code>{method.upper()} {path}</code>" in page
    links = set(re.findall(r'href="#([^"]+)"', page))
    assert "errorbody" in links and links <= set(re.findall(r'id="([^"]+)"', page))
    for file in re.findall(r'href="(/page/[^"]+)"', page):
        assert shared_server.client.get(file).status_code == 200


def test_the_numbers_are_those_of_the_results() -> None:
    """What benchmarks/serve.py wrote down is what the page says; a table that is made again replaces the old one."""
    page = (ROOT / "docs" / "serve.md").read_text(encoding="utf-8")
    assert page_with(json.loads(RESULTS.read_text()) if RESULTS.exists() else {}, page) == page
    machine = {"cores": 2, "threads": 2, "torch": "2.11", "load before": 0.1}
    found = {"streams": 100, "images each": 1000, "seconds": 1.5, "journal bytes each": 1}
    once = page_with({"restart": {"machine": machine, "found": found}}, page)
    row = "| restart of 100 streams, each with 1,000 images in its journal | 1.5 s |"
    assert once.count(row) == 1 and page_with({"restart": {"machine": machine, "found": found}}, once) == once
    assert once.partition("## What it defends")[2] == page.partition("## What it defends")[2]


@pytest.fixture
def dashboard() -> dict[str, list[dict[str, object]]]:
    found: dict[str, list[dict[str, object]]] = json.loads((ROOT / "docs" / "grafana.json").read_text(encoding="utf-8"))
    return found


def test_the_dashboard_shows_every_figure_and_no_other(dashboard: dict[str, list[dict[str, object]]]) -> None:
    shown = set(re.findall(r"lessmore_\w+", json.dumps(dashboard["panels"])))
    samples = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
    known = {
        family.name: {family.name + end for end in samples[family.type]} for family in Metrics().collectors.collect()
    }
    assert shown <= set().union(*known.values())
    assert [name for name, names in known.items() if not shown & names] == []


def test_panels_do_not_overlap(dashboard: dict[str, list[dict[str, object]]]) -> None:
    places = [tuple(panel["gridPos"].values()) for panel in dashboard["panels"]]  # type: ignore[attr-defined]
    assert len(set(places)) == len(places) and all(x + w <= 24 for x, _, w, _ in places)
