"""Several servers on one store: every stream has one of them at a time, and no answer that was sent is lost."""

from __future__ import annotations

import uuid
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lessmore.errors import LessmoreError
from lessmore.serve.answer import Asked
from lessmore.serve.errors import StreamExistsError, TakenOverError
from lessmore.serve.metrics import Metrics
from lessmore.serve.objectstore import ObjectStore
from lessmore.serve.registry import StreamRegistry, StreamRow
from lessmore.serve.settings import ServerSettings
from lessmore.serve.streams import Look, ServedStreams
from tests.serve.server import CLASSES, contents, fresh_adapter, pictures, saved_state, tiny

NAMES = CLASSES[:8]
CONFIG: dict[str, Any] = {"classes": NAMES, "templates": ["a {}."], "preset": "default", "R": None, "method": "tca"}


def server(registry: StreamRegistry, url: str) -> ServedStreams:
    chosen = ServerSettings(max_batch=1, snapshot_every=3, max_resident=2)
    return ServedStreams(tiny(), chosen, registry, ObjectStore(url), Metrics())


def send(streams: ServedStreams, stream: str, pixels: Any, key: str | None = None) -> Any:
    (told,) = streams.answer([Look(stream, pixels, Asked(key, top=len(NAMES)))])
    return told


STEPS = st.tuples(st.integers(0, 2), st.integers(0, 1), st.sampled_from(["image", "image", "kill"]))


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(STEPS, min_size=8, max_size=20))
def test_streams_that_wander_between_servers(steps: list[tuple[int, int, str]]) -> None:
    """Whichever server gets the next image, it goes on where the last one was; some of them are killed."""
    with TemporaryDirectory() as name:
        folder, url = Path(name), f"memory://{uuid.uuid4().hex}"
        registry = StreamRegistry(f"sqlite:///{folder}/registry.db", fsync=False)
        servers = [server(registry, url) for _ in range(3)]
        adapters = [fresh_adapter(classes=NAMES, templates=["a {}."]) for _ in range(2)]
        for i in range(2):
            registry.add(StreamRow(f"s{i}", "", None, CONFIG))
        for turn, (which, i, what) in enumerate(steps):
            if what == "kill":
                servers[which] = server(registry, url)
                continue
            image = pictures(12)[turn % 12]
            told, own = send(servers[which], f"s{i}", adapters[i].pixels(image)), adapters[i](image)
            assert not isinstance(told, LessmoreError), told
            assert (told["label"], told["score"], told["seq"]) == (own.label, own.confidence, adapters[i].health().seen)
        last = server(registry, url)
        for i, adapter in enumerate(adapters):
            last.get(f"s{i}").adapter.save(folder / "theirs")
            assert contents((folder / "theirs").read_bytes()) == saved_state(adapter, folder)
        registry.close()


def test_servers_that_fight_for_a_stream_lose_nothing(tmp_path: Path) -> None:
    """Two servers get images of one stream at the same time; who is refused sends again under the same key."""
    registry = StreamRegistry(f"sqlite:///{tmp_path}/registry.db", fsync=False)
    registry.add(StreamRow("s0", "", None, {**CONFIG, "method": "zeroshot"}))
    servers = [server(registry, f"file://{tmp_path}/store") for _ in range(2)]
    pixels = fresh_adapter(classes=NAMES).pixels(pictures(12)[0])
    told: dict[str, int] = {}
    refused: list[int] = []

    def work(which: int) -> None:
        for i in range(8):
            key = f"{which}-{i}"
            while isinstance(answer := send(servers[which], "s0", pixels, key), LessmoreError):
                assert isinstance(answer, TakenOverError), answer
                refused.append(which)
            told[key] = answer["seq"]

    threads = [Thread(target=work, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    place = server(registry, f"file://{tmp_path}/store").get("s0").place
    assert sorted(told.values()) == list(range(1, 17)) and place.seq == 16
    assert {key: answer["seq"] for key, answer in place.keys.items()} == told
    registry.close()


def test_a_write_behind_a_takeover_is_ignored() -> None:
    """The older server looks before its write, and the newer one takes the stream just after that."""
    url = f"memory://{uuid.uuid4().hex}"
    older, newer = ObjectStore(url), ObjectStore(url)
    older.append("s", b"one")
    put = older._put

    def late(path: str, data: bytes) -> None:
        assert newer.journal("s") == b"one"
        put(path, data)

    older._put = late  # type: ignore[method-assign]
    with pytest.raises(TakenOverError):
        older.append("s", b"late")
    newer.append("s", b"two")
    assert newer.journal("s") == b"onetwo" and ObjectStore(url).journal("s") == b"onetwo"


def test_an_id_that_another_server_took_just_before(tmp_path: Path) -> None:
    registry = StreamRegistry(f"sqlite:///{tmp_path}/registry.db", fsync=False)
    registry.add(StreamRow("s0", "", None, CONFIG))
    with pytest.raises(StreamExistsError):
        registry.add(StreamRow("s0", "", None, CONFIG))
    registry.close()
