"""One camera of the server: its newest frame goes through the same queue as everybody's images.

One frame of a camera is on its way at a time. While it is, newer ones take each other's place, so the next one sent is
the newest. What a camera's stream has learned is kept as that of any stream. A video file's frames carry a key in the
stream's own record, so that a server that died goes on after the last frame that was answered; so do a folder's images.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import quote_from_bytes, unquote_to_bytes

from lessmore.cameras.answer import now
from lessmore.cameras.frame import Frame
from lessmore.cameras.memory import MOST_FILES
from lessmore.cameras.reader import START, Reader, SourcePlace
from lessmore.cameras.selection import Past
from lessmore.data.images import load_image
from lessmore.errors import ImageError, LessmoreError, NonFiniteError
from lessmore.serve.answer import Answer, Asked
from lessmore.serve.cameras.entries import ServedCamera
from lessmore.serve.cameras.outputs import Outputs, camera_answer
from lessmore.serve.errors import BusyError, DeadlineError, ServeError, UnknownStreamError
from lessmore.serve.registry import StreamRow
from lessmore.serve.resident import FILES, Place
from lessmore.serve.service import Service

_LOG = logging.getLogger("lessmore.serve")
AGAIN = 2.0
"""Seconds after which a camera tries again where the server cannot answer."""
_FRAME = "camera-frame"  # a client's key holds no slash after a space, so none can be mistaken for these
_KEY = re.compile(rf"{_FRAME} ([0-9]+)/([0-9]+)/(-?[0-9]+|None)/([0-9.e+-]+|None)")
_SCENE = re.compile(r"scene ([0-9]+)")


class Feed:
    """Lives on the event loop; a thread of its own reads the source."""

    def __init__(self, service: Service, row: StreamRow, camera: ServedCamera, outputs: Outputs) -> None:
        """Nothing is opened yet.

        Args:
            service: The server's work.
            row: The camera's stream.
            camera: The camera.
            outputs: Where answers go beside events.
        """
        self.camera, self.row = camera, row
        self._service, self._outputs = service, outputs
        self.counts: Counter[str] = Counter()
        """Frames that were answered, that failed, and that were given up because the server was busy."""
        self.reader: Reader | None = None
        self._woken = asyncio.Event()
        self._told: tuple[str, str] = ("opening", "")
        self._stopped, self._trouble = False, ""

    @property
    def dropped(self) -> Counter[str]:
        """Frames that were left out, by reason."""
        chosen = Counter[str]() if self.reader is None else Counter[str](self.reader.selection.dropped)
        return chosen + Counter({"busy": self.counts["busy"]})

    def facts(self) -> dict[str, Any]:
        """How it is, for people and programs."""
        condition, why = self._told
        about = {"source": self.camera.source.shown, "condition": condition, "why": why}
        counts = {name: self.counts[name] for name in ("answered", "failed")}
        reconnects = 0 if self.reader is None else self.reader.reconnects
        return {**about, **counts, "dropped": dict(self.dropped), "reconnects": reconnects}

    def stop(self) -> None:
        """Let `run` end after the frame that is on its way."""
        self._stopped = True
        self._woken.set()

    async def run(self, hands: Executor) -> None:
        """Answer its frames until it ends, fails, or somebody says stop.

        Args:
            hands: The thread that hands answers over.
        """
        self._hands = hands
        try:
            if (begun := await self._begin()) is not None:
                await self._read(*begun)
        except Exception as error:  # a task that died would look like a silent camera
            _LOG.exception("camera %s", self.row.id)
            await self._changed("failed", f"{type(error).__name__}: {error}")

    async def _read(self, place: SourcePlace, known: set[str]) -> None:
        """Answer what comes from here on."""
        bell = _Bell(asyncio.get_running_loop(), self._woken)
        self.reader = Reader(self.camera.source, self.camera.reading, bell, place, known)
        self.reader.start()
        try:
            while not self._stopped and not self.reader.done:
                await self._woken.wait()
                self._woken.clear()
                await self._tell()
                while self.reader.waiting and not self._stopped:
                    await self._answer(self.reader.take())
                    await self._tell()
        finally:
            self._stopped = True
            await asyncio.to_thread(self.reader.close)  # all cameras at once: a silent one takes two seconds

    async def _begin(self) -> tuple[SourcePlace, set[str]] | None:
        """Where the source stood, and its images that were answered; None where the stream is gone already."""
        while not self._stopped:
            try:
                place = await self._service.place(self.row)
            except UnknownStreamError as error:
                await self._changed("failed", str(error))
                return None
            except ServeError as error:  # of a store that is away, or damage that an operator mends
                await self._changed("lost", str(error))
                await self._pause(error)
                continue
            if self.camera.source.kind == "folder":
                return await asyncio.to_thread(folder_place, place, self.camera)
            track = None if place.last is None else place.last["track"]
            return place_in(place.keys, self.camera, track), set()
        return None

    async def _answer(self, frame: Frame) -> None:
        """Send one frame through the queue; one of a file or folder is sent until it is answered."""
        if frame.file is not None and frame.number > MOST_FILES:
            await self._changed("failed", f"it has had {MOST_FILES} images; name another folder, and another stream")
            return self.stop()
        every = not self.camera.source.live and self.camera.reading.frames != "newest"
        track = f"scene {frame.scene}" if self.camera.entry.track else None
        asked = Asked(self._key(frame), track=track)
        while not self._stopped:
            answer = await self._asked(frame, asked)
            if isinstance(answer, (dict, ImageError, NonFiniteError)):
                return await self._deliver(frame, answer)
            if isinstance(answer, UnknownStreamError):
                await self._changed("failed", "its stream was removed; restart the server to create it again")
                return self.stop()
            if isinstance(answer, (BusyError, DeadlineError)):
                self.counts["busy"] += not every
            elif not self._service.stopping:
                self.counts["failed"] += not every
                self._trouble = str(answer)
                await self._tell()
            await self._pause(answer)
            if not every:
                return None
        return None

    async def _asked(self, frame: Frame, asked: Asked) -> Answer | LessmoreError:
        try:
            (answer,) = await self._service.classify(self.row, [lambda: frame.image], asked, None)
        except LessmoreError as error:
            return error
        return answer

    async def _pause(self, error: LessmoreError) -> None:
        """Wait until it makes sense to try again, or somebody says stop."""
        if self._service.stopping:
            self._stopped = True
        seconds = min(AGAIN, getattr(error, "retry_after", None) or AGAIN)
        end = time.monotonic() + seconds
        while not self._stopped and (left := end - time.monotonic()) > 0:
            await asyncio.sleep(min(0.2, left))
        self._woken.set()

    async def _deliver(self, frame: Frame, answer: Answer | LessmoreError) -> None:
        """Count an answer and hand it over."""
        seconds = time.monotonic() - frame.arrived
        self.counts["answered" if isinstance(answer, dict) else "failed"] += 1
        self._trouble = ""
        self._service.metrics.camera.labels(self.row.id).observe(seconds)
        told = camera_answer(self.row.id, frame, now(), 1000 * seconds, answer)
        image = frame.image if isinstance(answer, dict) else None
        await asyncio.get_running_loop().run_in_executor(self._hands, self._outputs.put, told, image)

    def _key(self, frame: Frame) -> str | None:
        """What the stream's record says of a frame of a file or folder; frames of a camera come only once."""
        if frame.file is not None:
            return FILES + "/".join(map(_quoted, (*frame.passed, frame.file)))
        if self.camera.source.kind != "file":
            return None
        return f"{_FRAME} {_size(self.camera)}/{frame.number}/{frame.pts}/{frame.seconds}"

    async def _tell(self) -> None:
        """Tell how the source is, or what keeps the server from answering it."""
        assert self.reader is not None
        if self._stopped:  # what ended it was told
            return
        if self._trouble:
            await self._changed("lost", self._trouble)
        elif not (self.reader.condition in ("ended", "failed") and self.reader.waiting):
            await self._changed(self.reader.condition, self.reader.why)

    async def _changed(self, condition: str, why: str) -> None:
        """Tell everybody how the camera is, where that has changed."""
        if self._told == (condition, why):
            return
        self._told = (condition, why)
        _LOG.info("camera", extra={"facts": {"stream": self.row.id, "condition": condition, "why": why}})
        self._service.events.publish(self.row.owner, self.row.id, "camera", {"stream": self.row.id, **self.facts()})
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._hands, self._outputs.told, self.row.id, condition, why)


class _Bell(threading.Event):
    """Wakes the event loop from the reader's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, woken: asyncio.Event) -> None:
        super().__init__()
        self._loop, self._woken = loop, woken

    def set(self) -> None:
        with suppress(RuntimeError):  # the loop is closed, and nobody waits
            self._loop.call_soon_threadsafe(self._woken.set)


def place_in(keys: Iterable[str], camera: ServedCamera, track: str | None) -> SourcePlace:
    """Where a source stood when its newest frame was answered.

    Args:
        keys: Keys that the stream remembers, the oldest first.
        camera: The camera.
        track: The track of the stream's last image; scenes are counted on from it.
    """
    found = None if track is None else _SCENE.fullmatch(track)
    scene = 0 if found is None else int(found[1])
    if camera.source.kind == "file":
        size = str(_size(camera))
        for match in map(_KEY.fullmatch, reversed(list(keys))):
            if match is not None and match[1] == size:
                pts = None if match[3] == "None" else int(match[3])
                seconds = None if match[4] == "None" else float(match[4])
                return SourcePlace(int(match[2]), pts, Past(seconds, scene))
    return START._replace(past=Past(scene=scene))


def folder_place(place: Place, camera: ServedCamera) -> tuple[SourcePlace, set[str]]:
    """Where a folder stood, and the names of its images that were answered or left out.

    Args:
        place: Where its stream stands.
        camera: The camera.
    """
    known = {os.fsdecode(unquote_to_bytes(one)) for one in place.files}
    track = None if place.last is None else place.last["track"]
    past = place_in((), camera, track).past
    if camera.reading.rules.motion or camera.reading.rules.track:
        past = past._replace(reference=_reference(place, camera, track))
    return SourcePlace(len(known), None, past), known


def _reference(place: Place, camera: ServedCamera, track: str | None) -> bytes | None:
    """The glance that the next image is compared with: at the last answered, or at the first of its scene."""
    keys = [key for key, answer in place.keys.items() if key.startswith(FILES) and answer["track"] == track]
    if not keys:
        return None
    name = os.fsdecode(unquote_to_bytes(keys[-1 if track is None else 0].rpartition("/")[2]))
    with suppress(ImageError):  # it is gone: the next image counts as another scene
        return Frame(0, partial(load_image, os.path.join(camera.source.address, name))).glance.tobytes()
    return None


def _quoted(name: str) -> str:
    """A file's name without anything that JSON, or a list of names, cannot hold."""
    return quote_from_bytes(os.fsencode(name), safe="")


def _size(camera: ServedCamera) -> int:
    try:
        return os.path.getsize(camera.source.address)
    except OSError:
        return 0
