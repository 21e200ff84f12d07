"""Where answers go: a video, a web address, a broker."""

from __future__ import annotations

import base64
import json
import os
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from lessmore.cameras import webhook
from lessmore.cameras.answer import CameraAnswer
from lessmore.cameras.mqtt import MqttSink, discovery, mqtt_address
from lessmore.cameras.recording import AnnotatedVideo, annotated
from lessmore.cameras.webhook import Webhook, web_address
from lessmore.cli import main
from lessmore.errors import ConfigError, StateError
from tests.cameras.scenes import FLAGS, pictures, write_video


def answer(number: int, label: str = "cat", **more: Any) -> CameraAnswer:
    given = {"score": 0.5, "zero_shot_label": "dog", "changed": True, "domain_changes": 0, "seconds": number / 10}
    return CameraAnswer("cam", number, "2020-01-01T00:00:00Z", number, file=None, label=label, **{**given, **more})


def test_a_video_of_what_was_answered(tmp_path: Path) -> None:
    path = tmp_path / "out.mp4"
    recording = AnnotatedVideo(path, "cam")
    for i in range(12):
        size = (161, 121) if i < 6 else (320, 100)
        recording.put(answer(i), Image.new("RGB", size, (220, 30, 20)))
    recording.put(CameraAnswer("other", 1, "", 1, 0.0, None, "x", 0, 1.0), Image.new("RGB", (8, 8)))
    recording.put(CameraAnswer("cam", 13, "", 13, 1.3, None, error="broken"), None)
    half = path.read_bytes()
    recording.close()
    assert recording.problems == []
    with av.open(str(path)) as saved:
        frames = list(saved.decode(video=0))
    assert [round(frame.time, 2) for frame in frames] == [round(i / 10, 2) for i in range(12)]
    assert {(frame.width, frame.height) for frame in frames} == {(160, 120)}
    middle = frames[0].to_ndarray(format="rgb24")[90, 80]
    assert np.abs(middle.astype(int) - (220, 30, 20)).max() < 12
    assert len(half) > 0


def test_a_video_is_never_written_over_or_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "there.mp4").write_bytes(b"x")
    os.symlink(tmp_path / "elsewhere", tmp_path / "link.mp4")
    for name in ("there.mp4", "link.mp4"):
        with pytest.raises((OSError, StateError)):
            AnnotatedVideo(tmp_path / name, "cam")
    assert not (tmp_path / "elsewhere").exists()


def test_a_source_without_frames_leaves_no_video(tmp_path: Path) -> None:
    AnnotatedVideo(tmp_path / "out.mp4", "cam").close()
    assert not (tmp_path / "out.mp4").exists()


def test_what_is_killed_can_be_played(tmp_path: Path) -> None:
    recording = AnnotatedVideo(tmp_path / "out.mp4", "cam")
    for i in range(60):
        recording.put(answer(i), pictures()[i % 12].resize((96, 96)))
    (tmp_path / "copy.mp4").write_bytes((tmp_path / "out.mp4").read_bytes())
    recording.close()
    with av.open(str(tmp_path / "copy.mp4")) as saved:
        assert len(list(saved.decode(video=0))) >= 25


def test_the_answer_is_drawn_and_the_frame_stays() -> None:
    image = Image.new("RGB", (320, 240), "white")
    drawn = annotated(image, answer(1, "a very long name " * 20 + "\n\x1b[31m"))
    assert image.getcolors() == [(320 * 240, (255, 255, 255))]
    assert drawn.getpixel((3, 3)) != (255, 255, 255) and drawn.getpixel((3, 200)) == (255, 255, 255)


class Listener(BaseHTTPRequestHandler):
    """Answers with one code after another, then with 200."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        codes = self.server.codes  # type: ignore[attr-defined]
        code = codes.pop(0) if codes else 200
        self.server.heard.append((code, self.path, json.loads(body)["number"], dict(self.headers)))  # type: ignore[attr-defined]
        self.send_response(code)
        if code == 302:
            self.send_header("Location", "/secret")
        self.end_headers()

    do_GET = do_POST

    def log_message(self, *about: Any) -> None:
        pass


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(webhook, "WAITS", (0.05, 0.05, 0.05))
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Listener)
    server.codes, server.heard = [], []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    server.at = f"http://me:s%20ecret@127.0.0.1:{server.server_address[1]}/hook"
    yield server
    server.shutdown()
    server.server_close()


def test_a_webhook_tries_again_and_keeps_the_order(listener: Any) -> None:
    listener.codes.extend([503, 429, 200])
    hook = Webhook(listener.at)
    for number, label in enumerate(["cat", "cat", "dog", "dog", "cat"], start=1):
        hook.put(answer(number, label), None)
    hook.put(CameraAnswer("cam", 6, "", 6, None, None, error="broken"), None)
    hook.close()
    assert [(code, number) for code, _, number, _ in listener.heard] == [
        (503, 1),
        (429, 1),
        (200, 1),
        (200, 3),
        (200, 5),
    ]
    headers = listener.heard[0][3]
    assert headers["Authorization"] == "Basic " + base64.b64encode(b"me:s ecret").decode()
    keys = [one[3]["Idempotency-Key"] for one in listener.heard]
    assert keys[0] == keys[1] == keys[2] != keys[3]
    assert hook.sent == 3 and hook.problems == []


def test_a_webhook_gives_up_and_says_so(listener: Any) -> None:
    listener.codes.extend([400, 302, *[500] * 4])
    hook = Webhook(listener.at, "all")
    for number in (1, 2, 3, 4):
        hook.put(answer(number), None)
    hook.close()
    assert [one[0] for one in listener.heard] == [400, 302, 500, 500, 500, 500, 200]
    assert {one[1] for one in listener.heard} == {"/hook"}
    assert hook.given_up == 3 and "secret" not in hook.problems[0] and "3 answers" in hook.problems[0]


def test_nobody_listens_and_nobody_waits() -> None:
    hook = Webhook("http://127.0.0.1:9/x", "all", grace=0.2)
    began = time.monotonic()
    for number in range(400):
        hook.put(answer(number), None)
    assert time.monotonic() - began < 5
    hook.close()
    assert "400 answers" in hook.problems[0]


@pytest.mark.parametrize("text", ["ftp://x", "http://", "x", "http://h:99999/", "file:///etc/passwd"])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError):
        web_address(text)
    with pytest.raises(ConfigError):
        mqtt_address(text)


def test_addresses_of_brokers() -> None:
    assert mqtt_address("mqtt://h") == ("h", 1883, None, None, False, "lessmore")
    assert mqtt_address("mqtts://me:a%40b@h:7/home/cams/") == ("h", 7, "me", "a@b", True, "home/cams")
    with pytest.raises(ConfigError):
        mqtt_address("mqtt://h/a+b")


def test_home_assistant_gets_one_device_for_each_source() -> None:
    found = dict(discovery("home", ["door", "yard-1"]))
    assert len(found) == 8 and len({config["unique_id"] for config in found.values()}) == 8
    assert len({json.dumps(config["device"]) for config in found.values()}) == 2


def test_a_broker_that_was_never_there_is_said() -> None:
    sink = MqttSink("mqtt://me:secret@127.0.0.1:9", ["cam"])
    sink.put(answer(1), None)
    sink.close()
    assert len(sink.problems) == 1 and "never reached" in sink.problems[0] and "secret" not in sink.problems[0]


def test_the_command_saves_videos_and_goes_on_with_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clips = [write_video(tmp_path / f"{name}.mp4", pictures()[:4]) for name in "ab"]
    words = ["watch", *map(str, clips), *FLAGS, "--quiet", "--save", str(tmp_path / "out.mp4")]
    assert main(words) == 0
    for name in "ab":
        with av.open(str(tmp_path / f"out-{name}.mp4")) as saved:
            assert len(list(saved.decode(video=0))) == 4
    assert main(words) == 1
    assert "is there already" in capsys.readouterr().err
    assert main([*words, "--state", str(tmp_path / "s"), "--resume"]) == 0
    assert (tmp_path / "out-a-2.mp4").exists()
    assert main(["watch", str(clips[0]), *FLAGS, "--save", "out.avi"]) == 1
    assert main(["watch", str(clips[0]), *FLAGS, "--mqtt", "http://x"]) == 1
    assert main(["watch", str(clips[0]), *FLAGS, "--webhook", "mqtt://x"]) == 1
    assert len(capsys.readouterr().err.strip().splitlines()) == 3
