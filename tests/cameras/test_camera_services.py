"""Faults of the real things: an RTSP camera, a broker, a disk and a clock that fail while somebody watches."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import av
import pytest

from lessmore.cameras import reader, video
from lessmore.cameras.mqtt import MqttSink
from lessmore.cameras.reader import ReadingOptions
from lessmore.cameras.recording import AnnotatedVideo
from lessmore.cameras.selection import SelectionRules
from lessmore.cameras.source import read_sources
from lessmore.cameras.watch import Watch, WatchOptions
from tests.cameras.scenes import FLAGS, fresh, pictures, read_rows, write_video
from tests.cameras.test_live import jpegs
from tests.cameras.test_watch import Kept

pytestmark = pytest.mark.services
PYTHON = "/usr/bin/python3"
MOSQUITTO = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
FAKETIME = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def until(true: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for something, for so long."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.05)


class Process:
    """A service of its own that says `ready`, or listens, when it is there."""

    def __init__(self, command: list[str], port: int) -> None:
        self._command, self._port = command, port
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def listens() -> bool:
            assert self.process.poll() is None, self._command
            with socket.socket() as one:
                return one.connect_ex(("127.0.0.1", self._port)) == 0

        until(listens)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def rtsp(tmp_path: Path) -> Iterator[Process]:
    check = "import gi; gi.require_version('GstRtspServer', '1.0'); from gi.repository import GstRtspServer"
    if not Path(PYTHON).exists() or subprocess.run([PYTHON, "-c", check], capture_output=True).returncode:
        pytest.skip("no RTSP server: gir1.2-gst-rtsp-server-1.0 is not installed")
    for i, data in enumerate(jpegs()):
        (tmp_path / f"{i:03}.jpg").write_bytes(data)
    port, script = free_port(), Path(__file__).with_name("rtsp_server.py")
    server = Process([PYTHON, str(script), str(port), f"{tmp_path}/%03d.jpg", str(len(jpegs())), "10"], port)
    server.address = f"rtsp://me:secret@127.0.0.1:{port}/live"  # type: ignore[attr-defined]
    yield server
    server.kill()


@contextmanager
def watching(word: str, kept: Any, *more: Any, **reading: Any) -> Iterator[Watch]:
    """A watch in a thread, until the block ends."""
    watch = Watch(fresh(), read_sources([word]), WatchOptions(ReadingOptions(**reading)), [kept, *more])
    stop = threading.Event()
    thread = threading.Thread(target=watch.run, args=(stop.is_set,))
    thread.start()
    try:
        yield watch
    finally:
        stop.set()
        thread.join(60)
        for sink in more:
            sink.close()
    assert not thread.is_alive()


def test_an_rtsp_camera_that_is_killed_and_comes_back(rtsp: Any) -> None:
    kept = Kept()
    with watching(f"cam={rtsp.address}", kept) as watch:
        until(lambda: len(kept.answers) >= 8)
        rtsp.kill()
        until(lambda: kept.told_of[-1] == ("cam", "lost"))
        before = len(kept.answers)
        rtsp.start()
        until(lambda: kept.told_of[-1] == ("cam", "live") and len(kept.answers) >= before + 8)
    assert [condition for _, condition in kept.told_of if condition != "opening"][:3] == ["live", "lost", "live"]
    assert watch.streams[0].reader.reconnects >= 1
    assert watch.streams[0].adapter.health().seen == len(kept.answers)
    # Twelve pictures go round; whoever mistook colours or fields would give other answers.
    known = {fresh()(image).label for image in pictures()}
    assert sum(one.label in known for one in kept.answers) >= 0.9 * len(kept.answers)


def test_an_rtsp_camera_that_falls_silent(rtsp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video, "PATIENCE", 2.0)
    monkeypatch.setattr(reader, "LONGEST_WAIT", 1.0)
    kept = Kept()
    with watching(f"cam={rtsp.address}", kept):
        until(lambda: len(kept.answers) >= 4)
        rtsp.process.send_signal(signal.SIGSTOP)
        until(lambda: kept.told_of[-1] == ("cam", "lost"))
        before = len(kept.answers)
        rtsp.process.send_signal(signal.SIGCONT)
        until(lambda: len(kept.answers) >= before + 4)
    assert "secret" not in repr(kept.told_of)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Process]:
    if MOSQUITTO is None:
        pytest.skip("no MQTT broker: mosquitto is not installed")
    port = free_port()
    (tmp_path / "mosquitto.conf").write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\n")
    server = Process([MOSQUITTO, "-c", str(tmp_path / "mosquitto.conf")], port)
    server.port = port  # type: ignore[attr-defined]
    yield server
    server.kill()


def told_by(port: int, seconds: float = 20, enough: int = 6) -> dict[str, str]:
    """What the broker keeps for whoever comes later."""
    from paho.mqtt.client import Client
    from paho.mqtt.enums import CallbackAPIVersion

    found: dict[str, str] = {}
    client = Client(CallbackAPIVersion.VERSION2)
    client.on_connect = lambda *about: client.subscribe("#")
    client.on_message = lambda client, data, message: found.update({message.topic: message.payload.decode()})
    client.connect("127.0.0.1", port)
    client.loop_start()
    end = time.monotonic() + seconds
    while len(found) < enough and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(0.3)
    client.disconnect()
    client.loop_stop()
    return found


def test_a_broker_that_goes_and_comes_back(broker: Any, tmp_path: Path) -> None:
    clip = write_video(tmp_path / "clip.mp4", pictures(), repeat=100)
    sink, kept = MqttSink(f"mqtt://127.0.0.1:{broker.port}/home", ["clip"]), Kept()
    with watching(str(clip), kept, sink, frames="newest", rules=SelectionRules(every=0.2)):
        until(lambda: len(kept.answers) >= 3)
        first = told_by(broker.port)
        broker.kill()
        before = len(kept.answers)
        until(lambda: len(kept.answers) >= before + 5)
        broker.start()  # it has forgotten everything
        until(lambda: sink.connections >= 2)
        second = told_by(broker.port)
    last = told_by(broker.port)
    for found in (first, second):
        assert found["home/availability"] == "online" and found["home/clip/live"] == "ON"
        state = json.loads(found["home/clip/state"])
        assert state["source"] == "clip" and state["label"] in fresh().classes
        config = json.loads(found["homeassistant/sensor/home_clip/answer/config"])
        assert config["state_topic"] == "home/clip/state" and "value_json.label" in config["value_template"]
        assert len([topic for topic in found if topic.startswith("homeassistant/")]) == 4
    assert last["home/availability"] == "offline"
    assert sink.problems == []


def test_a_disk_that_is_full_ends_the_video_and_not_the_watch(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=40k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no small disk: mounting one takes root")
    try:
        clip = write_video(tmp_path / "clip.mp4", pictures(), repeat=6, size=(320, 240))
        recording, kept = AnnotatedVideo(disk / "out.mp4", "clip"), Kept()
        with watching(str(clip), kept, recording, once=True):
            until(lambda: len(kept.answers) >= 72)
        (problem,) = recording.problems
        assert "No space left" in problem and "out.mp4" in problem
        shown: list[object] = []
        with av.open(str(disk / "out.mp4")) as saved, suppress(av.error.InvalidDataError):
            deque(map(shown.append, saved.decode(video=0)))  # up to where the disk was full
        assert len(shown) >= 5
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_clock_that_jumps(tmp_path: Path) -> None:
    if FAKETIME is None:
        pytest.skip("no clock to set: faketime is not installed")
    clock, output = tmp_path / "clock", tmp_path / "out.jsonl"
    clock.write_text("+0")
    given = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path), "LD_PRELOAD": str(FAKETIME)}
    given |= {"FAKETIME_TIMESTAMP_FILE": str(clock), "FAKETIME_CACHE_DURATION": "1", "DONT_FAKE_MONOTONIC": "1"}
    words = [sys.executable, "-m", "lessmore", "watch", "-", *FLAGS, "--output", str(output), "--every", "0.4"]
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=given
    )
    assert process.stdin is not None
    done, began = 0, None
    for jump in ("+0", "+2d", "-2d"):
        clock.write_text(jump)
        count, end = 0, time.monotonic() + 60
        while count < 5 and time.monotonic() < end:
            process.stdin.write(jpegs()[done % 12])
            process.stdin.flush()
            done += 1
            time.sleep(0.05)
            rows = read_rows(output) if output.exists() else []
            began = began if began is not None or not rows else time.monotonic()
            count = len(rows) - 5 * ("+0", "+2d", "-2d").index(jump)
    lasted = time.monotonic() - (began or 0)
    process.stdin.close()
    assert process.wait(60) == 0
    rows = read_rows(output)
    assert {row["time"][:10] for row in rows} != {rows[0]["time"][:10]}, "the clock was never set"
    assert all(0 <= row["ms"] < 60_000 for row in rows)
    assert len(rows) <= lasted / 0.4 + 3
