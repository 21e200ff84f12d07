"""SIGKILL under load, and SIGTERM: no answer that was sent is lost, none counts twice, no byte differs."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread

import httpx
import pytest

from tests.serve.server import Server, expected, fresh_adapter, kept_place, pictures, running, saved_state, scores_of

FLAGS = ("--max-batch", "1", "--snapshot-every", "11", "--max-resident", "2")
STREAMS = 3


class Client(Thread):
    """Sends the images of one stream in order, each again under its key until it is answered."""

    def __init__(self, server: Server, stream: int, told: list[dict[str, tuple[float, float]]], end: int) -> None:
        super().__init__()
        self.server, self.stream, self.told, self.end = server, stream, told, end

    def run(self) -> None:
        images = pictures(60, seed=70 + self.stream)
        try:
            while len(self.told) < self.end:
                i = len(self.told)
                answer = self.server.send(f"s{self.stream}", images[i % len(images)], key=f"image-{i}")
                assert answer["seq"] == i + 1
                self.told.append(scores_of(answer))
        except httpx.TransportError:
            pass  # it was killed


def survive(store: Path, kills: int, between: int) -> tuple[dict[int, list[dict[str, tuple[float, float]]]], int]:
    """What the clients were told by a server that was killed so many times while they were sending."""
    dice, told, restarts = random.Random(kills), {i: [] for i in range(STREAMS)}, 0
    for kill in range(kills + 1):
        with running(store, *FLAGS) as server:
            if kill == 0:
                for i in told:
                    server.create(f"s{i}")
            goal = (kill + 1) * between
            clients = [Client(server, i, told[i], goal) for i in told]
            for client in clients:
                client.start()
            if kill < kills:
                point = kill * between + dice.randrange(1, between)
                while max(map(len, told.values())) < point:
                    time.sleep(0.002)
                time.sleep(dice.random() * 0.02)
                server.kill()
                restarts += 1
            for client in clients:
                client.join()
            if kill == kills:
                states = {i: server.state(f"s{i}") for i in told}
    for i, state in states.items():
        adapter, images = fresh_adapter(), pictures(60, seed=70 + i)
        assert told[i] == [expected(adapter, images[n % len(images)]) for n in range(len(told[i]))]
        assert state == saved_state(adapter, store.parent)
    return told, restarts


def test_killed_under_load(tmp_path: Path) -> None:
    told, restarts = survive(tmp_path / "store", kills=2, between=12)
    assert restarts == 2 and {len(answers) for answers in told.values()} == {36}


@pytest.mark.soak
def test_killed_fifty_times_under_load(tmp_path: Path) -> None:
    told, restarts = survive(tmp_path / "store", kills=50, between=20)
    assert restarts == 50 and {len(answers) for answers in told.values()} == {1020}


def test_asked_to_stop(tmp_path: Path) -> None:
    """What was accepted is answered, everything else is refused, and the next server goes on."""
    server = Server(tmp_path / "store", "--max-batch", "1", "--fsync", "true")
    server.create("door")
    told: list[int] = []

    def send() -> None:
        files = [("image", ("a.png", image, "image/png")) for image in pictures(40)]
        told.append(len(server.client.post("/v1/streams/door/images", files=files).json()["answers"]))

    client = Thread(target=send)
    client.start()
    while server.metrics()["lessmore_images_total"] < 2:
        time.sleep(0.005)
    server.process.send_signal(signal.SIGTERM)
    codes = set()
    while server.process.poll() is None:
        try:
            codes.add(httpx.get(f"{server.address}/readyz").status_code)
        except httpx.TransportError:
            break
    client.join()
    assert server.process.wait(60) == 0 and told == [40] and codes <= {200, 503} and 503 in codes
    assert not (tmp_path / "store" / "streams" / "door" / "journal").read_bytes(), "the last snapshot holds all"
    place = kept_place(tmp_path / "store", "door")
    assert place.seq == 40 and place.last is not None and place.last["seq"] == 40


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    server = Server(tmp_path / "store", "--max-batch", "1")
    server.create("door")
    files = [("image", ("a.png", image, "image/png")) for image in pictures(60)]

    def send() -> None:
        with suppress(httpx.TransportError):
            server.client.post("/v1/streams/door/images", files=files)

    client = Thread(target=send)
    client.start()
    while server.metrics()["lessmore_images_total"] < 2:  # the first is written down before the second is counted
        time.sleep(0.005)
    os.kill(server.process.pid, signal.SIGTERM)
    while '"message": "stop"' not in server.log.read_text() and server.process.poll() is None:
        time.sleep(0.005)  # two signals that come before one is looked at are one
    os.kill(server.process.pid, signal.SIGTERM)
    assert server.process.wait(60) == 130
    client.join()
    assert 1 <= kept_place(tmp_path / "store", "door").seq < 60


def test_two_servers_do_not_share_a_store(shared_server: Server) -> None:
    second = Server(shared_server.store, wait=False)
    assert second.process.wait(120) == 1
    assert "another server uses the store" in second.log.read_text()
