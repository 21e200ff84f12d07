"""The frames that were answered as a video, with the answer on each."""

from __future__ import annotations

import os
import time
from fractions import Fraction
from itertools import count
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.error import FFmpegError
from PIL import Image, ImageDraw, ImageFont, ImageOps

from lessmore.cameras.answer import CameraAnswer, Sink
from lessmore.storage.files import open_plain

_TICKS = 1000
"""Time stamps for each second."""
# Fragments, so that what is on the disk can be played at any moment, also after a crash.
_FRAGMENTS = {"movflags": "empty_moov+default_base_moof+frag_keyframe", "flush_packets": "1"}
_FRESH = 25
"""Frames after which a fragment ends at the latest."""


class AnnotatedVideo(Sink):
    """Writes one source as MP4. A disk that is full ends the video, not the watch."""

    def __init__(self, path: Path, source: str) -> None:
        """Begin a file that must not be there yet.

        Args:
            path: The video.
            source: Name of the source; answers of others are left out.

        Raises:
            OSError: It cannot be made.
        """
        super().__init__()
        self.path, self._source = path, source
        # Python writes, so that neither a link is followed nor an error lost in FFmpeg.
        self._file = os.fdopen(open_plain(path, os.O_RDWR | os.O_CREAT | os.O_EXCL), "w+b", buffering=0)
        self._container: Any = None
        self._stream: Any = None
        self._began: float | None = None
        self._last = -1
        self._done = False

    def put(self, answer: CameraAnswer, image: Image.Image | None) -> None:
        """Add a frame.

        Args:
            answer: Its answer.
            image: The frame; without one there is nothing to add.
        """
        if answer.source != self._source or image is None or self._done:
            return
        try:
            self._write(annotated(image, answer), self._seconds(answer))
        except (FFmpegError, OSError) as error:
            self._give_up(error)

    def close(self) -> None:
        """End the video."""
        if not self._done:
            try:
                if self._stream is not None:
                    self._container.mux(self._stream.encode(None))
                    self._container.close()
            except (FFmpegError, OSError) as error:
                self._give_up(error)
        self._file.close()
        if self._stream is None and not self._done:
            self.path.unlink(missing_ok=True)  # no frame ever came, and an empty file is no video

    def _seconds(self, answer: CameraAnswer) -> float:
        """Time of the frame since the first."""
        clock = time.monotonic() if answer.seconds is None else answer.seconds
        self._began = clock if self._began is None else self._began
        return clock - self._began

    def _write(self, image: Image.Image, seconds: float) -> None:
        if self._stream is None:
            self._begin(image.width // 2 * 2, image.height // 2 * 2)
        size = (self._stream.width, self._stream.height)
        if image.size != size:  # the camera has changed its resolution, or the size is odd
            image = ImageOps.pad(image, size)
        frame = av.VideoFrame.from_ndarray(np.asarray(image), format="rgb24")
        self._last = max(self._last + 1, round(seconds * _TICKS))
        frame.pts, frame.time_base = self._last, Fraction(1, _TICKS)
        self._container.mux(self._stream.encode(frame))

    def _begin(self, width: int, height: int) -> None:
        self._container = av.open(self._file, "w", format="mp4", options=_FRAGMENTS)
        codec = "libx264" if "libx264" in av.codecs_available else "mpeg4"
        fast = {"preset": "veryfast", "tune": "zerolatency", "crf": "23"} if codec == "libx264" else {}
        self._stream = self._container.add_stream(codec, rate=30, options=fast)
        self._stream.width, self._stream.height, self._stream.pix_fmt = max(2, width), max(2, height), "yuv420p"
        self._stream.codec_context.time_base = Fraction(1, _TICKS)
        self._stream.codec_context.gop_size = _FRESH

    def _give_up(self, error: Exception) -> None:
        self._done = True
        reason = getattr(error, "strerror", None) or error
        self.problems.append(f"{self.path} ends here ({reason}); make room, and start again with another --save")
        self._container = None


def next_part(path: Path) -> Path:
    """The path, or another part of it, `NAME-2.mp4` and so on, where there is such a video already.

    Args:
        path: The video.
    """
    parts = (path.with_stem(f"{path.stem}-{part}") for part in count(2))
    return path if not path.exists() else next(part for part in parts if not part.exists())


def annotated(image: Image.Image, answer: CameraAnswer) -> Image.Image:
    """A copy of a frame with its answer on a dark bar at the top.

    Args:
        image: The frame.
        answer: Its answer.
    """
    drawn = image.copy()
    size = max(12, drawn.height // 24)
    font = ImageFont.load_default(size)
    lines = [f"{'unknown, nearest ' if answer.unknown else ''}{answer.label} {answer.score:.2f}"]
    lines += [f"zero-shot: {answer.zero_shot_label}"] if answer.changed else []
    pen = ImageDraw.Draw(drawn, "RGBA")
    pen.rectangle((0, 0, drawn.width, size * (1.4 * len(lines) + 0.4)), fill=(0, 0, 0, 150))
    for i, line in enumerate(lines):
        text = " ".join(line.split())
        while len(text) > 2 and pen.textlength(text, font) > drawn.width - size:
            text = f"{text[:-2]}…"
        pen.text((size / 2, size * (1.4 * i + 0.3)), text, fill="white", font=font)
    return drawn
