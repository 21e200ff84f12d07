"""The list of streams and whose they are: one table, in SQLite or in any database that SQLAlchemy knows."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import (
    Column,
    Float,
    MetaData,
    String,
    Table,
    Text,
    create_engine,
    delete,
    event,
    func,
    insert,
    inspect,
    select,
    text,
)
from sqlalchemy import update as update_rows
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import ArgumentError, IntegrityError, NoSuchModuleError, SQLAlchemyError

from lessmore.errors import ConfigError
from lessmore.serve.errors import StreamExistsError, UnavailableError
from lessmore.serve.settings import without_password
from lessmore.storage.sealed import seal_of

_META = MetaData()
_STREAMS = Table(
    "lessmore_streams",
    _META,
    Column("id", String(32), primary_key=True),
    Column("owner", String(100), nullable=False, index=True),
    Column("name", String(200)),
    Column("config", Text, nullable=False),
    Column("created", Float(53), nullable=False),
)


@dataclass(frozen=True)
class StreamRow:
    """One stream, as the registry knows it."""

    id: str
    owner: str
    """Name of the key that made it; empty where there are no keys."""
    name: str | None
    config: dict[str, Any]
    """Arguments of `lessmore.adapt`; empty if they are damaged, and whoever uses them then refuses."""
    created: float = field(default_factory=time.time)
    """Seconds since 1970."""


class StreamRegistry:
    """Threads may share it. A file of SQLite is checked as a whole when it is opened."""

    def __init__(self, url: str, fsync: bool) -> None:
        self._engine, self.fresh = _connected(url, fsync)
        """fresh: whether the table was made just now, so that no stream can be known."""

    def add(self, row: StreamRow) -> None:
        """Write a new stream down.

        Raises:
            StreamExistsError: Its id is taken.
        """
        with self._reached() as connection:
            try:
                connection.execute(insert(_STREAMS).values(**{**vars(row), "config": _sealed_text(row)}))
            except IntegrityError as error:  # another server was faster
                raise StreamExistsError(f"there is a stream {row.id} already", "take another id, or none") from error

    def find(self, stream: str) -> StreamRow | None:
        """The stream with an id."""
        with self._reached() as connection:
            found = connection.execute(select(_STREAMS).where(_STREAMS.c.id == stream)).mappings().first()
        return None if found is None else _row(found)

    def page(self, owner: str | None, after: str, limit: int) -> list[StreamRow]:
        """Streams in the order of their ids.

        Args:
            owner: Only those of one key; None means all.
            after: The last id of the page before.
            limit: Streams at most.
        """
        wanted = select(_STREAMS).where(_STREAMS.c.id > after).order_by(_STREAMS.c.id).limit(limit)
        if owner is not None:
            wanted = wanted.where(_STREAMS.c.owner == owner)
        with self._reached() as connection:
            return [_row(found) for found in connection.execute(wanted).mappings()]

    def ids(self) -> set[str]:
        """The ids of all streams."""
        with self._reached() as connection:
            return set(connection.execute(select(_STREAMS.c.id)).scalars())

    def count(self) -> int:
        """How many streams there are."""
        with self._reached() as connection:
            return int(connection.execute(select(func.count()).select_from(_STREAMS)).scalar_one())

    def configure(self, stream: str, config: dict[str, Any]) -> None:
        """Write down other settings of a stream.

        Args:
            stream: Its id.
            config: Arguments of `lessmore.adapt`.
        """
        with self._reached() as connection:
            found = connection.execute(select(_STREAMS).where(_STREAMS.c.id == stream)).mappings().first()
            if found is not None:
                sealed = _sealed_text(replace(_row(found), config=config))
                connection.execute(update_rows(_STREAMS).where(_STREAMS.c.id == stream).values(config=sealed))

    def remove(self, stream: str) -> None:
        """Strike a stream off the list."""
        with self._reached() as connection:
            connection.execute(delete(_STREAMS).where(_STREAMS.c.id == stream))

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    @contextmanager
    def _reached(self) -> Iterator[Connection]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise UnavailableError(
                f"the registry cannot be reached ({_short(error)})", "bring the database back, then try again", 5
            ) from error


def _connected(url: str, fsync: bool) -> tuple[Engine, bool]:
    """The database with its table, and whether the table is new."""
    try:
        engine = create_engine(url, pool_pre_ping=True)
        if engine.dialect.name == "sqlite":
            _set_up_sqlite(engine, "FULL" if fsync else "NORMAL")
        fresh = not inspect(engine).has_table(_STREAMS.name)
        _META.create_all(engine)
        reason = _problem(engine)
    except (ArgumentError, NoSuchModuleError, ImportError) as error:
        raise ConfigError(
            f"{without_password(url)} is no database this server knows ({_short(error)}); "
            "give an SQLAlchemy URL such as sqlite:////var/lib/lessmore/registry.db, and install its driver"
        ) from error
    except SQLAlchemyError as error:
        remedy = "start it" if engine.dialect.name != "sqlite" else "put back a copy if it is damaged"
        raise ConfigError(
            f"the database {without_password(url)} cannot be used ({_short(error)}); {remedy}, or give another --db"
        ) from error
    if reason:
        engine.dispose()
        raise ConfigError(
            f"the database {without_password(url)} is damaged ({reason}); put back a copy, or give another --db"
        )
    return engine, fresh


def _problem(engine: Engine) -> str | None:
    """What is wrong with the table, or with a whole file of SQLite, indexes included; None if nothing is."""
    with engine.begin() as connection:
        connection.execute(select(_STREAMS).limit(1))
        if engine.dialect.name != "sqlite":
            return None
        told = str(connection.execute(text("PRAGMA integrity_check(1)")).scalar_one())
    return None if told == "ok" else " ".join(told.split())[:200]


def _set_up_sqlite(engine: Engine, synchronous: str) -> None:
    @event.listens_for(engine, "connect")
    def configure(connection: Any, _: object) -> None:
        # A damaged text shall spoil its own row, which its seal tells, not every list it is in.
        connection.text_factory = lambda data: data.decode("utf-8", "replace")
        for setting in ("journal_mode=WAL", f"synchronous={synchronous}", "busy_timeout=5000"):
            connection.execute(f"PRAGMA {setting}")


def _row(found: Any) -> StreamRow:
    """A stream as it was written; without settings where it is damaged, so that a list of streams can still be had."""
    try:
        config = json.loads(found["config"])
        seal = config.pop("seal")
        row = StreamRow(**{**found, "config": config})
        if seal == _seal(row):
            return row
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    return StreamRow(str(found["id"]), str(found["owner"]), None, {}, 0.0)


def _sealed_text(row: StreamRow) -> str:
    return json.dumps({**row.config, "seal": _seal(row)})


def _seal(row: StreamRow) -> str:
    return seal_of([row.id, row.owner, row.name, row.config, row.created])


def _short(error: Exception) -> str:
    text = str(getattr(error, "orig", None) or error)
    return " ".join(text.split())[:200]
