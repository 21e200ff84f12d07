"""Figures that mean what the operations page says they mean."""

from __future__ import annotations

import re
from pathlib import Path

from lessmore.serve.metrics import Metrics
from tests.serve.server import Server, pictures

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"


def test_what_is_counted(shared_server: Server) -> None:
    before = shared_server.metrics()
    shared_server.create("counted")
    changed = sum(shared_server.send("counted", image)["changed"] for image in pictures())
    shared_server.client.post("/v1/streams/counted/images", content=b"x", headers={"Content-Type": "image/png"})
    after = shared_server.metrics()
    grown = {name: after[name] - before.get(name, 0) for name in after}
    assert grown["lessmore_images_total"] == len(pictures()) and grown["lessmore_changed_total"] == changed
    assert grown["lessmore_batch_images_sum"] == grown["lessmore_wait_seconds_count"] == len(pictures()) + 1
    assert grown["lessmore_decode_seconds_count"] == grown["lessmore_journal_seconds_count"] == len(pictures()) + 1
    assert grown["lessmore_journal_bytes_total"] > 1000 * len(pictures())
    assert grown["lessmore_errors_total"] == 1 and grown["lessmore_stored_streams"] == 1
    assert after["lessmore_queue_depth"] == 0


def test_the_page_explains_every_figure() -> None:
    named = set(re.findall(r"`(lessmore_\w+)`", PAGE.read_text(encoding="utf-8")))
    families = {family.name for family in Metrics().collectors.collect()}
    counters = {f"{family.name}_total" for family in Metrics().collectors.collect() if family.type == "counter"}
    kept = {name for name in families if f"{name}_total" not in counters} | counters
    assert named == kept
