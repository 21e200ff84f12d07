"""Frames of a video, a camera or an address by PyAV, in RGB."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import av
import numpy as np
from av.container import InputContainer
from av.error import FFmpegError
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from PIL import Image

from lessmore.cameras.frame import GLANCE, Frame, Glance
from lessmore.cameras.source import FrameSource
from lessmore.data.images import check_size
from lessmore.errors import ConfigError, ImageError

SHORT = 2.0
"""Seconds before the end that a file claims at which its last frame may be."""
PATIENCE = 10.0
"""Seconds that opening an address, or waiting for its next packet, may take."""
_CONTAINERS = (
    "mov,mp4,matroska,webm,avi,mpegts,flv,mpeg,mpegvideo,m4v,ogg,asf,h264,hevc,mjpeg,mpjpeg,jpeg_pipe,gif,apng,"
    "yuv4mpegpipe,nut,ivf,wtv,mxf,dv,obu,av1"
)
"""What is read. Playlists are not: they name other files and addresses, which nobody typed."""
_RTSP, _HTTP = "rtsp,rtsps,rtp,srtp,udp,tcp,tls,crypto", "http,https,tcp,tls,crypto"
_LIVE = {"flags": "low_delay", "analyzeduration": "500000", "fpsprobesize": "0"}
_AT_ONCE = {"flags": "low_delay", "analyzeduration": "0", "probesize": "32", "fpsprobesize": "0"}


class SourceError(Exception):
    """A source cannot be opened, or gives no more frames, for a reason that may pass."""


@dataclass(frozen=True)
class DecodingOptions:
    """How videos are decoded."""

    keyframes: bool = False
    """Only frames that need no others: far cheaper, and one every few seconds in most streams."""
    hardware: str = "none"
    """A device of FFmpeg, such as `cuda` or `vaapi`; decoding falls back to the processor."""


class Video:
    """An open source of video. Only the thread that opened it uses it."""

    def __init__(self, source: FrameSource, options: DecodingOptions) -> None:
        """Open it.

        Args:
            source: The source.
            options: How it is decoded.

        Raises:
            SourceError: It cannot be opened.
        """
        self.source, self._options = source, options
        try:
            self._container, self.remark = _open(source, options.hardware)
        except (FFmpegError, OSError, ValueError) as error:
            raise SourceError(_said(source, error)) from error
        try:
            self._stream = self._video_stream()
        except SourceError:
            self.close()
            raise
        self.damaged = 0
        """Packets that could not be decoded."""
        self._last = 0.0

    def _video_stream(self) -> VideoStream:
        if not self._container.streams.video:
            raise SourceError(f"{self.source.shown} has no video")
        stream = self._container.streams.video[0]
        context = stream.codec_context
        try:
            check_size(max(1, context.width), max(1, context.height), self.source.shown)
        except ImageError as error:
            raise SourceError(str(error)) from error
        # Decoding several frames at a time would add their delay to every answer.
        stream.thread_type = "AUTO" if self.finite else "SLICE"
        if self._options.keyframes:
            context.skip_frame = "NONKEY"
        return stream

    @property
    def finite(self) -> bool:
        """Whether it has an end: a file, or an address of one."""
        if self.source.kind == "address":  # a recorder that speaks RTSP claims an end, too, and plays at its own pace
            return bool(self._container.duration) and not self.source.address.lower().startswith("rtsp")
        return self.source.kind == "file"

    def frames(self, after: tuple[int, int | None] | None = None) -> Iterator[Frame]:
        """Its frames, from the first or after one.

        Args:
            after: Number and time stamp of the frame after which to go on; for files.

        Raises:
            SourceError: It broke off.
        """
        number, last = after or (0, None)
        skip = 0
        if after is not None and not self._seek(last):
            number, skip, last = 0, number, None
        try:
            for frame in self._decoded():
                if last is not None and (frame.pts is None or frame.pts <= last):
                    continue
                last = None
                number += 1
                if number > skip:
                    yield self._frame(number, frame)
        except (FFmpegError, OSError) as error:
            raise SourceError(_said(self.source, error)) from error
        self._check_end()

    def _check_end(self) -> None:
        """A decoder takes a file that was cut off for one that ends there."""
        if self.source.kind != "file":
            return
        if self.damaged:
            raise SourceError(f"{self.source.shown} is damaged: {self.damaged} packets could not be decoded")
        if not self._options.keyframes and self._missing > SHORT:
            raise SourceError(f"{self.source.shown} ends early: the last {self._missing:.0f} seconds are missing")

    @property
    def _missing(self) -> float:
        """Seconds between the last frame and the end that the file claims."""
        length, start, base = self._container.duration, self._stream.start_time, self._stream.time_base
        if not length or start is None or base is None:
            return 0.0
        return length / av.time_base + float(start * base) - self._last

    def _seek(self, last: int | None) -> bool:
        """Whether the next frames decoded begin at or before this time stamp."""
        if last is None or self._stream.time_base is None:
            return False
        try:
            self._container.seek(last, stream=self._stream, backward=True)
            first = next(self._decoded(), None)
            fits = first is not None and first.pts is not None and first.pts <= last
            self._container.seek(last if fits else 0, stream=self._stream, backward=True)
        except (FFmpegError, OSError):
            return False
        return fits

    def _decoded(self) -> Iterator[VideoFrame]:
        for packet in self._container.demux(self._stream):
            try:
                for frame in packet.decode():
                    self._last = frame.time or 0.0
                    yield frame
            except av.error.InvalidDataError:
                self.damaged += 1

    def _frame(self, number: int, frame: VideoFrame) -> Frame:
        finite = self.finite
        return Frame(
            number,
            make=partial(_image, frame, self.source.shown),
            quick=partial(_glance, frame),
            seconds=frame.time if finite else None,
            pts=frame.pts if finite else None,
            corrupt=bool(frame.is_corrupt),
        )

    def close(self) -> None:
        """Close it."""
        self._container.close()


def _image(frame: VideoFrame, name: str) -> Image.Image:
    """The frame in RGB, turned upright as its container says."""
    check_size(frame.width, frame.height, name)
    try:
        image = Image.fromarray(frame.to_ndarray(format="rgb24"))
    except (FFmpegError, ValueError) as error:
        raise ImageError(f"a frame of {name} cannot be converted ({error}); check the camera's format") from error
    turn = round(frame.rotation) % 360
    return image.rotate(turn, expand=True) if turn else image


def _glance(frame: VideoFrame) -> Glance:
    small = frame.reformat(*GLANCE, "gray", interpolation="AREA")
    return np.ascontiguousarray(small.to_ndarray())


def _open(source: FrameSource, hardware: str) -> tuple[InputContainer, str]:
    """The source, and what is to be said about how it is decoded."""
    address, how = _how(source)
    how["metadata_errors"] = "replace"
    if hardware == "none":
        return av.open(address, **how), ""
    from av.codec.hwaccel import HWAccel

    try:
        return av.open(address, **how, hwaccel=HWAccel(hardware, allow_software_fallback=True)), ""
    except (FFmpegError, RuntimeError) as error:
        # A source that is not there fails again below, and says so.
        return av.open(address, **how), f"decoded by the processor, for {hardware} cannot be used here ({error})"


def _how(source: FrameSource) -> tuple[str, dict[str, Any]]:
    """What FFmpeg is asked to open, and with which settings."""
    if source.kind == "file":
        return f"file:{source.address}", _limited("file")
    if source.kind == "stdin":
        return "pipe:0", {**_limited("pipe", _AT_ONCE), "format": "mjpeg"}
    if source.kind == "webcam":
        address, form, more = _webcam(int(source.address))
        return address, {"format": form, "options": {**_LIVE, **more}, "timeout": PATIENCE}
    if source.address.lower().startswith("rtsp"):
        options = {**_LIVE, "rtsp_flags": "prefer_tcp", "protocol_whitelist": _RTSP}
        return source.address, {"format": "rtsp", "options": options, "timeout": PATIENCE}
    return source.address, {
        **_limited(_HTTP, {**_LIVE, "max_redirects": "0"}),
        "timeout": PATIENCE,
    }


def _limited(protocols: str, more: Mapping[str, str] | None = None) -> dict[str, Any]:
    whitelists = {"protocol_whitelist": protocols, "format_whitelist": _CONTAINERS}
    return {"options": {**whitelists, **(more or {})}}


def _webcam(number: int) -> tuple[str, str, dict[str, str]]:
    """What a webcam is called on this system."""
    if sys.platform == "linux":
        return f"/dev/video{number}", "v4l2", {}
    form = "avfoundation" if sys.platform == "darwin" else "dshow"
    if form == "avfoundation":
        return str(number), form, {"framerate": "30"}
    names = [one.name for one in av.enumerate_input_devices(form)]
    if number >= len(names):
        raise OSError(f"there are {len(names)} cameras")
    return f"video={names[number]}", form, {}


def _said(source: FrameSource, error: Exception) -> str:
    """One line about an error of FFmpeg, without the address's password."""
    reason = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, av.error.ExitError):  # how PyAV says that its patience is at an end
        reason = f"nothing came for {PATIENCE:.0f} seconds"
    if isinstance(error, (av.error.ArgumentError, av.error.InvalidDataError)):
        reason = "this is no video of a kind that is read, and playlists are not"
    if source.kind == "webcam":
        return f"webcam {source.address}: {reason}"
    return f"{source.shown}: {reason.replace(source.address, source.shown)}"


def check_hardware(name: str) -> None:
    """Refuse a device that this build of FFmpeg does not know.

    Raises:
        ConfigError: With those that it knows.
    """
    from av.codec.hwaccel import hwdevices_available

    known = hwdevices_available()
    if name != "none" and name not in known:
        raise ConfigError(f"--hardware {name} is not known here; use none{''.join(f', {one}' for one in known)}")
