"""Files of streams with a right checksum and content that cannot be: refused, and no other stream notices."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

from lessmore.engines.tracks import TENSOR
from lessmore.errors import StateError
from lessmore.serve.errors import DamagedStreamError
from lessmore.serve.journal import pack_record, read_records
from lessmore.serve.objectstore import ObjectStore
from lessmore.serve.registry import StreamRow
from lessmore.serve.streams import Look, ServedStreams
from lessmore.storage import sealed
from lessmore.storage.state import SCHEMA
from tests.serve.server import fresh_adapter, pictures
from tests.serve.test_schedules import CONFIG, NAMES, closed, opened, send


@pytest.fixture
def streams(tmp_path: Path) -> Any:
    """Stream `bad` with a snapshot and a journal after it, and stream `good`."""
    found = opened(tmp_path, snapshot_every=1000)
    for name in ("bad", "good"):
        found.registry.add(StreamRow(name, "", None, CONFIG))
        adapter = fresh_adapter(classes=NAMES, templates=["a {}."])
        for i in range(5):
            send(found, name, adapter, i)
            if i == 2:
                found.get(name).save()
    yield found
    closed(found)


def refused(streams: ServedStreams, says: str) -> None:
    """The bad stream is refused by name; the good one, in the same batch, is answered."""
    streams.resident.clear()
    pixels = fresh_adapter(classes=NAMES).pixels(pictures(12)[7])
    bad, good = streams.answer([Look("bad", pixels), Look("good", pixels)])
    assert isinstance(bad, DamagedStreamError) and says in str(bad), bad
    assert isinstance(good, dict) and good["seq"] == 6


PLACES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "number": lambda place: place.update(number="many"),
    "seq": lambda place: place.update(seq=2**60),
    "last": lambda place: place["last"].update(entropy=math.nan),
    "last.top": lambda place: place["last"].update(top=[]),
    "keys": lambda place: place.update(keys=[["a", {"seq": 1}]]),
    "does not say where": lambda place: place.update(seq=1),
}


@pytest.mark.parametrize("says", PLACES)
def test_a_snapshot_that_says_nonsense(says: str, streams: ServedStreams, tmp_path: Path) -> None:
    path = tmp_path / "store" / "streams" / "bad" / "snapshot.safetensors"
    tensors, facts = sealed.read_tensors(path, SCHEMA, 1 << 30, "")
    PLACES[says](facts["facts"]["place"])
    sealed.write_tensors(path, tensors, SCHEMA, facts)
    refused(streams, says)


@pytest.mark.parametrize(("name", "value"), [("temperature", 1e9), ("seen", 2**60)])
def test_a_snapshot_with_counts_that_no_stream_reaches(
    name: str, value: float, streams: ServedStreams, tmp_path: Path
) -> None:
    path = tmp_path / "store" / "streams" / "bad" / "snapshot.safetensors"
    tensors, facts = sealed.read_tensors(path, SCHEMA, 1 << 30, "")
    facts["facts"]["health"][name] = value
    sealed.write_tensors(path, tensors, SCHEMA, facts)
    refused(streams, "out of range")


def a_frame_too_many(facts: dict[str, Any], delta: dict[str, Any]) -> None:
    facts["track"] = ["cup", 2, None]
    delta[TENSOR] = torch.full((3, len(NAMES)), -1e9, dtype=torch.float64)


RECORDS: dict[str, Callable[[dict[str, Any], dict[str, Any]], Any]] = {
    "not finite": lambda facts, delta: delta["token_mean"].fill_(math.nan),
    "not those of an image": lambda facts, delta: delta.update(strength=delta["strength"].int()),
    "a place or an image": lambda facts, delta: delta.update(slot=torch.tensor(-(2**40)), tokens=delta["tokens"][:0]),
    "answer.top.0.score": lambda facts, delta: facts["answer"]["top"][0].update(score=7.0),
    "number": lambda facts, delta: facts.update(number=None),
    "sums of a track": a_frame_too_many,
    "span is out of range": lambda facts, delta: delta["span"].fill_(1e30),
}


@pytest.mark.parametrize("says", RECORDS)
def test_a_record_that_says_nonsense(says: str, streams: ServedStreams, tmp_path: Path) -> None:
    path = tmp_path / "store" / "streams" / "bad" / "journal"
    records = read_records(path.read_bytes(), "it")[0]
    facts, delta = dict(records[-1].facts), dict(records[-1].tensors)
    RECORDS[says](facts, delta)
    packed = [pack_record(one.facts, one.tensors) for one in records[:-1]]
    path.write_bytes(b"".join([*packed, pack_record(facts, delta)]))
    refused(streams, says)


@pytest.mark.parametrize("config", ["", "[]", "{}", '{"classes": ["a"]}', "[" * 100_000])
def test_a_row_that_is_damaged(config: str, streams: ServedStreams, tmp_path: Path) -> None:
    streams.store.delete("bad")
    with streams.registry._engine.begin() as connection:
        connection.exec_driver_sql("update lessmore_streams set config = ? where id = 'bad'", (config,))
    assert [row.id for row in streams.registry.page(None, "", 10)] == ["bad", "good"]
    refused(streams, "settings makes no sense")


@pytest.mark.parametrize("base", [b"", b"\0\0\0", (2**40).to_bytes(8, "little") + b"x"])
def test_a_base_that_is_cut(base: bytes) -> None:
    fsspec.filesystem("memory").pipe_file("/forged/streams/bad/0000000001-0123456789ab/base", base)
    store = ObjectStore("memory://forged")
    with pytest.raises(StateError, match="base of stream bad is damaged"):
        store.snapshot("bad")
    fsspec.filesystem("memory").rm("/forged", recursive=True)
