"""The registry of a server in SQLite: its bytes damaged, its rows forged; then a server starts on it."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from lessmore.errors import LessmoreError
from lessmore.serve.metrics import Metrics
from lessmore.serve.opened import check_listed
from lessmore.serve.registry import StreamRegistry, StreamRow
from lessmore.serve.store import FolderStore
from lessmore.serve.streams import ServedStreams
from tests.fuzz.craft import crafted_json
from tests.fuzz.mutate import damaged
from tests.fuzz.outcomes import Outcome, Trial
from tests.fuzz.runs import quickly
from tests.fuzz.served import CHOSEN, METHODS, Begun, equal, stands
from tests.fuzz.states import listening
from tests.serve.server import tiny

OWNER, SPARE = "somebody", 40
"""Whose the streams are; streams that were never asked anything, so that the list takes several pages."""
ODD = ("null", "7", "1e999", "x'ff00fe'", "zeroblob(3000)", "'other'", "''", "cast(x'c328' as text)", "-1")
STATEMENTS = (
    "update lessmore_streams set {column} = {odd} where id = '{stream}'",
    "update lessmore_streams set {column} = {odd}",
    "update lessmore_streams set owner = 'another' where id = '{stream}'",
    "update lessmore_streams set config = (select config from lessmore_streams where id = '{other}') "
    "where id = '{stream}'",
    "delete from lessmore_streams where id = '{stream}'",
    "delete from lessmore_streams",
    "drop table lessmore_streams",
    "alter table lessmore_streams rename to others",
    "alter table lessmore_streams rename column {column} to other",
    "create table lessmore_streams_2 as select * from lessmore_streams; drop table lessmore_streams; "
    "alter table lessmore_streams_2 rename to lessmore_streams",
    "pragma user_version = 7",
)


def registry_files(folder: Path, crafted: bool) -> Trial:
    """The file of SQLite or its log is damaged, or a row is forged. No stream is lost or mixed up without a word."""
    store = FolderStore(folder / "store", fsync=False)
    begun = Begun(folder, store, OWNER)
    for i in range(SPARE):
        begun.registry.add(StreamRow(f"spare{i}", OWNER, f"number {i}", {"classes": ["a", "b"]}))
    good = {path.name: path.read_bytes() for path in folder.glob("registry.db*") if not path.name.endswith("-shm")}
    begun.registry.close()
    rows = {row.id: row for row in _listed(folder)}

    def use() -> bool | Outcome:
        with quickly(), listening("lessmore.serve") as heard:
            registry = StreamRegistry(f"sqlite:///{folder / 'registry.db'}", fsync=False)
            try:
                check_listed(store, registry)
                streams = ServedStreams(tiny(), CHOSEN, registry, store, Metrics())
                streams._templates = begun.streams._templates  # of the same settings, and dear
                found = _found(streams, begun, rows)
                return Outcome.REFUSED if found is False and heard.lines else found
            finally:
                registry.close()

    def trial(dice: random.Random) -> tuple[Callable[[], bool | Outcome], str]:
        for path in folder.glob("registry.db*"):
            path.unlink()
        for name, data in good.items():
            (folder / name).write_bytes(data)
        if crafted:
            return use, _forged(folder / "registry.db", dice)
        name = dice.choice(sorted(good))
        (folder / name).write_bytes(damaged(good[name], dice))
        return use, name

    return trial


def _listed(folder: Path) -> list[StreamRow]:
    """What a server finds that opens what a kill left; good files alone go back to this, log and all."""
    registry = StreamRegistry(f"sqlite:///{folder / 'registry.db'}", fsync=False)
    rows = registry.page(None, "", 1000)
    registry.close()
    return rows


def _found(streams: ServedStreams, begun: Begun, rows: dict[str, StreamRow]) -> bool | Outcome:
    """Whether each stream is as it was or refused by name, and no row says anything else than before."""
    refused = False
    for name in METHODS:
        try:
            stood = stands(streams.get(name))
        except LessmoreError:
            refused = True
            continue
        if not any(equal(stood, one) for one in begun.stood[name].values()):
            return False
    for row in streams.registry.page(None, "", 1000):
        if row.config and rows.get(row.id) != row:
            return False
        refused |= not row.config
    missing = rows.keys() - streams.registry.ids()
    if any(name in METHODS for name in missing):
        return False  # unless a line in the log has said so
    return Outcome.REFUSED if refused or missing else True


def _forged(file: Path, dice: random.Random) -> str:
    stream, other = dice.sample(sorted(METHODS), 2)
    column = dice.choice(["id", "owner", "name", "config", "created"])
    with closing(sqlite3.connect(file)) as connection:
        if dice.random() < 0.3:
            (text,) = connection.execute("select config from lessmore_streams where id = ?", (stream,)).fetchone()
            odd, told = crafted_json(json.loads(text), dice)
            with suppress(UnicodeEncodeError):
                connection.execute("update lessmore_streams set config = ? where id = ?", (str(odd), stream))
        else:
            told = dice.choice(STATEMENTS).format(column=column, odd=dice.choice(ODD), stream=stream, other=other)
            with suppress(sqlite3.Error):
                connection.executescript(told)
        connection.commit()
    return told
