"""What every request passes first: a number, a log line, a check of its host, and limits on its body."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import time
import uuid
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lessmore.serve.errors import (
    BusyError,
    ForbiddenError,
    ServeError,
    SlowBodyError,
    TooLargeError,
    error_body,
    status_of,
)
from lessmore.serve.metrics import Metrics
from lessmore.serve.settings import ServerSettings
from lessmore.serve.traces import span

_LOG = logging.getLogger("lessmore.serve")
_NUMBER = re.compile(r"[\w.-]{1,64}", re.ASCII)


class BodyError(HTTPException):
    """A body that is not read to its end; frameworks let this kind of exception through."""

    def __init__(self, error: ServeError) -> None:
        super().__init__(error.status, error.message)
        self.error = error


def error_response(error: Exception, path: str = "") -> JSONResponse:
    """An error as clients get it.

    Args:
        error: What went wrong.
        path: What was asked for; under /v2 the body is what the open inference protocol says, a text.
    """
    after = error.retry_after if isinstance(error, ServeError) else None
    headers = {} if after is None else {"Retry-After": str(after)}
    if status_of(error)[0] == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(in_protocol(error_body(error), path), status_of(error)[0], headers)


def in_protocol(body: dict[str, Any], path: str) -> dict[str, Any]:
    """The body of an error in the words of the protocol that a path speaks.

    Args:
        body: As all others get it.
        path: What was asked for.
    """
    if path != "/v2" and not path.startswith("/v2/"):
        return body
    return {"error": f"{body['error']['message']}; {body['error']['remedy']}"}


class AccessLog:
    """Numbers requests, writes one line for each and counts them; no line holds anything of an image."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        number = given if _NUMBER.fullmatch(given) else uuid.uuid4().hex
        start, status = time.monotonic(), [499]  # as long as nothing was sent, the client has gone

        async def numbered(message: Message) -> None:
            if message["type"] == "http.response.start":
                status[0] = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = number
            await send(message)

        with span(scope["method"], Headers(scope=scope)) as traced:
            try:
                await self.app(scope, receive, numbered)
            except Exception as error:  # a fault of ours: the client gets a body, and the log the traceback
                _LOG.exception("a request failed", extra={"facts": {"request": number}})
                self._metrics.errors.labels("internal").inc()
                if status[0] == 499:
                    await error_response(error, scope["path"])(scope, receive, numbered)
            finally:
                self._tell(scope, number, status[0], time.monotonic() - start, traced)

    def _tell(self, scope: Scope, number: str, status: int, seconds: float, traced: Any) -> None:
        route = getattr(scope.get("route"), "path", "none")
        self._metrics.requests.labels(route, str(status)).inc()
        if not route.endswith("/events"):
            self._metrics.request.observe(seconds)
        facts = {"request": number, "method": scope["method"], "route": route, "status": status}
        stream = scope.get("path_params", {}).get("stream") or scope.get("state", {}).get("stream")
        more = {"stream": stream} if isinstance(stream, str) and status < 400 else {}
        traced.update_name(f"{scope['method']} {route}")
        traced.set_attributes({"lessmore.request": number, "http.route": route, "http.response.status_code": status})
        traced.set_attributes({f"lessmore.{name}": value for name, value in more.items()})
        _LOG.info("request", extra={"facts": {**facts, **more, "ms": round(1000 * seconds, 3)}})


class BodyGuard:
    """Refuses bodies that are too large, too slow or too many, and requests that a foreign web page may have sent."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, metrics: Metrics) -> None:
        self.app, self._settings, self._metrics = app, settings, metrics
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with an error."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        error = self._problem(Headers(scope=scope))
        if error is not None:
            self._metrics.errors.labels(error.type).inc()
            await error_response(error, scope["path"])(scope, receive, send)
            return
        held = _Held(self)
        try:
            await self.app(scope, held.counted(receive), send)
        finally:
            self.hold(-held.bytes)

    def hold(self, count: int) -> None:
        """Count bytes of bodies that are in memory."""
        self._held += count
        self._metrics.bodies.set(self._held)

    def _problem(self, headers: Headers) -> ServeError | None:
        if self._settings.api_keys is None and not local(headers):
            return ForbiddenError(
                "without API keys only programs of this machine are served", "use the address the server printed"
            )
        length = headers.get("content-length", "0")
        return self.too_much(int(length)) if length.isascii() and length.isdigit() and len(length) < 19 else None

    def too_much(self, count: int) -> ServeError | None:
        """Why a body of so many bytes is not taken."""
        limit = self._settings.max_body_mb * 2**20
        if count > limit:
            return TooLargeError(f"the body has more than {self._settings.max_body_mb} MB", "send less at a time")
        if count and self._held + count > self._settings.max_bodies_mb * 2**20:
            return BusyError("the server holds too many bodies", "send it again after Retry-After seconds", 1)
        return None

    @property
    def patience(self) -> float:
        """Seconds that a client may pause."""
        return self._settings.body_timeout


class _Held:
    """The body of one request, as it comes in."""

    def __init__(self, guard: BodyGuard) -> None:
        self.bytes = 0
        self._guard, self._more = guard, True

    def counted(self, receive: Receive) -> Receive:
        """The same body, within the limits."""

        async def next_part() -> Message:
            if not self._more:
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), self._guard.patience)
            except asyncio.TimeoutError:
                raise BodyError(SlowBodyError("the body stopped in the middle", "send it without pauses")) from None
            if message["type"] != "http.request":
                self._more = False
                return message
            size = len(message.get("body", b""))
            error = self._guard.too_much(self.bytes + size) or self._guard.too_much(size)
            if error is not None:
                raise BodyError(error)
            self.bytes += size
            self._guard.hold(size)
            self._more = message.get("more_body", False)
            return message

        return next_part


def local(headers: Mapping[str, str]) -> bool:
    """Whether host and origin of a request are this machine; a browser tells them, whatever name it was led by."""
    origin = headers.get("origin")
    names = [urlsplit(f"//{headers.get('host', '')}"), *([urlsplit(origin)] if origin is not None else [])]
    return all(_is_loopback(name.hostname) for name in names)


def _is_loopback(host: str | None) -> bool:
    if host in ("localhost", None):
        return host is not None
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
