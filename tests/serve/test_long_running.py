"""Good, bad and huge bodies from quick, slow and vanishing clients for a long time: no code that does not belong."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.serve.server import Server, pictures, resident_mb, running, vanish

PNG = {"Content-Type": "image/png"}
STREAMS = 8


def client(server: Server, stream: int, seconds: float) -> Counter[int]:
    """One stream's clients; how often each code came."""
    dice, codes, end = random.Random(stream), Counter[int](), time.monotonic() + seconds
    path, images = f"/v1/streams/s{stream}/images", pictures(40, seed=300 + stream)
    while time.monotonic() < end:
        what = dice.random()
        if what < 0.9:
            codes[server.client.post(path, content=dice.choice(images), headers=PNG).status_code] += 1
        elif what < 0.94:
            codes[server.client.post(path, content=dice.randbytes(2000), headers=PNG).status_code] += 1
        elif what < 0.96:
            codes[server.client.post(path, content=b"x" * (2**20 + 1), headers=PNG).status_code] += 1
        elif what < 0.98:
            slow = (part for part in (images[0][:100], time.sleep(0.05) or images[0][100:]))
            codes[server.client.post(path, content=slow, headers=PNG).status_code] += 1
        else:
            vanish(server)
    return codes


def run(folder: Path, seconds: float) -> tuple[Counter[int], float]:
    """Codes, and how much memory grew after the first tenth of the time."""
    with running(folder / "store", "--max-body-mb", "1", "--snapshot-every", "50") as server:
        for stream in range(STREAMS):
            server.create(f"s{stream}")
        with ThreadPoolExecutor(STREAMS) as pool:
            running_clients = [pool.submit(client, server, i, seconds) for i in range(STREAMS)]
            time.sleep(seconds / 10)
            before = resident_mb(server)
            codes = sum((one.result() for one in running_clients), Counter[int]())
        seen = [server.client.get(f"/v1/streams/s{i}").json()["health"]["seen"] for i in range(STREAMS)]
        grown = resident_mb(server) - before
        assert sum(seen) == codes[200] and server.stop() == 0
        return codes, grown


def test_long_running(tmp_path: Path) -> None:
    codes, _ = run(tmp_path, 2)
    assert codes[200] and set(codes) <= {200, 413, 422}


@pytest.mark.soak
def test_long_running_for_hours(tmp_path: Path) -> None:
    codes, grown = run(tmp_path, float(os.environ.get("LESSMORE_SOAK_SECONDS", "7200")))
    assert codes[200] and set(codes) <= {200, 413, 422} and grown < 80
