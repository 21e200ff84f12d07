"""Memory stays where it is: through images, bad bodies, streams that come and go, and clients that vanish."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.serve.server import CLASSES, Server, pictures, resident_mb, running, vanish

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def use(server: Server, rounds: int, made: int) -> None:
    for turn in range(rounds):
        stream = f"s{made + turn}"
        server.create(stream, classes=CLASSES[:8])
        for image in pictures()[:4]:
            server.send(stream, image, top=2)
        server.client.post(f"/v1/streams/{stream}/images", content=b"x" * 10**6, headers={"Content-Type": "image/png"})
        server.client.post("/", json={"inputs": "AAAA", "parameters": {"candidate_labels": [f"a{turn}", "b"]}})
        vanish(server)
        if turn % 2:
            server.client.delete(f"/v1/streams/{stream}")


def growth(folder: Path, warm: int, rounds: int) -> float:
    with running(folder / "store", "--max-resident", "4", "--snapshot-every", "3") as server:
        server.create("s0")
        use(server, warm, 1)
        before = resident_mb(server)
        use(server, rounds, 1 + warm)
        assert server.metrics()["lessmore_body_bytes"] == 0
        assert server.metrics()["lessmore_resident_streams"] <= 4
        return resident_mb(server) - before


def test_memory_growth(tmp_path: Path) -> None:
    """Class lists fill their cache during the warm-up; what 25 rounds may add is the allocator's slack."""
    assert growth(tmp_path, warm=35, rounds=25) < 30


@pytest.mark.soak
def test_memory_growth_for_long(tmp_path: Path) -> None:
    rounds = int(os.environ.get("LESSMORE_STRESS", "1500"))
    assert growth(tmp_path, warm=100, rounds=rounds) < 60
