"""A service with all it stands on: store, registry and model, opened from settings."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from lessmore.errors import ConfigError
from lessmore.models.devices import choose_device
from lessmore.models.load import load
from lessmore.serve.registry import StreamRegistry
from lessmore.serve.service import Service
from lessmore.serve.settings import ServerSettings
from lessmore.serve.store import FolderStore, StateStore

_LOG = logging.getLogger("lessmore.serve")


@contextmanager
def opened_service(settings: ServerSettings, classes: Sequence[str]) -> Iterator[Service]:
    """A service that is not started yet; what it stands on is closed at the end.

    Args:
        settings: All settings.
        classes: The class list of streams that bring none.

    Raises:
        ConfigError: A setting cannot be used.
        ModelError: The model cannot be read.
    """
    if settings.engine not in ("auto", "cpu", "eager"):
        raise ConfigError(f"engine {settings.engine!r} is not for many streams; take auto, cpu or eager")
    device = choose_device(settings.device)
    engine = "eager" if settings.engine == "auto" and device.type == "cuda" else settings.engine
    with ExitStack() as stack:
        place = settings.store_place()
        if settings.durability == "none":
            place = tempfile.mkdtemp(prefix="lessmore-serve-")
            stack.callback(shutil.rmtree, place, ignore_errors=True)
        store = open_store(place, settings)
        stack.callback(store.close)
        registry = StreamRegistry(settings.db or f"sqlite:///{Path(place).absolute()}/registry.db", settings.fsync)
        stack.callback(registry.close)
        check_listed(store, registry)
        vlm = load(settings.model, device=device, dtype=settings.dtype)
        yield Service(vlm, classes, replace(settings, engine=engine), registry, store)


def check_listed(store: StateStore, registry: StreamRegistry) -> None:
    """Refuse a new registry for a store that has streams; say in the log which streams no registry lists.

    Args:
        store: Where streams are kept.
        registry: The list of them.

    Raises:
        ConfigError: The registry is new and the store is not, so that all its streams would be lost.
    """
    if registry.fresh and (kept := store.streams()):
        raise ConfigError(
            f"the registry is new, but the store holds {len(kept)} streams; put back the registry they were listed in, "
            "give its --db, or take an empty --store"
        )
    if store.exclusive and (lost := sorted(set(store.streams()) - registry.ids())):
        facts = {"count": len(lost), "streams": lost[:10]}
        _LOG.warning("the store holds streams that the registry does not list", extra={"facts": facts})


def open_store(place: str, settings: ServerSettings) -> StateStore:
    """The store at a place.

    Args:
        place: A folder, or a URL that fsspec knows.
        settings: All settings.

    Raises:
        ConfigError: It cannot be used, or another server has it.
    """
    if "://" not in place:
        return FolderStore(Path(place), settings.fsync)
    if settings.db is None:
        raise ConfigError("a store behind a URL needs a registry that lasts, too; give --db URL")
    from lessmore.serve.objectstore import ObjectStore

    return ObjectStore(place)
