"""Who is next: one queue for each stream, the heads of all of them as one batch, and limits on what may wait.

A stream's tickets are done in the order in which they were accepted, images and everything else alike. The head of a
queue waits for its image to be decoded; other streams do not wait for it. A ticket whose deadline passes before its
turn leaves the queue, as if it had never been sent.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lessmore.errors import LessmoreError
from lessmore.prediction import Prediction
from lessmore.serve.answer import Asked
from lessmore.serve.errors import BusyError, DeadlineError, UnavailableError
from lessmore.serve.metrics import Metrics
from lessmore.serve.settings import ServerSettings

_LOG = logging.getLogger("lessmore.serve")


@dataclass(eq=False)
class Ticket:
    """An image, or a change of a stream, that waits for its turn."""

    stream: str
    deadline: float
    """By the loop's clock."""
    pixels: asyncio.Future[Any] | None = None
    """The decoded image; a ticket without one is a change."""
    change: Callable[[], Any] | None = None
    """What to do in the computing thread; None for an image."""
    asked: Asked = field(default_factory=Asked)
    explained: list[Prediction] = field(default_factory=list)
    """Its prediction, if it is to be explained."""
    accepted: float = field(default_factory=time.monotonic)
    result: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    timer: asyncio.TimerHandle | None = None

    @property
    def ready(self) -> bool:
        """Whether it can be done now."""
        return self.pixels is None or self.pixels.done()

    def settle(self, result: Any) -> None:
        """Tell whoever waits; an error is raised there."""
        if self.timer is not None:
            self.timer.cancel()
        if self.result.done():
            return
        if isinstance(result, LessmoreError):
            self.result.set_exception(result)
            self.result.exception()  # nobody may be waiting any more, and that is no error
        else:
            self.result.set_result(result)


Work = Callable[[Sequence[Ticket]], Awaitable[Sequence[Any]]]
"""Does the tickets of a batch, images of different streams or one change, and says what became of each."""


class Scheduler:
    """Lives on the event loop."""

    def __init__(self, work: Work, settings: ServerSettings, metrics: Metrics) -> None:
        self._work, self._settings, self._metrics = work, settings, metrics
        self._lanes: OrderedDict[str, deque[Ticket]] = OrderedDict()
        self._wake = asyncio.Event()
        self._running = 0
        self._pace = 0.01
        self.waiting = 0

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing is being done."""
        return self.waiting == 0 and self._running == 0

    def check(self, stream: str, count: int) -> None:
        """Refuse tickets that would be too many.

        Args:
            stream: Whose tickets.
            count: How many more.

        Raises:
            BusyError: With the seconds after which to try again.
        """
        own = len(self._lanes.get(stream, ()))
        if own + count > self._settings.queue:
            raise self._busy(f"{own} images wait for this stream, and {self._settings.queue} may", own)
        if self.waiting + count > self._settings.queue_total:
            raise self._busy(f"{self.waiting} images wait, and {self._settings.queue_total} may", self.waiting)

    def _busy(self, message: str, ahead: int) -> BusyError:
        return BusyError(message, "send it again after Retry-After seconds", math.ceil(min(60, 1 + ahead * self._pace)))

    def accept(self, tickets: Sequence[Ticket]) -> None:
        """Put tickets of one stream into its queue, all of them or none."""
        self.check(tickets[0].stream, len(tickets))
        lane = self._lanes.setdefault(tickets[0].stream, deque())
        lane.extend(tickets)
        self.waiting += len(tickets)
        loop = asyncio.get_running_loop()
        for ticket in tickets:
            if ticket.pixels is not None:
                ticket.pixels.add_done_callback(lambda _: self._wake.set())
            ticket.timer = loop.call_at(ticket.deadline, self._expire, ticket)
        self._wake.set()

    def _expire(self, ticket: Ticket) -> None:
        lane = self._lanes.get(ticket.stream)
        if lane is not None and ticket in lane:
            lane.remove(ticket)
            self._left(ticket.stream, lane)
            ticket.settle(
                DeadlineError("the image waited too long and was dropped", "send it again, or allow more time")
            )
            self._wake.set()

    def _left(self, stream: str, lane: deque[Ticket]) -> None:
        self.waiting -= 1
        if not lane:
            del self._lanes[stream]

    async def run(self) -> None:
        """Do tickets for ever."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while batch := await self._batch():
                await self._do(batch)

    async def _batch(self) -> list[Ticket]:
        """The next tickets to do together; a change is done alone."""
        heads = self._heads()
        if heads and heads[0].change is None and self._settings.max_wait_ms and len(heads) < self._settings.max_batch:
            await asyncio.sleep(self._settings.max_wait_ms / 1000)
            heads = self._heads()
        if not heads:
            return []
        chosen = (
            heads[:1]
            if heads[0].change
            else [ticket for ticket in heads if not ticket.change][: self._settings.max_batch]
        )
        for ticket in chosen:
            lane = self._lanes[ticket.stream]
            lane.popleft()
            self._left(ticket.stream, lane)
            if lane:
                self._lanes.move_to_end(ticket.stream)
        return chosen

    def _heads(self) -> list[Ticket]:
        return [lane[0] for lane in self._lanes.values() if lane[0].ready]

    async def _do(self, batch: Sequence[Ticket]) -> None:
        self._running = len(batch)
        start = time.monotonic()
        for ticket in batch:
            self._metrics.wait.observe(start - ticket.accepted)
        results: Sequence[Any] = [UnavailableError("the server failed at this", "try again; see its log", 5)] * len(
            batch
        )
        try:
            results = await self._work(batch)
        except LessmoreError as error:
            results = [error] * len(batch)
        except Exception:
            _LOG.exception("a change of stream %s failed", batch[0].stream)
        finally:
            self._running = 0
            self._pace += 0.1 * ((time.monotonic() - start) / len(batch) - self._pace)
            for ticket, result in zip(batch, results, strict=True):
                ticket.settle(result)
