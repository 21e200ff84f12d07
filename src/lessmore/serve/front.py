"""The front of replicas: it finds the stream that a request is about, and passes the request to its replica."""

from __future__ import annotations

import asyncio
import json
import re
import time
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from lessmore.serve.errors import RequestError, ServeError, UnavailableError
from lessmore.serve.guard import BodyError, error_response
from lessmore.serve.inference_body import HEADER
from lessmore.serve.metrics import Metrics, merged_figures
from lessmore.serve.settings import ServerSettings

_STREAM = re.compile(r"/v1/streams/([^/]+)")
_KEPT = ("type", "http_version", "method", "scheme", "path", "raw_path", "query_string", "headers", "client", "server")
"""What of a request's scope is sent to a replica; the rest belongs to this process."""


class Front:
    """An application that leaves every answer but errors to the replicas."""

    def __init__(self, handle: Any, settings: ServerSettings) -> None:
        """handle: Ray's, of the replicas."""
        self.metrics, self.stopping, self.waiting = Metrics(), False, 0
        self._handle, self._grace, self._over = handle, settings.grace, asyncio.Event()

    async def drain(self) -> None:
        """Take nothing more, and wait until all that was accepted is answered, within the grace."""
        end = time.monotonic() + self._grace
        while self.waiting and time.monotonic() < end:
            await asyncio.sleep(0.01)
        self._over.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and its answer back."""
        begun = False

        async def sent(message: Message) -> None:
            nonlocal begun
            self.waiting -= not begun
            begun = True
            await send(message)

        self.waiting += 1
        try:
            await self._pass(scope, receive, sent)
        except Exception as error:
            if begun:
                raise
            told = _told(error)
            self.metrics.errors.labels(told.type).inc()
            await error_response(told, scope["path"])(scope, receive, sent)
        finally:
            self.waiting -= not begun

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, plain = await _body(receive), {name: scope[name] for name in _KEPT}
        if self.stopping and scope["path"] not in ("/healthz", "/metrics"):
            raise UnavailableError("the server is shutting down", "send it to another one, or again later", 5)
        if scope["path"] == "/v1/events":
            raise RequestError("no replica knows the events of all streams", "listen to /v1/streams/ID/events")
        if scope["path"] == "/metrics":
            await self._send_figures(plain, send)
            return
        chosen = self._handle.options(stream=True, multiplexed_model_id=stream_of(scope, body), method_name="answer")
        answer = chosen.remote(plain, body)
        if scope["path"].endswith("/events"):
            await self._listen(answer, receive, send)
        else:  # to its end, whether or not the client stays
            await _passed(answer, send)

    async def _listen(self, answer: Any, receive: Receive, send: Send) -> None:
        """Pass events on until the client leaves, or the server stops."""
        ends = [_passed(answer, send), _left(receive), self._over.wait()]
        tasks = [asyncio.ensure_future(one) for one in ends]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        if tasks[0] not in done:
            answer.cancel()
        elif (error := tasks[0].exception()) is not None:
            raise error

    async def _send_figures(self, scope: dict[str, Any], send: Send) -> None:
        told = await self._handle.broadcast("figures", scope).results_async()
        status, text = merged_figures(told, self.metrics)
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": text})


def _told(error: Exception) -> ServeError:
    """What a client hears of an error."""
    if isinstance(error, BodyError):
        return error.error
    if isinstance(error, ServeError):
        return error
    remedy = "send it again, under the same Idempotency-Key if it had one"
    return UnavailableError(f"the replica that had this request failed ({type(error).__name__})", remedy, 1)


async def _body(receive: Receive) -> bytes:
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


async def _passed(answer: Any, send: Send) -> None:
    async for message in answer:
        await send(message)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def stream_of(scope: Scope, body: bytes) -> str:
    """The stream that a request is about, or nothing; a wrong guess costs time only.

    Args:
        scope: Of the request.
        body: All of it.
    """
    headers, found = Headers(scope=scope), _STREAM.match(scope["path"])
    if found:
        return found[1][:64]
    if "x-stream" in headers:
        return headers["x-stream"][:64]
    length = headers.get(HEADER, "")
    try:
        parameters = json.loads(body[: int(length)] if length.isdecimal() else body)["parameters"]
        return str(parameters.get("stream") or parameters.get("sequence_id") or "")[:64]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ""
