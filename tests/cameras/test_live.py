"""Cameras that speak HTTP, and frames on standard input: live sources that a test can be."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from lessmore.cameras import reader
from lessmore.cameras.reader import ReadingOptions
from lessmore.cameras.source import FrameSource
from lessmore.cameras.video import DecodingOptions, SourceError, Video
from tests.cameras.scenes import FLAGS, pictures, read_rows, write_video
from tests.cameras.test_watch import Kept, watched


def jpegs() -> list[bytes]:
    """The pictures as frames of a camera."""
    found = []
    for image in pictures():
        file = io.BytesIO()
        image.resize((160, 120)).save(file, "JPEG", quality=92)
        found.append(file.getvalue())
    return found


class Camera(BaseHTTPRequestHandler):
    """Sends so many JPEG frames to each who asks, then hangs up; other paths lead elsewhere."""

    protocol_version = "HTTP/1.0"
    frames, rate = 15, 20.0
    asked: list[str]

    def do_GET(self) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        if self.path == "/elsewhere":
            self.send_response(302)
            self.send_header("Location", "/secret")
            self.end_headers()
            return
        if self.path in ("/list.m3u8", "/list"):
            self.send_response(200)
            self.send_header("Content-Type", "application/vnd.apple.mpegurl")
            self.end_headers()
            self.wfile.write(b"#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\n/secret\n#EXT-X-ENDLIST\n")
            return
        self.send_response(200)
        self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=frame")
        self.end_headers()
        images = jpegs()
        for i in range(self.frames):
            body = images[i % len(images)]
            head = f"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: {len(body)}\r\n\r\n"
            self.wfile.write(head.encode() + body + b"\r\n")
            time.sleep(1 / self.rate)

    def log_message(self, *about: Any) -> None:
        pass


@pytest.fixture
def camera() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Camera)
    server.asked = []  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def address(server: ThreadingHTTPServer, path: str) -> str:
    return f"http://me:secret@127.0.0.1:{server.server_address[1]}{path}"


def test_a_camera_that_hangs_up_is_opened_again(camera: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "FIRST_WAIT", 0.1)
    kept = Kept(most=12)
    watch = watched([f"cam={address(camera, '/video')}"], kept, reading=ReadingOptions())
    while watch.streams[0].reader.reconnects < 1 and not kept.full:
        time.sleep(0.05)
    conditions = [condition for _, condition in kept.told_of]
    assert conditions[:1] == ["live"]
    assert watch.streams[0].adapter.health().seen == len(kept.answers) >= 12
    assert all(one.seconds is None and one.label for one in kept.answers)
    assert "secret" not in repr(kept.told_of) + watch.streams[0].reader.why


def test_it_goes_on_as_it_was(camera: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(reader, "FIRST_WAIT", 0.1)
    monkeypatch.setattr(Camera, "frames", 4)
    word = f"cam={address(camera, '/video')}"
    kept, more = Kept(most=7), Kept(most=3)
    watch = watched([word], kept, reading=ReadingOptions(), state=tmp_path)
    assert watch.streams[0].reader.reconnects >= 1
    assert [one for _, one in kept.told_of][:3] == ["live", "lost", "live"]
    again = watched([word], more, reading=ReadingOptions(), state=tmp_path, resume=True)
    assert [one.number for one in kept.answers + more.answers] == list(range(1, len(kept.answers + more.answers) + 1))
    assert again.streams[0].adapter.health().seen == len(kept.answers) + len(more.answers)


@pytest.mark.parametrize("path", ["/elsewhere", "/list.m3u8", "/list"])
def test_nothing_but_the_address_is_opened(path: str, camera: ThreadingHTTPServer) -> None:
    with pytest.raises(SourceError) as told:
        list(Video(FrameSource("x", "address", address(camera, path)), DecodingOptions()).frames())
    assert "secret" not in str(told.value)
    assert set(camera.asked) == {path}  # type: ignore[attr-defined]


def test_a_video_at_an_address_has_an_end(tmp_path: Path) -> None:
    write_video(tmp_path / "clip.mp4", pictures(), form="mp4")

    class Files(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = (tmp_path / "clip.mp4").read_bytes()
            begin = int((self.headers.get("Range") or "bytes=0-")[6:].split("-")[0])
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
            self.send_header("Content-Length", str(len(data) - begin))
            self.end_headers()
            self.wfile.write(data[begin:])

        def log_message(self, *about: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Files)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    kept = Kept()
    watch = watched([f"x=http://127.0.0.1:{server.server_address[1]}/clip.mp4"], kept, reading=ReadingOptions())
    server.shutdown()
    server.server_close()
    assert [one.frame for one in kept.answers] == list(range(1, 13))
    assert watch.streams[0].reader.condition == "ended"


def test_frames_on_standard_input(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    words = ["watch", "-", *FLAGS, "--output", str(output), "--frames", "all"]
    given = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.run(
        [sys.executable, "-m", "lessmore", *words], input=b"".join(jpegs()), env=given, capture_output=True, timeout=300
    )
    assert process.returncode == 0, process.stderr
    rows = read_rows(output)
    assert len(rows) == len(jpegs()) and all(row["source"] == "stdin" and row["label"] for row in rows)
    assert b"stdin: 12 frames answered" in process.stderr


def test_a_silent_pipe_does_not_keep_the_watch_alive() -> None:
    words = [sys.executable, "-m", "lessmore", "watch", "-", *FLAGS]
    given = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=given)
    assert process.stdin and process.stdout
    image = jpegs()[0]
    process.stdin.write(image * 8)
    process.stdin.flush()
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0


def test_there_is_no_such_webcam() -> None:
    kept = Kept()
    watch = watched(["97"], kept)
    assert watch.streams[0].reader.condition == "failed" and "97" in watch.streams[0].reader.why
    assert isinstance(pictures()[0], Image.Image)
