"""Many streams at once, made, sent to, reset, forked and deleted in any order: no stream sees another one's images."""

from __future__ import annotations

import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.serve.server import CLASSES, Server, expected, fresh_adapter, pictures, running, scores_of


def live(server: Server, worker: int, rounds: int) -> None:
    """One client's streams, beside an Adapter for each."""
    dice, own = random.Random(worker), {}
    images, names = pictures(24, seed=200 + worker), CLASSES[worker % 5 : worker % 5 + 10]
    for turn in range(rounds):
        what = dice.random()
        if not own or what < 0.15:
            stream = f"w{worker}-{turn}"
            server.create(stream, classes=names)
            own[stream] = fresh_adapter(classes=names)
        stream = dice.choice(list(own))
        if what > 0.95:
            assert server.client.delete(f"/v1/streams/{stream}").status_code == 204
            del own[stream]
        elif what > 0.9:
            assert server.client.post(f"/v1/streams/{stream}/reset").status_code == 204
            own[stream].reset()
        elif what > 0.85:
            forked = {"id": f"w{worker}-{turn}-fork"}
            assert server.client.post(f"/v1/streams/{stream}/fork", json=forked).status_code == 201
            own[forked["id"]] = own[stream].fork()
        else:
            image = dice.choice(images)
            assert scores_of(server.send(stream, image)) == expected(own[stream], image)
    for stream, adapter in own.items():
        told: dict[str, Any] = server.client.get(f"/v1/streams/{stream}").json()
        assert told["health"]["seen"] == adapter.health().seen


def stress(folder: Path, workers: int, rounds: int) -> None:
    with running(folder / "store", "--max-batch", "1", "--max-resident", "3", "--snapshot-every", "5") as server:
        with ThreadPoolExecutor(workers) as pool:
            for done in [pool.submit(live, server, worker, rounds) for worker in range(workers)]:
                done.result()
        codes = server.client.get("/metrics").text
        assert 'code="5' not in codes


def test_sequence_stress(tmp_path: Path) -> None:
    stress(tmp_path, workers=6, rounds=20)


@pytest.mark.soak
def test_sequence_stress_for_long(tmp_path: Path) -> None:
    stress(tmp_path, workers=16, rounds=int(os.environ.get("LESSMORE_STRESS", "600")))
