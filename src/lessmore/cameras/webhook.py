"""Answers as POST requests to an address, tried again while nobody listens there."""

from __future__ import annotations

import base64
import threading
import urllib.error
import urllib.request
from collections import deque
from http.client import HTTPException
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from lessmore.cameras.answer import CameraAnswer
from lessmore.cameras.notices import Notices, Notify, answer_json
from lessmore.cameras.source import hidden
from lessmore.errors import ConfigError

QUEUE = 256
"""Answers that wait at most; beyond that the oldest are given up."""
WAITS = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds before an answer is sent again."""
_PATIENCE = 10.0
_LATER = (408, 425, 429, 500, 502, 503, 504)
"""Codes after which another attempt may help."""


class Webhook(Notices):
    """Posts answers in their order, in a thread of its own; the watch never waits for it."""

    def __init__(self, address: str, notify: Notify = "changes", grace: float = 5.0) -> None:
        """Nothing is sent before the first answer.

        Args:
            address: Where to post; user and password in it become basic authentication.
            notify: Whether every answer is sent.
            grace: Seconds that `close` waits for what is still to be sent.

        Raises:
            ConfigError: It is no web address.
        """
        super().__init__(notify)
        self._address, self._headers = web_address(address)
        self._shown, self._grace = hidden(address), grace
        # No redirects and no proxies: nothing but the address that was typed is opened.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)
        self._waiting: deque[CameraAnswer] = deque()
        self._change = threading.Condition()
        self._closed = threading.Event()
        self.sent, self.given_up = 0, 0
        self._thread = threading.Thread(target=self._run, name="webhook", daemon=True)
        self._thread.start()

    def send(self, answer: CameraAnswer) -> None:
        """Let an answer wait for its turn."""
        with self._change:
            self._waiting.append(answer)
            if len(self._waiting) > QUEUE:
                self._waiting.popleft()
                self.given_up += 1
            self._change.notify()

    def close(self) -> None:
        """Send what waits, within the grace; say what was given up."""
        with self._change:
            self._change.notify()
            self._change.wait_for(lambda: not self._waiting, self._grace)
            self._closed.set()
            self.given_up += len(self._waiting)
            self._change.notify()
        if self.given_up:
            self.problems.append(
                f"{self.given_up} answers could not be posted to {self._shown}; check who listens there"
            )

    def _run(self) -> None:
        while not self._closed.is_set():
            with self._change:
                self._change.wait_for(lambda: self._waiting or self._closed.is_set())
                if not self._waiting:
                    continue
                answer = self._waiting[0]
            arrived = self._deliver(answer)
            with self._change:
                if self._closed.is_set():
                    return
                self.sent += arrived
                self.given_up += not arrived
                if self._waiting and self._waiting[0] is answer:
                    self._waiting.popleft()
                self._change.notify_all()

    def _deliver(self, answer: CameraAnswer) -> bool:
        """Whether somebody has taken the answer, after several attempts."""
        for wait in (*WAITS, None):
            try:
                self._post(answer)
                return True
            except urllib.error.HTTPError as error:
                if error.code not in _LATER:
                    return False
            except (OSError, HTTPException):
                pass
            if wait is None or self._closed.wait(wait):
                return False
        return False

    def _post(self, answer: CameraAnswer) -> None:
        headers = {**self._headers, "Content-Type": "application/json", "User-Agent": "lessmore"}
        headers["Idempotency-Key"] = f"{answer.source}-{answer.number}-{answer.time}"
        request = urllib.request.Request(self._address, answer_json(answer).encode(), headers, method="POST")
        with self._opener.open(request, timeout=_PATIENCE) as reply:
            reply.read(1024)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *about: Any) -> None:
        """A redirect is an answer like any other that is not a success."""


def web_address(address: str) -> tuple[str, dict[str, str]]:
    """The address without user and password, and the header that stands for them.

    Raises:
        ConfigError: It is no web address.
    """
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"{hidden(address)} is no address ({error}); write http://host:port/path") from error
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError(f"{hidden(address)} is no web address; write http://host:port/path")
    place = f"[{host}]" if ":" in host else host
    plain = urlunsplit(parts._replace(netloc=place if port is None else f"{place}:{port}", fragment=""))
    if parts.username is None:
        return plain, {}
    secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return plain, {"Authorization": f"Basic {base64.b64encode(secret.encode()).decode()}"}
