"""What the routes stand on: the model, the streams, the threads, and the way of an image from bytes to an answer."""

from __future__ import annotations

import asyncio
import tempfile
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from PIL.Image import Image

from lessmore.adapter import Adapter
from lessmore.core.encoder import PLAIN, encode
from lessmore.data.decoder import Decoder
from lessmore.engines.answered import plain_scores
from lessmore.engines.cores import limit_threads, usable_cores
from lessmore.errors import LessmoreError, StateError
from lessmore.models.vlm import VLM
from lessmore.prediction import Prediction
from lessmore.serve.answer import Answer, Asked, RawImage, flat_names, listed
from lessmore.serve.auth import Caller
from lessmore.serve.errors import RequestError, StreamExistsError, UnavailableError, UnknownStreamError, status_of
from lessmore.serve.events import Events
from lessmore.serve.explain import tokens_picture
from lessmore.serve.metrics import Metrics
from lessmore.serve.page.glance import NOTHING
from lessmore.serve.registry import StreamRegistry, StreamRow
from lessmore.serve.resident import Place, Resident
from lessmore.serve.scheduler import Scheduler, Ticket
from lessmore.serve.settings import ServerSettings
from lessmore.serve.store import StateStore, check_unused
from lessmore.serve.streams import Look, ServedStreams, check_classes
from lessmore.serve.traces import span

T = TypeVar("T")
_ROWS = 4096
"""Rows of the registry that are kept in memory."""


class Service:
    """One server's work; everything but the constructor belongs on the event loop."""

    def __init__(
        self, vlm: VLM, classes: Sequence[str], settings: ServerSettings, registry: StreamRegistry, store: StateStore
    ) -> None:
        """classes: the class list of streams that bring none."""
        self.vlm, self.settings, self.registry = vlm, settings, registry
        self.classes = list(classes)
        self.metrics, self.events = Metrics(), Events()
        self.streams = ServedStreams(vlm, settings, registry, store, self.metrics)
        self.stopping = False
        self._rows: OrderedDict[str, StreamRow] = OrderedDict()
        self._compute = ThreadPoolExecutor(1, "compute", limit_threads)
        self._decode = ThreadPoolExecutor(settings.decoders or usable_cores(), "decode")
        self._decoder = Decoder(settings.decoders or usable_cores())
        self._ask = ThreadPoolExecutor(4, "registry")
        self._checked = (-10.0, True)
        self._checking = asyncio.Lock()

    def start(self) -> None:
        """Do from now on what is accepted."""
        self.scheduler = Scheduler(self._work, self.settings, self.metrics)
        self._loop = asyncio.create_task(self.scheduler.run())

    @property
    def waiting(self) -> int:
        """Images and changes that wait."""
        return self.scheduler.waiting

    async def drain(self) -> None:
        """Take nothing more, and wait until all that was accepted is answered, within the grace."""
        self.stopping = True
        end = time.monotonic() + self.settings.grace
        while not self.scheduler.idle and time.monotonic() < end:
            await asyncio.sleep(0.01)
        self.events.close()

    async def close(self) -> None:
        """Write snapshots and end all threads."""
        self._loop.cancel()
        await self._computed(self.streams.close)
        for pool in (self._compute, self._decode, self._ask):
            pool.shutdown(wait=True, cancel_futures=True)
        self._decoder.close()

    async def create(
        self, config: Mapping[str, Any], caller: Caller, stream: str | None, name: str | None
    ) -> StreamRow:
        """Make a stream.

        Args:
            config: Arguments of `lessmore.adapt`.
            caller: Whose it is.
            stream: Its id; None draws one.
            name: What people call it.

        Raises:
            ConfigError: The settings cannot be used.
            StreamExistsError: The id is taken.
        """
        self._check_open()
        row = StreamRow(stream or uuid.uuid4().hex, caller.name, name, dict(config))
        if await self._asked(lambda: self.registry.find(row.id)) is not None:
            raise StreamExistsError(f"there is a stream {row.id} already", "take another id, or none")
        await self._computed(lambda: self.streams.template(row.config))
        await self._asked(lambda: check_unused(self.streams.store, row.id))
        await self._asked(lambda: self.registry.add(row))
        return row

    async def find(self, stream: str, caller: Caller) -> StreamRow:
        """A stream that the caller may see.

        Raises:
            UnknownStreamError: There is none.
        """
        known = self._rows.get(stream) if self.streams.store.exclusive else None
        row = known or await self._asked(lambda: self.registry.find(stream))
        if row is None or caller.owner not in (None, row.owner):
            raise UnknownStreamError(f"there is no stream {stream!r}", "create one with POST /v1/streams")
        self._rows[stream] = row
        while len(self._rows) > _ROWS:
            self._rows.popitem(last=False)
        return row

    async def page(self, caller: Caller, after: str, limit: int) -> list[StreamRow]:
        """Streams that the caller may see, by id, after one of them."""
        return await self._asked(lambda: self.registry.page(caller.owner, after, limit))

    async def status(self, row: StreamRow) -> dict[str, Any]:
        """A stream and how it is doing."""
        self._check_open()

        def look() -> dict[str, Any]:
            resident = self.streams.get(row.id)
            self.streams.trim()
            health = resident.adapter.health()
            return {
                "config": resident.config,
                "health": {**asdict(health), "agreement": health.agreement},
                "seq": resident.place.seq,
                "last": resident.place.last,
            }

        return {**self.summary(row), **await self._computed(look)}

    async def glance(self, row: StreamRow) -> dict[str, Any]:
        """What the live page shows of a stream beside its answers; one that is not in memory is not brought there."""

        def look() -> dict[str, Any]:
            resident = self.streams.resident.get(row.id)
            return NOTHING if resident is None else resident.glance.body(resident.adapter)

        return await self._computed(look)

    def summary(self, row: StreamRow) -> dict[str, Any]:
        """A stream, as the list has it."""
        camera = self.metrics.cameras.get(row.id)
        about = {name: getattr(row, name) for name in ("id", "name", "owner", "created")}
        return about | {"resident": row.id in self.streams.resident, "camera": camera and camera()}

    async def place(self, row: StreamRow) -> Place:
        """Where a stream stands, after the images that wait: a copy."""
        return cast(Place, await self._changed(row, lambda: deepcopy(self.streams.get(row.id).place)))

    async def reset(self, row: StreamRow) -> None:
        """Forget what the stream learned, after the images that wait."""
        await self._changed(row, lambda: self.streams.forget(row.id))

    async def relist(self, row: StreamRow, **change: Any) -> None:
        """Change a stream's class list, after the images that wait; `change` is as `ServedStreams.relist` takes it."""
        await self._changed(row, lambda: self.streams.relist(row.id, **change))
        self._rows.pop(row.id, None)

    async def delete(self, row: StreamRow) -> None:
        """Remove a stream, after the images that wait."""

        def remove() -> None:
            self.streams.resident.pop(row.id, None)
            self.streams.store.delete(row.id)
            self.registry.remove(row.id)  # last: files that no row lists would be in the way of a new stream

        await self._changed(row, remove)
        self._rows.pop(row.id, None)

    async def fork(self, row: StreamRow, caller: Caller, stream: str | None, name: str | None) -> StreamRow:
        """Another stream that goes on from where this one stands after the images that wait."""
        new = StreamRow(stream or uuid.uuid4().hex, caller.name, name, row.config)
        await self._changed(row, lambda: self.streams.fork(row.id, new))
        return new

    async def export_state(self, row: StreamRow) -> bytes:
        """The state as a file of `Adapter.save`, after the images that wait."""

        def export() -> bytes:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "state.safetensors"
                self.streams.get(row.id).adapter.save(path)
                return path.read_bytes()

        return cast(bytes, await self._changed(row, export))

    async def import_state(self, row: StreamRow, data: bytes) -> None:
        """Go on from a file of `Adapter.save`, after the images that wait.

        Raises:
            StateError: It is refused; the stream stays as it is.
        """

        def restore(resident: Resident) -> None:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "state.safetensors"
                path.write_bytes(data)
                try:
                    resident.adapter.restore(path)
                except StateError as error:
                    raise StateError(str(error).replace(str(path), "the state")) from error

        await self._changed(row, lambda: self.streams.change(row.id, restore))

    async def _changed(self, row: StreamRow, change: Callable[[], Any]) -> Any:
        self._check_open()
        ticket = Ticket(row.id, asyncio.get_running_loop().time() + self.settings.timeout_ms / 1000, change=change)
        self.scheduler.accept([ticket])
        return await ticket.result

    async def classify(
        self, row: StreamRow, images: Sequence[RawImage], asked: Asked, timeout_ms: int | None
    ) -> list[Answer | LessmoreError]:
        """Answers to images of one stream, in their order.

        Args:
            row: The stream.
            images: Encoded images, or what makes images of frames that are decoded already.
            asked: What is wanted beside the answers.
            timeout_ms: How long an image may wait; None means the server's own limit.

        Raises:
            BusyError: Too much waits already; nothing of this was accepted.
        """
        self._check_open()
        self.scheduler.check(row.id, len(images))
        adapter = await self._template(row)
        end = asyncio.get_running_loop().time() + (timeout_ms or self.settings.timeout_ms) / 1000
        start = time.monotonic()
        self.scheduler.check(row.id, len(images))
        tickets = [
            Ticket(row.id, end, self._decoded(adapter, data), asked=replace(asked, key=_numbered(asked.key, i)))
            for i, data in enumerate(images)
        ]
        self.scheduler.accept(tickets)
        with span("classify") as traced:
            results = await asyncio.gather(*(ticket.result for ticket in tickets), return_exceptions=True)
            failed = sum(isinstance(result, BaseException) for result in results)
            traced.set_attributes({"lessmore.images": len(images), "lessmore.failed": failed})
        answers = [self._told(row, result, start) for result in results]
        for answer, ticket, data in zip(answers, tickets, images, strict=True):
            if isinstance(answer, dict) and ticket.explained:
                answer["tokens"] = await self._drawn(data, ticket.explained[0])
        return answers

    async def _drawn(self, data: RawImage, prediction: Prediction) -> str:
        """The picture of an image's tokens; it is drawn where images are decoded, so that no stream waits for it."""
        draw = partial(tokens_picture, self.vlm, prediction=prediction)
        return await asyncio.get_running_loop().run_in_executor(self._decode, lambda: draw(self._opened(data)))

    def _told(self, row: StreamRow, result: Any, start: float) -> Answer | LessmoreError:
        """The result of an image with the time it took; whoever listens hears of it."""
        if isinstance(result, LessmoreError):
            self.metrics.errors.labels(status_of(result)[1]).inc()
            self.events.publish(row.owner, row.id, "error", {"stream": row.id, "message": str(result)})
            return result
        if isinstance(result, BaseException):
            raise result
        answer = {**result, "ms": round(1000 * (time.monotonic() - start), 3)}
        self.events.publish(row.owner, row.id, "answer", answer)
        if answer["domain_changed"]:
            told = {name: answer[name] for name in ("stream", "seq", "domain_changes")}
            self.events.publish(row.owner, row.id, "domain_change", told)
        return answer

    def _decoded(self, adapter: Adapter, data: RawImage) -> asyncio.Future[Any]:
        """The pixels of an image, decoded in a process with limits, or why there are none."""

        def decode() -> Any:
            with self.metrics.decode.time():
                try:
                    return adapter.pixels(self._opened(data))
                except LessmoreError as error:
                    return error

        return asyncio.get_running_loop().run_in_executor(self._decode, decode)

    def _opened(self, data: RawImage) -> Image:
        return self._decoder(data) if isinstance(data, bytes) else data()

    async def zero_shot(self, data: bytes, config: Mapping[str, Any]) -> list[tuple[str, float]]:
        """Classes and their probabilities by the plain model, the best first; no stream is touched.

        Args:
            data: The encoded image.
            config: Arguments of `lessmore.adapt`.
        """
        self._check_open()
        adapter = await self._computed(lambda: self.streams.template({**config, "method": "zeroshot"}))
        pixels = await self._decoded(adapter, data)
        if isinstance(pixels, LessmoreError):
            raise pixels
        scores = await self._computed(lambda: plain_scores(adapter.answerer.setup, pixels))
        return sorted(zip(adapter.classes, scores.tolist(), strict=True), key=lambda pair: -pair[1])

    async def _template(self, row: StreamRow) -> Adapter:
        """The adapter that says how the stream's images are decoded."""
        resident = self.streams.resident.get(row.id)
        if resident is not None:
            return resident.adapter
        return await self._computed(lambda: self.streams.template(row.config))

    async def _work(self, batch: Sequence[Ticket]) -> Sequence[Any]:
        """Do a batch in the computing thread."""
        if batch[0].change is not None:
            return [await self._computed(batch[0].change)]
        looks = [
            Look(ticket.stream, ticket.pixels.result(), ticket.asked, ticket.explained)
            for ticket in batch
            if ticket.pixels is not None
        ]
        self.metrics.batch.observe(len(looks))
        return await self._computed(lambda: self.streams.answer(looks))

    async def ready(self) -> bool:
        """Whether the model answers; the answer of a real forward pass holds for a second."""
        async with self._checking:
            when, good = self._checked
            if time.monotonic() - when > 1:
                try:
                    good = await asyncio.wait_for(self._computed(self._forward), 10)
                except (asyncio.TimeoutError, RuntimeError):
                    good = False
                self._checked = time.monotonic(), good
        self.metrics.ready.set(good)
        return good and not self.stopping

    @torch.no_grad()
    def _forward(self) -> bool:
        size = self.vlm.vision.shape.image_size
        pixels = torch.zeros(1, 3, size, size, device=self.vlm.device, dtype=self.vlm.dtype)
        return bool(encode(self.vlm.vision, pixels, PLAIN).feature.isfinite().all())

    async def measure(self) -> bytes:
        """All figures, for Prometheus."""
        self.metrics.queue.set(self.waiting)
        self.metrics.resident.set(len(self.streams.resident))
        self.metrics.stored.set(await self._asked(self.registry.count))
        return self.metrics.text()

    def stream_config(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of `lessmore.adapt` for a new stream.

        Raises:
            RequestError: There are too many classes, or none.
        """
        config = {**given, "classes": listed(given.get("classes") or self.classes)}
        if not config["classes"]:
            raise RequestError("the stream has no classes", "give some, or start the server with --classes")
        check_classes(flat_names(config["classes"]), self.settings.max_classes)
        return config

    def _check_open(self) -> None:
        if self.stopping:
            raise UnavailableError("the server is shutting down", "send it to another one, or again later", 5)

    async def _computed(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._compute, work)

    async def _asked(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._ask, work)


def _numbered(key: str | None, i: int) -> str | None:
    """The key of one image of a request."""
    return key if key is None or i == 0 else f"{key} {i}"  # a key holds no space
