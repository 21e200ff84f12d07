"""A source read in a thread of its own: opened, opened again when it breaks off, and its frames handed over.

From a live source the newest frame alone waits; one that comes takes its place, and that is counted. From files and
folders every frame waits, a few at a time.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from lessmore.cameras.folder import Folder
from lessmore.cameras.frame import Frame
from lessmore.cameras.selection import Past, Selection, SelectionRules, past_of
from lessmore.cameras.source import FrameSource
from lessmore.cameras.video import DecodingOptions, SourceError, Video
from lessmore.errors import ImageError

AHEAD = 4
"""Frames of a file that wait at most."""
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0
"""Seconds between attempts to open a live source again: doubled every time, from the first to the longest."""

Condition = Literal["opening", "live", "lost", "ended", "failed"]


class SourcePlace(NamedTuple):
    """Where a source stands after a frame."""

    number: int = 0
    pts: int | None = None
    past: Past = Past()

    def as_facts(self) -> dict[str, Any]:
        """What JSON can hold."""
        return {"number": self.number, "pts": self.pts, "past": self.past.as_facts()}


START = SourcePlace()


def place_of(facts: Any, live: bool) -> SourcePlace:
    """The place that `SourcePlace.as_facts` wrote.

    Args:
        facts: What it gave.
        live: Whether the source is live, and goes on wherever it is now.

    Raises:
        ValueError: It makes no sense.
    """
    if not isinstance(facts, dict) or type(facts.get("number")) is not int or facts["number"] < 0:
        raise ValueError("the place in the source is missing")
    pts = facts.get("pts")
    if pts is not None and type(pts) is not int:
        raise ValueError("the time stamp is no number")
    return SourcePlace(facts["number"], pts, past_of(facts.get("past"), live))


@dataclass(frozen=True)
class ReadingOptions:
    """How sources are read."""

    rules: SelectionRules = field(default_factory=SelectionRules)
    decoding: DecodingOptions = field(default_factory=DecodingOptions)
    frames: Literal["auto", "newest", "all"] = "auto"
    """Whether a frame that is late is left out; auto leaves out those of live sources."""
    once: bool = False
    """Whether a folder ends when all its images are answered, and a live source when it breaks off."""


class _Input(Protocol):
    remark: str

    @property
    def finite(self) -> bool: ...
    def frames(self, after: tuple[int, int | None] | None = None) -> Iterator[Frame]: ...
    def close(self) -> None: ...


class Reader:
    """Hands over the frames of a source that are to be answered."""

    def __init__(
        self, source: FrameSource, options: ReadingOptions, wake: threading.Event, place: SourcePlace, known: set[str]
    ) -> None:
        """Nothing is opened before `start`.

        Args:
            source: The source.
            options: How to read it.
            wake: Set whenever there is something new.
            place: Where it stood.
            known: Names of images of the folder that were answered before.
        """
        self.source, self._options, self._wake, self._known = source, options, wake, known
        self.condition: Condition = "opening"
        self.why = ""
        self.reconnects = 0
        self.selection = Selection(options.rules, place.past)
        self._after = (place.number, place.pts) if source.kind in ("file", "folder") and place.number else None
        self._newest = options.frames == "newest" or (options.frames == "auto" and source.live)
        self._frames: deque[Frame] = deque()
        self._passed: list[str] = []
        self._room = threading.Condition()
        self._closed = threading.Event()
        self._began: float | None = None
        self._thread = threading.Thread(target=self._run, name=f"reader of {source.name}", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether no further frame will come."""
        return self.condition in ("ended", "failed") and not self._frames

    @property
    def waiting(self) -> bool:
        """Whether a frame waits."""
        return bool(self._frames)

    def take(self) -> Frame:
        """The next frame; only where one is `waiting`."""
        with self._room:
            frame = self._frames.popleft()
            self._room.notify()
        return frame

    def close(self, patience: float = 2.0) -> None:
        """Stop reading. A thread that waits for a silent camera is left to end by itself.

        Args:
            patience: Seconds to wait for the thread.
        """
        self._closed.set()
        with self._room:
            self._room.notify_all()
        if self._thread.is_alive():
            self._thread.join(patience)

    def _run(self) -> None:
        wait = FIRST_WAIT
        while not self._closed.is_set():
            try:
                ended = self._read()
                why = "" if ended else f"{self.source.shown}: the stream ended"
            except SourceError as error:
                ended, why = False, str(error)
            except Exception as error:  # of a decoder; a thread that died would look like a silent camera
                ended, why = False, f"{self.source.shown}: {type(error).__name__}: {error}"
            if self._closed.is_set():
                return
            if ended or self._options.once or self.source.kind in ("file", "stdin"):
                self._told("ended" if ended or (self.condition == "live" and self.source.live) else "failed", why)
                return
            wait = FIRST_WAIT if self.condition == "live" else wait
            self._told("lost", why)
            self._closed.wait(wait)
            wait = min(LONGEST_WAIT, 2 * wait)

    def _told(self, condition: Condition, why: str = "") -> None:
        self.why, self.condition = why, condition
        self._wake.set()

    def _opened(self) -> _Input:
        if self.source.kind == "folder":
            return Folder(self.source, self._known, self._options.once, self._closed)
        return Video(self.source, self._options.decoding)

    def _read(self) -> bool:
        """Read until nothing comes; whether that is the end of it."""
        with closing(self._opened()) as opened:
            # An address does not say whether a camera or a video lies there; of a video every frame is answered.
            self._newest &= self._options.frames == "newest" or not opened.finite
            if self.source.kind == "folder" and os.path.isdir(self.source.address):
                self._is_live(opened)  # even one without images
            for frame in opened.frames(self._after):
                if self._closed.is_set():
                    return False
                self._is_live(opened)
                if opened.finite or frame.file is not None:
                    self._after = (frame.number, frame.pts)
                self._offer(frame)
            return opened.finite or self.source.kind == "folder"

    def _is_live(self, opened: _Input) -> None:
        if self.condition != "live":
            self.reconnects += self.condition == "lost"
            self._told("live", opened.remark)

    def _offer(self, frame: Frame) -> None:
        """Choose, and let the frame wait for its answer."""
        clock = None if frame.file is not None else frame.arrived if frame.seconds is None else frame.seconds
        if self._newest and frame.seconds is not None:
            self._keep_pace(frame.seconds)
            frame.arrived = time.monotonic()
        try:
            if not self.selection.chooses(frame, clock):
                self._pass_by(frame)
                return
        except ImageError:
            pass  # whoever answers it meets the same error, and says so
        frame.place = SourcePlace(frame.number, frame.pts, self.selection.past)
        with self._room:
            if self._newest and self._frames:
                self._pass_by(self._frames.popleft())
                self.selection.dropped["newer"] += 1
            frame.passed, self._passed = tuple(self._passed), []
            while len(self._frames) >= AHEAD and not self._closed.is_set():
                self._room.wait()
            self._frames.append(frame)
        self._wake.set()

    def _pass_by(self, frame: Frame) -> None:
        """Remember an image of a folder that is not answered: whoever goes on must not look at it again."""
        if frame.file is not None:
            self._passed += [*frame.passed, frame.file]

    def _keep_pace(self, seconds: float) -> None:
        """Wait until a file that is played like a camera is at this second."""
        now = time.monotonic()
        if self._began is None:
            self._began = now - seconds
        self._closed.wait(max(0.0, self._began + seconds - now))
