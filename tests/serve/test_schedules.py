"""Any schedule of images, resets, forks, evictions and kills ends where an Adapter ends that saw none of the kills."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lessmore import Adapter
from lessmore.data.decoder import DecoderError
from lessmore.errors import ConfigError, ImageError, LessmoreError, StateError
from lessmore.serve.answer import Asked
from lessmore.serve.errors import DamagedStreamError, status_of
from lessmore.serve.journal import pack_record, read_records
from lessmore.serve.metrics import Metrics
from lessmore.serve.registry import StreamRegistry, StreamRow
from lessmore.serve.settings import ServerSettings
from lessmore.serve.store import FolderStore
from lessmore.serve.streams import Look, ServedStreams
from tests.serve.server import CLASSES, contents, fresh_adapter, pictures, renewed, saved_state, tiny

EXAMPLES = 300 if os.environ.get("LESSMORE_SOAK") else 6
NAMES = CLASSES[:8]
CONFIG: dict[str, Any] = {"classes": NAMES, "templates": ["a {}."], "preset": "default", "R": None, "method": "tca"}
METHODS = ("tca", "tda", "neo", "zeroshot")
KINDS = [*["image"] * 5, *["frame"] * 3, "broken", "reset", "relist", "kill", "kill"]
STEPS = st.tuples(st.sampled_from(KINDS), st.integers(0, 2), st.integers(0, 400))


def opened(folder: Path, **more: Any) -> ServedStreams:
    chosen = ServerSettings(**{"max_batch": 1, "max_resident": 2, "snapshot_every": 4, **more})
    registry = StreamRegistry(f"sqlite:///{folder}/registry.db", fsync=False)
    return ServedStreams(tiny(), chosen, registry, FolderStore(folder / "store", fsync=False), Metrics())


def closed(streams: ServedStreams) -> None:
    """What a kill leaves: files, and nothing of what was in memory."""
    streams.registry.close()
    streams.store.close()


def torn(folder: Path, stream: str, count: int) -> None:
    """The beginning of a record whose answer never left, as a kill in the middle of a write leaves it."""
    path = folder / "store" / "streams" / stream / "journal"
    data = path.read_bytes() if path.exists() else b""
    records, length = read_records(data, "it")
    if records and length == len(data):  # else it was torn already, and nothing has read it since
        last = pack_record(records[-1].facts, records[-1].tensors)
        path.write_bytes(data + last[: min(count, len(last) - 1)])


def test_an_image_that_no_process_decoded_does_not_count(tmp_path: Path) -> None:
    streams, error = opened(tmp_path), DecoderError("no process that decodes images can be started; free memory")
    streams.registry.add(StreamRow("s0", "", None, CONFIG))
    assert streams.answer([Look("s0", error)]) == [error] and status_of(error) == (503, "unavailable")
    assert streams.get("s0").place.number == streams.get("s0").adapter.health().refused == 0
    closed(streams)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(STEPS, min_size=16, max_size=36), st.sampled_from([4, 7, 1000]))
def test_any_schedule(steps: list[tuple[str, int, int]], snapshot_every: int) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        streams = opened(folder, snapshot_every=snapshot_every)
        adapters: list[Adapter] = []
        for i in range(3):
            method = METHODS[(i + len(steps)) % len(METHODS)]
            streams.registry.add(StreamRow(f"s{i}", "", None, {**CONFIG, "method": method}))
            adapters.append(fresh_adapter(classes=NAMES, method=method, templates=["a {}."]))
        for kind, i, value in steps:
            if kind == "kill":
                closed(streams)
                torn(folder, f"s{i}", value)
                streams = opened(folder, snapshot_every=snapshot_every)
            elif kind == "relist":
                adapters[i] = relist(streams, f"s{i}", adapters[i], value)
            else:
                ACTIONS[kind](streams, f"s{i}", adapters[i], value)
        closed(streams)
        streams = opened(folder)
        for i, adapter in enumerate(adapters):
            streams.get(f"s{i}").adapter.save(folder / "theirs")
            assert contents((folder / "theirs").read_bytes()) == saved_state(adapter, folder)
        closed(streams)


def send(streams: ServedStreams, stream: str, adapter: Adapter, which: int, track: str | None = None) -> None:
    image = pictures(12)[which % 12]
    (told,) = streams.answer([Look(stream, adapter.pixels(image), Asked(top=len(NAMES), track=track))])
    assert not isinstance(told, LessmoreError), told
    own = adapter(image, track=track)
    theirs = {one["label"]: one["score"] for one in told["top"]}
    assert theirs == dict(zip(adapter.classes, own.scores.tolist(), strict=True))


def frame(streams: ServedStreams, stream: str, adapter: Adapter, which: int) -> None:
    send(streams, stream, adapter, which, track=f"object {which % 3}")


def refuse(streams: ServedStreams, stream: str, adapter: Adapter, which: int) -> None:
    (told,) = streams.answer([Look(stream, ImageError("broken; mend it"))])
    assert isinstance(told, ImageError)
    adapter.answerer.refuse()


def forget(streams: ServedStreams, stream: str, adapter: Adapter, which: int) -> None:
    streams.forget(stream)
    adapter.reset()


def relist(streams: ServedStreams, stream: str, adapter: Adapter, which: int) -> Adapter:
    """One class goes to the end of the list, its memory lost, if the method can follow that."""
    name = adapter.classes[which % len(adapter.classes)]
    try:
        adapter.remove_classes([name])
        adapter.add_classes([name])
    except ConfigError:
        with pytest.raises(ConfigError):
            streams.relist(stream, {}, [name], [name])
        return adapter
    streams.relist(stream, {}, [name], [name])
    with TemporaryDirectory() as folder:
        return renewed(adapter, Path(folder), templates=["a {}."])


ACTIONS: dict[str, Callable[[ServedStreams, str, Adapter, int], None]] = {
    "image": send,
    "frame": frame,
    "broken": refuse,
    "reset": forget,
}


@pytest.fixture
def begun(tmp_path: Path) -> ServedStreams:
    streams = opened(tmp_path, snapshot_every=1000)
    streams.registry.add(StreamRow("s0", "", None, CONFIG))
    adapter = fresh_adapter(classes=NAMES, templates=["a {}."])
    for i in range(6):
        send(streams, "s0", adapter, i)
    closed(streams)
    return streams


def test_a_damaged_middle_is_reported_and_a_reset_mends_it(begun: ServedStreams, tmp_path: Path) -> None:
    path = tmp_path / "store" / "streams" / "s0" / "journal"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    streams = opened(tmp_path)
    for _ in range(2):
        with pytest.raises(DamagedStreamError, match="damaged at byte"):
            streams.get("s0")
    assert path.read_bytes() == data, "what is damaged stays for whoever can mend it"
    streams.forget("s0")
    assert streams.get("s0").adapter.health().seen == 0
    closed(streams)


def test_a_missing_record_is_reported(begun: ServedStreams, tmp_path: Path) -> None:
    path = tmp_path / "store" / "streams" / "s0" / "journal"
    records = read_records(path.read_bytes(), "it")[0]
    kept = [pack_record(one.facts, one.tensors) for one in records if one.facts.get("number") != 3]
    path.write_bytes(b"".join(kept))
    streams = opened(tmp_path)
    with pytest.raises(DamagedStreamError, match="lacks change 3"):
        streams.get("s0")
    closed(streams)


def test_a_journal_of_other_settings_is_refused(begun: ServedStreams, tmp_path: Path) -> None:
    streams = opened(tmp_path)
    streams.registry.configure("s0", {**CONFIG, "classes": NAMES[:5]})
    with pytest.raises(DamagedStreamError, match="another model, class list"):
        streams.get("s0")
    closed(streams)


def test_a_store_that_fails_takes_the_image_back(begun: ServedStreams, tmp_path: Path) -> None:
    streams = opened(tmp_path)
    adapter = fresh_adapter(classes=NAMES, templates=["a {}."])
    for image in pictures(12)[:6]:
        adapter(image)
    (tmp_path / "store").rename(tmp_path / "away")
    for _ in range(3):
        (told,) = streams.answer([Look("s0", adapter.pixels(pictures(12)[6]))])
        assert isinstance(told, LessmoreError) and not isinstance(told, StateError)
    (tmp_path / "away").rename(tmp_path / "store")
    send(streams, "s0", adapter, 6)
    assert streams.get("s0").place.seq == 7
    closed(streams)


def test_keys_are_remembered_for_a_thousand_images_and_over_restarts(tmp_path: Path) -> None:
    streams = opened(tmp_path, snapshot_every=5)
    streams.registry.add(StreamRow("s0", "", None, {**CONFIG, "method": "zeroshot"}))
    pixels = fresh_adapter(classes=NAMES).pixels(pictures(12)[0])
    (first,) = streams.answer([Look("s0", pixels, Asked("first"))])
    for i in range(12):
        streams.answer([Look("s0", pixels, Asked(f"k{i}"))])
    closed(streams)
    streams = opened(tmp_path)
    assert streams.answer([Look("s0", pixels, Asked("first"))]) == [first]
    place = streams.get("s0").place
    for seq in range(14, 1002):
        place.remember(None, {"seq": seq})
    assert "first" not in place.keys and "k11" in place.keys
    closed(streams)


@pytest.mark.parametrize("durability", ["snapshot", "none"])
def test_evicted_streams_come_back_without_a_journal(tmp_path: Path, durability: str) -> None:
    streams = opened(tmp_path, durability=durability, max_resident=1)
    adapters = {}
    for i in range(3):
        streams.registry.add(StreamRow(f"s{i}", "", None, CONFIG))
        adapters[f"s{i}"] = fresh_adapter(classes=NAMES, templates=["a {}."])
    for i in range(12):
        send(streams, f"s{i % 3}", adapters[f"s{i % 3}"], i)
    assert len(streams.resident) == 1
    closed(streams)


def test_memory_is_bounded_by_bytes_too(tmp_path: Path) -> None:
    streams = opened(tmp_path, max_resident=100, memory_limit_mb=1)
    for i in range(9):
        streams.registry.add(StreamRow(f"s{i}", "", None, CONFIG))
        streams.answer([Look(f"s{i}", fresh_adapter(classes=NAMES).pixels(pictures(12)[i]))])
    assert 1 < len(streams.resident) < 9
    assert sum(one.memory for one in streams.resident.values()) <= 2**20
    closed(streams)
