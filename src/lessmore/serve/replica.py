"""A server without a socket: an actor of Ray Serve that answers what the front hands it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Message

from lessmore.serve.app import make_app
from lessmore.serve.auth import read_keys
from lessmore.serve.errors import UnavailableError
from lessmore.serve.opened import opened_service
from lessmore.serve.run import set_up_logs
from lessmore.serve.settings import ServerSettings


class Replica:
    """One of several servers on one store."""

    async def __init__(self, settings: dict[str, Any], classes: list[str]) -> None:  # type: ignore[misc]  # Ray awaits it
        """settings: those of the server, as a dictionary. classes: those of streams that bring none."""
        from ray import serve

        chosen = ServerSettings(**settings)
        set_up_logs(chosen)
        self._opened = ExitStack()
        self._service = self._opened.enter_context(opened_service(chosen, classes))
        self._app = make_app(self._service, [] if chosen.api_keys is None else read_keys(Path(chosen.api_keys)))
        self._service.start()

        @serve.multiplexed(max_num_models_per_replica=chosen.max_resident)  # type: ignore[untyped-decorator]
        async def hold(stream: str) -> str:
            return stream

        self._hold = hold

    async def check_health(self) -> None:
        """Ray asks this again and again, and replaces a replica that raises or does not answer.

        Raises:
            UnavailableError: The model does not work.
        """
        if not await self._service.ready():
            raise UnavailableError("the model is not ready", "see the log of the replica")

    async def answer(self, scope: dict[str, Any], body: bytes) -> AsyncIterator[Message]:
        """What the application sends.

        Args:
            scope: Of the request.
            body: All of it.
        """
        from ray import serve

        if stream := serve.get_multiplexed_model_id():
            await self._hold(stream)  # tells Ray who has it
        async for message in sent_by(self._app, scope, body):
            yield message

    async def figures(self, scope: dict[str, Any]) -> tuple[str, int, bytes]:
        """This replica's name, and status and body of its answer.

        Args:
            scope: Of a request for /metrics.
        """
        from ray import serve

        sent = [message async for message in sent_by(self._app, scope, b"")]
        body = b"".join(message.get("body", b"") for message in sent)
        return serve.get_replica_context().replica_id.unique_id, sent[0]["status"], body


async def sent_by(app: ASGIApp, scope: dict[str, Any], body: bytes) -> AsyncIterator[Message]:
    """The messages of an application, until it ends or nobody wants more.

    Args:
        app: The application.
        scope: Of the request.
        body: All of it.
    """
    waiting: asyncio.Queue[Message | None] = asyncio.Queue()
    given: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if not given:
            await asyncio.Event().wait()  # the client stays; if it leaves, this task is ended
        return given.pop()

    async def run() -> None:
        try:
            await app({**scope, "asgi": {"version": "3.0"}, "root_path": "", "state": {}}, receive, waiting.put)
        finally:
            waiting.put_nowait(None)

    task = asyncio.create_task(run())
    try:
        while (message := await waiting.get()) is not None:
            yield message
    finally:
        task.cancel()
