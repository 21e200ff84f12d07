"""What a server keeps: snapshots, journals, objects and rows of its registry; damaged, and written by a forger."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from sqlalchemy import text

from lessmore.errors import LessmoreError
from lessmore.serve import registry as registries
from lessmore.serve.answer import Asked
from lessmore.serve.errors import UnavailableError
from lessmore.serve.journal import pack_record, read_records
from lessmore.serve.metrics import Metrics
from lessmore.serve.objectstore import ObjectStore
from lessmore.serve.registry import StreamRegistry, StreamRow
from lessmore.serve.resident import Resident
from lessmore.serve.settings import ServerSettings
from lessmore.serve.store import FolderStore, StateStore
from lessmore.serve.streams import Look, ServedStreams
from lessmore.storage.state import SCHEMA
from tests.fuzz.craft import crafted_json, crafted_tensors, rewrite_tensors
from tests.fuzz.mutate import damaged
from tests.fuzz.outcomes import Outcome, Trial
from tests.fuzz.runs import quickly
from tests.fuzz.states import CLASSES, images, same
from tests.serve.server import tiny

BEFORE, AFTER = 3, 4
"""Images that the snapshot holds, and that the journal holds after it."""
METHODS = {"tca": "tca", "tda": "tda", "neighbour": "tca"}
_PIXELS = [image[None] for image in images(12, 4)]


class Kept(Protocol):
    """Where a stream's files can be changed behind the server's back."""

    def read(self) -> dict[str, bytes]: ...
    def write(self, files: dict[str, bytes]) -> None: ...


class Folder:
    """The files of a `FolderStore`."""

    def __init__(self, root: Path) -> None:
        self._root = root / "streams"

    def read(self) -> dict[str, bytes]:
        return {str(p.relative_to(self._root)): p.read_bytes() for p in self._root.rglob("*") if p.is_file()}

    def write(self, files: dict[str, bytes]) -> None:
        for name, data in files.items():
            (self._root / name).write_bytes(data)


class Objects:
    """The objects of an `ObjectStore` in memory."""

    def __init__(self, store: ObjectStore) -> None:
        self._fs, self._root = store._fs, store._root

    def read(self) -> dict[str, bytes]:
        return {name: self._fs.cat_file(name) for name in self._fs.find(f"{self._root}/streams")}

    def write(self, files: dict[str, bytes]) -> None:
        for name in self._fs.find(f"{self._root}/streams"):
            if name not in files:
                self._fs.rm_file(name)
        for name, data in files.items():
            self._fs.pipe_file(name, data)


def stands(resident: Resident) -> dict[str, Any]:
    """Where a stream stands: its state, its counts and what it remembers."""
    place = asdict(resident.place) | {"keys": list(resident.place.keys.items())}
    sums, tracks = resident.tracks.saved()
    health = resident.adapter.answerer.counts()
    return {"state": resident.method.state() | sums, "counts": health, "place": place, "tracks": tracks}


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return same(one["state"], other["state"]) and all(
        one[name] == other[name] for name in ("counts", "place", "tracks")
    )


CHOSEN = ServerSettings(max_batch=1, snapshot_every=1000)


class Begun:
    """Streams that have seen some images, and where each stood after every one of them."""

    def __init__(self, folder: Path, store: StateStore, owner: str = "") -> None:
        self.registry = StreamRegistry(f"sqlite:///{folder / 'registry.db'}", fsync=False)
        self.streams = ServedStreams(tiny(), CHOSEN, self.registry, store, Metrics())
        self.stood: dict[str, dict[int, dict[str, Any]]] = {}
        with quickly():
            for name, method in METHODS.items():
                config = {"classes": CLASSES, "templates": "photo", "preset": "default", "R": None, "method": method}
                self.registry.add(StreamRow(name, owner, None, config))
                self.stood[name] = {0: stands(self.streams.get(name))}
                for i in range(BEFORE + AFTER):
                    self.streams.answer(
                        [Look(name, _PIXELS[i], Asked(f"key {i}", track=f"cup {i % 3}" if i % 2 else None))]
                    )
                    resident = self.streams.get(name)
                    self.stood[name][resident.place.number] = stands(resident)
                    if i == BEFORE - 1:
                        resident.save()

    def use(self, name: str) -> bool | Outcome:
        """Bring a stream back, and look at it and at its neighbour."""
        self.streams.resident.clear()
        try:
            found = stands(self.streams.get(name))
            good = any(equal(found, stood) for stood in self.stood[name].values())
        except LessmoreError:
            good = Outcome.REFUSED
        told = self.streams.answer([Look(name, _PIXELS[8]), Look("neighbour", _PIXELS[8])])
        if any(isinstance(one, UnavailableError) and "the model failed" in str(one) for one in told):
            return Outcome.TRACEBACK
        beside = self.streams.get("neighbour").place
        assert isinstance(told[1], dict) and beside.seq == BEFORE + AFTER + 1, "the neighbour lost something"
        return good


def folder_streams(folder: Path, crafted: bool) -> Trial:
    """Snapshot, journal or row of a stream in a folder is changed, and it is brought back."""
    store = FolderStore(folder / "store", fsync=False)
    begun, kept = Begun(folder, store), Folder(folder / "store")
    rows = {name: _row(begun.registry, name) for name in METHODS}

    def trial(dice: random.Random) -> tuple[Callable[[], bool | Outcome], str]:
        kept.write(files)
        for one, row in rows.items():
            _set_row(begun.registry, one, row)
        name = dice.choice(["tca", "tda"])
        file = dice.choice(["snapshot.safetensors", "journal", "row"])
        if file == "row":
            store.cut(name, 0)  # only a stream without a snapshot lives by its row
            (store._folder(name) / "snapshot.safetensors").unlink()
            row, told = _changed_row(rows[name], crafted, dice)
            _set_row(begun.registry, name, row)
            return (lambda: begun.use(name)), f"row of {name}, {told}"
        path = store._folder(name) / file
        if not crafted:
            path.write_bytes(damaged(path.read_bytes(), dice))
            return (lambda: begun.use(name)), str(path)
        told = craft_journal_file(path, dice) if file == "journal" else rewrite_tensors(path, SCHEMA, dice, ("facts",))
        return (lambda: begun.use(name)), f"{file} of {name}, {told}"

    files = kept.read()
    return _quick(trial)


def object_streams(folder: Path, crafted: bool) -> Trial:
    """An object of a stream behind a URL is changed or lost, and the stream is brought back."""
    store = ObjectStore(f"memory://{uuid.uuid4().hex}")
    begun, kept = Begun(folder, store), Objects(store)
    files = kept.read()

    def trial(dice: random.Random) -> tuple[Callable[[], bool | Outcome], str]:
        changed = dict(files)
        name = dice.choice(["tca", "tda"])
        path = dice.choice(sorted(path for path in files if f"/{name}/" in path and not path.endswith("taken")))
        if not crafted:
            changed[path] = damaged(files[path], dice)
            told = path
        elif path.endswith("base"):
            told = _craft_base(changed, path, folder, dice)
        elif dice.random() < 0.2:
            del changed[path]
            told = f"without {path}"
        else:
            changed[path], told = _craft_records(files[path], dice)
        kept.write(changed)
        store._next.clear()
        return (lambda: begun.use(name)), told

    return _quick(trial)


def _quick(trial: Trial) -> Trial:
    """The same, with nothing that waits for the disk."""

    def quick(dice: random.Random) -> tuple[Callable[[], bool | Outcome], str]:
        work, told = trial(dice)

        def use() -> bool | Outcome:
            with quickly():
                return work()

        return use, told

    return quick


def craft_journal_file(path: Path, dice: random.Random) -> str:
    """A record that makes no sense, with a right checksum, in a journal."""
    data, told = _craft_records(path.read_bytes(), dice)
    path.write_bytes(data)
    return told


def _craft_records(data: bytes, dice: random.Random) -> tuple[bytes, str]:
    records = read_records(data, "it")[0]
    place = dice.randrange(len(records))
    facts, tensors = records[place].facts, records[place].tensors
    told = ""
    if any(tensor.numel() for tensor in tensors.values()) and dice.random() < 0.6:
        # A record of a method without deltas holds what changed, so that one tensor less is another image.
        tensors, told = crafted_tensors(tensors, dice, fewer="slot" in tensors)
    else:
        facts, told = crafted_json(facts, dice)
    with suppress(UnicodeEncodeError):
        packed = [pack_record(one.facts, one.tensors) for one in records]
        packed[place] = pack_record(facts, tensors)
        return b"".join(packed), f"record {place}, {told}"
    return b"", told


def _craft_base(files: dict[str, bytes], path: str, folder: Path, dice: random.Random) -> str:
    size = int.from_bytes(files[path][:8], "little")
    if size == 0 or dice.random() < 0.3:
        size = dice.choice([0, 1, size + 1, 2**40, 2**64 - 1])
        files[path] = size.to_bytes(8, "little") + files[path][8:]
        return f"a base of {size}"
    local = folder / "base.safetensors"
    local.write_bytes(files[path][8 : 8 + size])
    told = rewrite_tensors(local, SCHEMA, dice, ("facts",))
    files[path] = local.stat().st_size.to_bytes(8, "little") + local.read_bytes() + files[path][8 + size :]
    return told


def _row(registry: StreamRegistry, stream: str) -> str:
    with registry._engine.begin() as connection:
        found: str = connection.execute(
            text("select config from lessmore_streams where id = :id"), {"id": stream}
        ).scalar_one()
    return found


def _set_row(registry: StreamRegistry, stream: str, config: str) -> None:
    with registry._engine.begin() as connection:
        connection.execute(
            text("update lessmore_streams set config = :config where id = :id"), {"config": config, "id": stream}
        )


def _changed_row(row: str, crafted: bool, dice: random.Random) -> tuple[str, str]:
    if not crafted:
        return damaged(row.encode(), dice).decode("utf-8", "replace"), "damaged"
    plain = json.loads(row)
    del plain["seal"]
    odd, told = crafted_json(plain, dice)
    return registries._sealed_text(StreamRow(dice.choice(["tca", "tda"]), "", None, odd)), told
