"""A stream over HTTP answers what an Adapter answers: alone, beside others, after eviction, restart and kill."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.serve.server import CLASSES, Server, expected, fresh_adapter, pictures, running, saved_state, scores_of

METHODS = ["tca", "zeroshot", "tda", "neo"]


@pytest.mark.parametrize("method", METHODS)
def test_the_same_bytes_one_by_one(shared_server: Server, method: str, tmp_path: Path) -> None:
    stream = f"one-{method}"
    shared_server.create(stream, method=method, classes=CLASSES[:12])
    adapter = fresh_adapter(method=method, classes=CLASSES[:12])
    for image in pictures()[:10]:
        assert scores_of(shared_server.send(stream, image, top=12)) == expected(adapter, image)
    assert shared_server.state(stream) == saved_state(adapter, tmp_path)


def test_many_streams_at_once_with_two_in_memory(tmp_path: Path) -> None:
    """Every stream has its own settings and images; all but two are evicted all the time. Then the server is killed."""
    settings = [{}, {"R": 0.7}, {"preset": "fixed"}, {"method": "tda"}, {"classes": CLASSES[:9]}, {"preset": "paper"}]
    images = {i: pictures(24, seed=i) for i in range(len(settings))}
    told: dict[int, list[dict[str, tuple[float, float]]]] = {}

    def run(server: Server, part: slice, i: int) -> None:
        answers = [server.send(f"s{i}", image) for image in images[i][part]]
        told.setdefault(i, []).extend(map(scores_of, answers))

    flags = ("--max-batch", "1", "--max-resident", "2", "--snapshot-every", "7")
    for part in (slice(0, 9), slice(9, 16)):
        with running(tmp_path / "store", *flags) as server, ThreadPoolExecutor(len(settings)) as pool:
            if part.start == 0:
                for i, chosen in enumerate(settings):
                    server.create(f"s{i}", **chosen)
            list(pool.map(partial(run, server, part), range(len(settings))))
            states = {i: server.state(f"s{i}") for i in images}
            server.kill()
    for i, chosen in enumerate(settings):
        adapter = fresh_adapter(**chosen)
        assert told[i] == [expected(adapter, image) for image in images[i][:16]]
        assert states[i] == saved_state(adapter, tmp_path)


def test_in_batches_to_rounding(tmp_path: Path) -> None:
    streams, dice = 12, random.Random(0)
    images = {i: pictures(10, seed=20 + i) for i in range(streams)}
    told: dict[int, list[dict[str, tuple[float, float]]]] = {i: [] for i in images}
    with running(tmp_path / "store", "--max-wait-ms", "5") as server, ThreadPoolExecutor(streams) as pool:
        for i in images:
            server.create(f"s{i}", **({"method": "neo"} if i % 4 == 3 else {}))

        def run(i: int) -> None:
            told[i] += [scores_of(server.send(f"s{i}", image)) for image in images[i]]

        list(pool.map(run, dice.sample(range(streams), streams)))
        counted = server.metrics()
    assert counted["lessmore_batch_images_sum"] > 2 * counted["lessmore_batch_images_count"], "nothing was batched"
    for i in images:
        adapter = fresh_adapter(method="neo" if i % 4 == 3 else "tca")
        for image, answer in zip(images[i], told[i], strict=True):
            own = expected(adapter, image)
            assert max(abs(a - b) for label in own for a, b in zip(own[label], answer[label], strict=True)) < 1e-5
            ranked = sorted(own, key=lambda label: own[label][0], reverse=True)
            best = max(answer, key=lambda label: answer[label][0])
            assert best == ranked[0] or own[ranked[0]][0] - own[ranked[1]][0] < 1e-4
