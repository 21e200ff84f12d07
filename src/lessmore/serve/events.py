"""Server-sent events: what happens to streams, for whoever listens. Slow listeners lose the oldest."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

KEPT = 256
"""Events that wait for one listener."""
LISTENERS = 256
PAUSE = 15.0
"""Seconds after which a comment shows that the connection is alive."""


@dataclass(eq=False)
class _Listener:
    owner: str | None
    stream: str | None
    waiting: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT))
    woken: asyncio.Event = field(default_factory=asyncio.Event)


class Events:
    """Lives on the event loop."""

    def __init__(self) -> None:
        self._listeners: set[_Listener] = set()
        self._closed = False

    @property
    def full(self) -> bool:
        """Whether nobody more may listen."""
        return len(self._listeners) >= LISTENERS

    def publish(self, owner: str, stream: str, kind: str, value: dict[str, Any]) -> None:
        """Tell everybody who may know.

        Args:
            owner: Whose stream it is.
            stream: Its id.
            kind: `answer`, `domain_change`, `error` or `camera`.
            value: Anything JSON can hold.
        """
        if not self._listeners:
            return
        text = f"event: {kind}\ndata: {json.dumps(value)}\n\n"
        for listener in self._listeners:
            if listener.owner in (None, owner) and listener.stream in (None, stream):
                listener.waiting.append(text)
                listener.woken.set()

    async def listen(self, owner: str | None, stream: str | None) -> AsyncIterator[str]:
        """Events as they come, until the server stops.

        Args:
            owner: Whose streams; None means all.
            stream: One stream; None means all.
        """
        listener = _Listener(owner, stream)
        self._listeners.add(listener)
        try:
            yield ": listening\n\n"
            while not self._closed:
                while listener.waiting:
                    yield listener.waiting.popleft()
                listener.woken.clear()
                try:
                    await asyncio.wait_for(listener.woken.wait(), PAUSE)
                except asyncio.TimeoutError:
                    yield ": alive\n\n"
        finally:
            self._listeners.discard(listener)

    def close(self) -> None:
        """Let all listeners go."""
        self._closed = True
        for listener in self._listeners:
            listener.woken.set()
