"""Frames of real videos: their colours, where one goes on, and what is damaged or means to be something else."""

from __future__ import annotations

import struct
import sys
import threading
from collections import deque
from pathlib import Path
from typing import Any

import av
import av.codec.hwaccel
import numpy as np
import pytest
import torch
from PIL import Image

from lessmore.cameras.folder import Folder
from lessmore.cameras.source import FrameSource
from lessmore.cameras.video import DecodingOptions, SourceError, Video, _webcam, check_hardware
from lessmore.errors import ConfigError, ImageError
from tests.cameras.scenes import pictures, write_video

RED, BLUE = (220, 30, 20), (20, 40, 230)


def opened(path: Path, **options: Any) -> Video:
    return Video(FrameSource("clip", "file", str(path)), DecodingOptions(**options))


@pytest.mark.parametrize(
    ("codec", "ending"), [("libx264", "mp4"), ("mjpeg", "avi"), ("libvpx", "webm"), ("mpeg4", "mkv")]
)
def test_colours_are_rgb(codec: str, ending: str, tmp_path: Path) -> None:
    image = Image.new("RGB", (96, 96), RED)
    image.paste(BLUE, (48, 0, 96, 96))
    path = write_video(tmp_path / f"clip.{ending}", [image] * 3, codec=codec)
    for frame in opened(path).frames():
        assert np.abs(np.subtract(frame.image.getpixel((20, 40)), RED)).max() < 12
        assert np.abs(np.subtract(frame.image.getpixel((80, 40)), BLUE)).max() < 12
        assert frame.glance.shape == (36, 64)


def test_going_on_gives_the_frames_that_are_left(tmp_path: Path) -> None:
    path = write_video(tmp_path / "clip.mp4", pictures(), repeat=3)
    video = opened(path)
    assert video.finite
    whole = [(one.number, one.pts, one.seconds, one.image.tobytes()) for one in video.frames()]
    assert [number for number, *_ in whole] == list(range(1, 37))
    assert whole[10][2] == pytest.approx(1.0)
    for start in (1, 12, 13, 35, 36):
        rest = [
            (one.number, one.pts, one.seconds, one.image.tobytes()) for one in opened(path).frames(whole[start - 1][:2])
        ]
        assert rest == whole[start:]
        assert [one.number for one in opened(path).frames((start, None))] == list(range(start + 1, 37))


def test_key_frames_alone(tmp_path: Path) -> None:
    path = write_video(tmp_path / "clip.mp4", pictures()[:1], repeat=36, gop=6)
    assert len(list(opened(path).frames())) == 36
    assert len(list(opened(path, keyframes=True).frames())) == 6


def test_a_size_that_changes_in_the_stream(tmp_path: Path) -> None:
    parts = [write_video(tmp_path / f"{i}.ts", pictures()[:4], size=size, form="mpegts").read_bytes()
             for i, size in enumerate([(96, 96), (160, 64)])]  # fmt: skip
    path = tmp_path / "joined.ts"
    path.write_bytes(b"".join(parts))
    sizes = [frame.image.size for frame in opened(path).frames()]
    assert sizes[0] == (96, 96) and sizes[-1] == (160, 64) and len(sizes) == 8


def test_a_file_that_ends_in_the_middle_of_a_frame(tmp_path: Path) -> None:
    path = write_video(tmp_path / "clip.mkv", pictures(), repeat=4, codec="mjpeg")
    path.write_bytes(path.read_bytes()[: int(0.6 * path.stat().st_size)])
    frames, decoded = [], opened(path).frames()
    with pytest.raises(SourceError, match=r"clip\.mkv (ends early: the last 2 seconds|is damaged)"):
        deque(map(frames.append, decoded))
    assert 24 <= len(frames) < 48
    assert all(frame.image.size == (96, 96) for frame in frames)


@pytest.mark.parametrize("content", [b"", b"nothing of a video" * 100, b"\0" * 5000])
def test_what_is_no_video(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.mp4").write_bytes(content)
    with pytest.raises(SourceError, match=r"x\.mp4"):
        list(opened(tmp_path / "x.mp4").frames())


@pytest.mark.parametrize("text", ["#EXTM3U\n#EXTINF:10,\n{0}\n#EXT-X-ENDLIST\n", "ffconcat version 1.0\nfile '{0}'\n"])
def test_playlists_open_nothing(text: str, tmp_path: Path) -> None:
    other = write_video(tmp_path / "secret.ts", pictures()[:2], form="mpegts")
    for name in ("list.m3u8", "list.mp4", "list.txt"):
        (tmp_path / name).write_text(text.format(other))
        with pytest.raises(SourceError):
            list(opened(tmp_path / name).frames())


def test_a_video_that_lies_on_its_side_is_turned(tmp_path: Path) -> None:
    image = Image.new("RGB", (64, 32), RED)
    image.paste(BLUE, (0, 0, 32, 32))
    path = write_video(tmp_path / "clip.mp4", [image], size=(64, 32))
    straight, quarter = (
        struct.pack(">9i", *(x << 16 for x in m), 0, 0, 1 << 30) for m in ((1, 0, 0, 0, 1, 0), (0, 1, 0, -1, 0, 0))
    )
    data = path.read_bytes()
    at = data.index(straight, data.index(b"tkhd"))
    path.write_bytes(data[:at] + quarter + data[at + len(quarter) :])
    frame = next(opened(path).frames())
    assert frame.image.size == (32, 64)
    # What was on the left is at the top: the matrix turns by 90 degrees clockwise.
    assert np.abs(np.subtract(frame.image.getpixel((16, 10)), BLUE)).max() < 12
    assert np.abs(np.subtract(frame.image.getpixel((16, 54)), RED)).max() < 12


def test_a_device_that_is_not_there_is_said_and_done_without(tmp_path: Path) -> None:
    path = write_video(tmp_path / "clip.mp4", pictures()[:3])
    known = av.codec.hwaccel.hwdevices_available()
    if "cuda" not in known or torch.cuda.is_available():
        pytest.skip("there is a CUDA device, or FFmpeg knows of none")
    video = opened(path, hardware="cuda")
    assert "decoded by the processor" in video.remark
    assert len(list(video.frames())) == 3
    with pytest.raises(SourceError, match="No such file"):
        opened(tmp_path / "nothing.mp4", hardware="cuda")


def test_unknown_hardware() -> None:
    check_hardware("none")
    with pytest.raises(ConfigError, match="use none"):
        check_hardware("abacus")


def folder_of(path: Path, known: set[str] | None = None) -> Folder:
    return Folder(FrameSource("up", "folder", str(path)), known or set(), True, threading.Event())


def test_a_folder_gives_each_image_once_and_broken_ones_too(tmp_path: Path) -> None:
    for i, image in enumerate(pictures()[:3]):
        image.save(tmp_path / f"{2 - i}.png")
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8nonsense")
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / ".hidden.png").write_bytes(b"")
    frames = list(folder_of(tmp_path).frames())
    assert [(one.number, one.file) for one in frames] == [(1, "0.png"), (2, "1.png"), (3, "2.png"), (4, "broken.jpg")]
    assert frames[0].image.tobytes() == pictures()[2].tobytes()
    with pytest.raises(ImageError):
        _ = frames[3].image
    assert [one.file for one in folder_of(tmp_path, {"0.png", "broken.jpg"}).frames((2, None))] == ["1.png", "2.png"]


def test_a_file_that_is_being_written_waits(tmp_path: Path) -> None:
    whole = tmp_path / "other"
    pictures()[0].save(whole, "PNG")
    data, growing = whole.read_bytes(), tmp_path / "new.png"
    growing.write_bytes(data[:200])
    folder = folder_of(tmp_path)
    assert folder._complete() == []
    growing.write_bytes(data)
    assert folder._complete() == []
    assert folder._complete() == ["new.png"]
    with pytest.raises(SourceError, match="gone"):
        list(folder_of(tmp_path / "gone").frames())


def webcam(monkeypatch: pytest.MonkeyPatch, *device: str) -> Video:
    """Webcam 0, with another device in its place."""
    monkeypatch.setattr("lessmore.cameras.video._webcam", lambda number: (*device, {}))
    return Video(FrameSource("camera-0", "webcam", "0"), DecodingOptions())


def test_a_webcam_is_opened_as_an_input_device(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = webcam(monkeypatch, "testsrc=size=64x48:rate=30:duration=1", "lavfi")  # the one device that is everywhere
    frames = list(opened.frames())
    assert len(frames) == 30 and frames[0].image.size == (64, 48)
    assert not opened.finite and frames[0].seconds is None, "a live source has no time of its own"


@pytest.mark.skipif(sys.platform != "linux", reason="Video4Linux is Linux's")
def test_video4linux_is_asked_for_webcams(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _webcam(3) == ("/dev/video3", "v4l2", {})
    with pytest.raises(SourceError, match="webcam 0: Inappropriate ioctl"):  # said by Video4Linux, of what is no camera
        webcam(monkeypatch, "/dev/null", "v4l2")
