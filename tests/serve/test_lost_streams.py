"""A registry or store that was damaged, swapped or put back in part: no stream is lost or mixed up without a word."""

from __future__ import annotations

import logging
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lessmore.errors import ConfigError
from lessmore.serve.errors import DamagedStreamError, StreamExistsError
from lessmore.serve.objectstore import ObjectStore
from lessmore.serve.opened import check_listed
from lessmore.serve.registry import StreamRegistry, StreamRow
from lessmore.serve.store import FolderStore, check_unused
from tests.serve.server import fresh_adapter
from tests.serve.test_schedules import CONFIG, NAMES, closed, opened, send

ROWS = [StreamRow(name, "me", f"camera {name}", CONFIG) for name in ("one", "two")]


@pytest.fixture
def registry_file(tmp_path: Path) -> Path:
    """A registry of two streams, closed."""
    registry = StreamRegistry(f"sqlite:///{tmp_path}/registry.db", fsync=False)
    for row in ROWS:
        registry.add(row)
    registry.close()
    return tmp_path / "registry.db"


def listed(file: Path) -> list[StreamRow]:
    registry = StreamRegistry(f"sqlite:///{file}", fsync=False)
    rows = registry.page(None, "", 10)
    registry.close()
    return rows


def changed(file: Path, statement: str) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(statement)
        connection.commit()


def test_a_registry_is_read_as_it_was_written(registry_file: Path) -> None:
    assert listed(registry_file) == ROWS


@pytest.mark.parametrize("damage", ["no database", "index", "page"])
def test_a_damaged_registry_is_refused_at_the_start(damage: str, registry_file: Path) -> None:
    data = bytearray(registry_file.read_bytes())
    if damage == "no database":
        data[:16] = bytes(16)
    elif damage == "index":  # the table still says "one", the index that finds it says "onf"
        place = data.rindex(b"one\x01") if b"one\x01" in data else data.rindex(b"one")
        data[place : place + 3] = b"onf"
    else:
        data[4096:8192] = bytes(4096)
    registry_file.write_bytes(data)
    with pytest.raises(ConfigError, match=r"(damaged|cannot be used).*; put back a copy.*or give another --db$"):
        listed(registry_file)


@pytest.mark.parametrize(
    "change",
    [
        "owner = 'you'",
        "name = 'another'",
        "created = 7",
        "config = (select config from lessmore_streams where id = 'two')",
        "owner = x'ff'",
        "name = cast(x'c328' as text)",
        "config = 7",
    ],
)
def test_a_damaged_row_has_no_settings_and_spoils_no_list(change: str, registry_file: Path) -> None:
    changed(registry_file, f"update lessmore_streams set {change} where id = 'one'")
    one, two = listed(registry_file)
    assert (one.id, one.config, one.name) == ("one", {}, None)
    assert two == ROWS[1]


@pytest.mark.parametrize("place", ["folder", "url"])
def test_a_new_registry_is_refused_for_a_store_with_streams(place: str, tmp_path: Path) -> None:
    store: Any = FolderStore(tmp_path / "store", False) if place == "folder" else ObjectStore(f"file://{tmp_path}/s")
    registry = StreamRegistry(f"sqlite:///{tmp_path}/old.db", fsync=False)
    check_listed(store, registry)
    if place == "url":
        store.snapshot("one")
    store.append("one", b"record")
    registry.close()
    new = StreamRegistry(f"sqlite:///{tmp_path}/new.db", fsync=False)
    with pytest.raises(ConfigError, match=r"the store holds 1 streams; put back the registry"):
        check_listed(store, new)
    new.close()
    store.close()


def test_a_stream_without_a_row_is_named_in_the_log_and_its_id_is_not_given_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    registry = StreamRegistry(f"sqlite:///{tmp_path}/registry.db", fsync=False)
    registry.fresh = False
    store = FolderStore(tmp_path / "store", False)
    store.append("lost", b"record")
    with caplog.at_level(logging.WARNING, "lessmore.serve"):
        logging.getLogger("lessmore.serve").addHandler(caplog.handler)
        check_listed(store, registry)
        logging.getLogger("lessmore.serve").removeHandler(caplog.handler)
    assert {tuple(record.facts["streams"]) for record in caplog.records} == {("lost",)}  # type: ignore[attr-defined]
    with pytest.raises(StreamExistsError, match="take another id, put back the registry"):
        check_unused(store, "lost")
    check_unused(store, "free")
    registry.close()
    store.close()


@pytest.mark.parametrize("file", ["snapshot.safetensors", "journal"])
def test_files_of_another_stream_are_refused(file: str, tmp_path: Path) -> None:
    """Two streams with the same settings: their files differ in nothing but whose they are."""
    streams = opened(tmp_path, snapshot_every=3 if file != "journal" else 1000)
    for name in ("mine", "yours"):
        streams.registry.add(StreamRow(name, "", None, CONFIG))
        adapter = fresh_adapter(classes=NAMES, templates=["a {}."])
        for i in range(3):
            send(streams, name, adapter, i)
    closed(streams)
    place = tmp_path / "store" / "streams"
    shutil.copy(place / "yours" / file, place / "mine" / file)
    streams = opened(tmp_path)
    with pytest.raises(DamagedStreamError, match="belongs to another stream"):
        streams.get("mine")
    assert streams.get("yours").place.seq == 3
    closed(streams)
