"""A server as a process: what it starts with, what it logs, and how it stops."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any, Literal, Protocol

import uvicorn
from starlette.types import ASGIApp

from lessmore.errors import ConfigError
from lessmore.serve.app import Around, make_app
from lessmore.serve.auth import Key, read_keys
from lessmore.serve.opened import opened_service
from lessmore.serve.service import Service
from lessmore.serve.settings import ServerSettings
from lessmore.serve.traces import exported_traces

_LOG = logging.getLogger("lessmore.serve")
STOPPED_AT_ONCE = 130


class JsonLines(logging.Formatter):
    """Log lines as JSON objects."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        facts: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            facts["traceback"] = self.formatException(record.exc_info)
        return json.dumps(facts)


def serve(settings: ServerSettings, classes: list[str], announce: Callable[[str], None], cameras: Any = None) -> int:
    """Run a server until it is told to stop.

    Args:
        settings: All settings.
        classes: The class list of streams that bring none.
        announce: Called with the server's address once it listens.
        cameras: What stands under `cameras:` in the YAML file; None means none.

    Returns:
        An exit code.

    Raises:
        ConfigError: A setting cannot be used.
        ModelError: The model cannot be read.
    """
    if settings.ray:
        if cameras:
            raise ConfigError("replicas under Ray watch no cameras; start a server without --ray for them")
        from lessmore.serve.on_ray import serve_on_ray

        return serve_on_ray(settings, classes, announce)
    set_up_logs(settings)
    watched = _read(cameras)
    keys = [] if settings.api_keys is None else read_keys(Path(settings.api_keys))
    with exported_traces(), listening(settings) as listener, opened_service(settings, classes) as service:
        around = _watching(service, watched, keys)
        tell_start(settings, listener, announce)
        asyncio.run(StoppingServer(make_app(service, keys, around), service).serve(sockets=[listener]))
    return 0


def _read(cameras: Any) -> list[Any]:
    """The cameras that the operator named, before anything is opened."""
    if not cameras:
        return []
    try:
        from lessmore.serve.cameras.entries import read_cameras
    except ModuleNotFoundError as error:
        raise ConfigError(f"cameras need {error.name}; pip install 'lessmore[camera]'") from error
    return read_cameras(cameras)


def _watching(service: Service, cameras: list[Any], keys: list[Key]) -> Around:
    """What watches the cameras while the server runs."""
    if not cameras:
        return nullcontext
    from lessmore.serve.cameras.feeds import Feeds

    return Feeds(service, cameras, [key.caller.name for key in keys]).running


class Stoppable(Protocol):
    """What is told to stop."""

    stopping: bool

    @property
    def waiting(self) -> int:
        """How much waits."""

    async def drain(self) -> None:
        """Take nothing more, and wait until all that was accepted is answered."""


class StoppingServer(uvicorn.Server):
    """A server that answers what it has accepted before it stops."""

    def __init__(self, app: ASGIApp, service: Stoppable, lifespan: Literal["on", "off"] = "on") -> None:
        """service: what answers behind the application. lifespan: whether the application starts and ends it."""
        config = uvicorn.Config(
            app, lifespan=lifespan, ws="none", log_config=None, access_log=False, server_header=False
        )
        config.timeout_graceful_shutdown, config.timeout_keep_alive = 5, 30
        super().__init__(config)
        self._service = service
        self._stopping: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal stops acceptance; a second one ends the process, which the journal makes safe.

        Args:
            sig: The signal.
            frame: Where it came; not looked at.
        """
        if self._service.stopping:
            os._exit(STOPPED_AT_ONCE)
        self._service.stopping = True
        asyncio.get_running_loop().call_soon_threadsafe(self._stop, signal.Signals(sig).name)

    def _stop(self, name: str) -> None:
        _LOG.info("stop", extra={"facts": {"signal": name, "waiting": self._service.waiting}})
        self._stopping = asyncio.create_task(self._drained())

    async def _drained(self) -> None:
        await self._service.drain()
        self.should_exit = True


@contextmanager
def listening(settings: ServerSettings) -> Iterator[socket.socket]:
    """A socket on the host and port of the settings.

    Args:
        settings: All settings.

    Raises:
        ConfigError: Something else listens there, or the address is not of this machine.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {settings.host}:{settings.port} ({error.strerror}); give another --port, or 0 for any"
        ) from error
    with listener:
        yield listener


def tell_start(settings: ServerSettings, listener: socket.socket, announce: Callable[[str], None]) -> None:
    """Announce the address, and log the settings in force.

    Args:
        settings: All settings.
        listener: What listens.
        announce: Called with the address.
    """
    host, port = listener.getsockname()[:2]
    announce(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
    _LOG.info("start", extra={"facts": {"settings": settings.printable()}})


def set_up_logs(settings: ServerSettings) -> None:
    """Write what the server says to stderr, as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("lessmore.serve", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO if settings.log == "json" and name != "uvicorn" else logging.WARNING)
