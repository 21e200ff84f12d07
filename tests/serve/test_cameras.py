"""Cameras that the server watches: one answer path with everybody's images, the same bytes as a watch, and faults."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("av", reason="needs the extra camera")

from lessmore.cameras.answer import CameraAnswer
from lessmore.cameras.frame import Frame
from lessmore.cameras.reader import START
from lessmore.cameras.source import read_sources
from lessmore.cameras.watch import Watch, WatchOptions
from lessmore.errors import ConfigError
from lessmore.serve.cameras.entries import read_cameras
from lessmore.serve.cameras.feed import Feed, folder_place, place_in
from lessmore.serve.errors import BusyError
from lessmore.serve.metrics import Metrics
from lessmore.serve.registry import StreamRow
from lessmore.serve.resident import FILES, Place
from tests.cameras.scenes import NAMES, fresh, of_source, pictures, read_rows, write_video
from tests.cameras.test_watch import Kept
from tests.serve import server as served
from tests.serve.server import Server, contents, running

FRAMES = 48


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_video(tmp_path_factory.mktemp("clip") / "clip.mp4", pictures(), repeat=FRAMES // 12)


def configured(folder: Path, *entries: dict[str, Any]) -> tuple[str, ...]:
    """Flags of a server with these cameras."""
    file = folder / "serve.yaml"
    file.write_text(json.dumps({"cameras": entries}), encoding="utf-8")  # JSON is YAML
    return ("--config", str(file), "--max-batch", "1")


def camera_of(server: Server, stream: str) -> dict[str, Any]:
    found: dict[str, Any] = server.client.get(f"/v1/streams/{stream}").json()["camera"]
    return found


def until(true: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.05)


def uninterrupted(clip: Path, folder: Path) -> tuple[list[CameraAnswer], Any]:
    """Answers and state of a watch of the same video by the same settings."""
    kept = Kept()
    watch = Watch(fresh(preset="camera"), read_sources([f"yard={clip}"]), WatchOptions(max_batch=1), [kept])
    watch.run()
    watch.streams[0].adapter.save(folder / "watched.safetensors")
    return kept.answers, contents((folder / "watched.safetensors").read_bytes())


def test_a_video_is_answered_as_a_watch_answers_it(clip: Path, tmp_path: Path) -> None:
    rows, video = tmp_path / "rows.jsonl", tmp_path / "out.mp4"
    entry = {"source": str(clip), "stream": "yard", "name": "Back yard", "classes": NAMES}
    flags = configured(tmp_path, {**entry, "output": str(rows), "save": str(video)})
    with running(tmp_path / "store", *flags) as server:
        until(lambda: camera_of(server, "yard")["condition"] == "ended")
        status = server.client.get("/v1/streams/yard").json()
        listed = server.client.get("/v1/streams").json()["streams"]
        state, figures = server.state("yard"), server.metrics()
        assert server.stop() == 0
    answers, expected = uninterrupted(clip, tmp_path)
    assert status["seq"] == len(answers) == FRAMES and status["name"] == "Back yard"
    assert listed[0]["camera"]["answered"] == FRAMES
    assert state[0] == expected[0]
    told = of_source(read_rows(rows), "yard")
    assert [(one["number"], one["frame"], one["label"], round(one["score"], 6)) for one in told] == [
        (one.number, one.frame, one.label, one.score) for one in answers
    ]
    assert figures["lessmore_camera_frames_total"] == FRAMES == figures["lessmore_camera_seconds_count"]
    assert video.stat().st_size > 1000


def test_kill_9_and_a_start_again_answer_every_frame_once(clip: Path, tmp_path: Path) -> None:
    entry = {"source": str(clip), "stream": "yard", "classes": NAMES, "every": 0.15}
    flags = configured(tmp_path, entry)
    seen: list[int] = []
    for least in (6, 14):
        with running(tmp_path / "store", *flags) as server:
            until(lambda least=least: server.client.get("/v1/streams/yard").json()["seq"] >= least)  # type: ignore[misc]
            seen.append(server.client.get("/v1/streams/yard").json()["seq"])
            server.kill()
    with running(tmp_path / "store", *flags) as server:
        until(lambda: camera_of(server, "yard")["condition"] == "ended")
        state, seq = server.state("yard"), server.client.get("/v1/streams/yard").json()["seq"]
        assert camera_of(server, "yard")["answered"] < seq, "nothing was gone on from"
        server.kill()
    with running(tmp_path / "other", *flags) as server:
        until(lambda: camera_of(server, "yard")["condition"] == "ended")
        assert server.client.get("/v1/streams/yard").json()["seq"] == seq
        assert server.state("yard")[0] == state[0]


def test_a_stream_with_other_settings_or_none_at_all(clip: Path, tmp_path: Path) -> None:
    entry = {"source": str(clip), "stream": "yard", "classes": NAMES, "frames": "newest"}
    with running(tmp_path / "store", *configured(tmp_path, entry)) as server:
        until(lambda: camera_of(server, "yard")["answered"] > 0)
        assert server.client.delete("/v1/streams/yard").status_code == 204
        until(lambda: "lessmore_camera_live 0" in server.client.get("/metrics").text.replace('{stream="yard"}', ""))
        server.create("yard", classes=["another", "list"])
        assert server.stop() == 0
    refused = Server(tmp_path / "store", *configured(tmp_path, entry), wait=False)
    assert refused.process.wait(120) == 1
    said = refused.log.read_text().splitlines()[-1]
    assert "there is a stream yard with 2 other classes" in said and "delete the stream" in said


BAD: list[tuple[Any, str]] = [
    ("rtsp://me:secret@host/x", "cameras is no list"),
    ([{"source": "rtsp://me:secret@host/x", "evry": 1}], "camera 1: evry: "),
    ([{"stream": "yard"}], "camera 1: source: "),
    ([{"source": "/nowhere/clip.mp4"}], "there is no file or folder /nowhere/clip.mp4"),
    ([{"source": "ftp://me:secret@host/x"}], "scheme that is not read"),
    ([{"source": "-"}], "use lessmore watch"),
    ([{"source": 0, "stream": "Not An Id"}], "camera 1: stream: "),
    ([{"source": 0}, {"source": "0"}], "camera 2: its stream camera-0 is another camera's"),
    ([{"source": 0, "every": -1}], "camera 1: every: "),
    ([{"source": 0, "when": "motion", "track": True}], "exclude each other"),
    ([{"source": 0, "hardware": "abacus"}], "abacus is not known"),
    ([{"source": 0, "save": "out.avi"}], r"out.avi does not end in .mp4"),
    ([{"source": 0, "output": "/nowhere/out.jsonl"}], "there is no folder /nowhere"),
    ([{"source": 0, "mqtt": "http://me:secret@host"}], "mqtt://"),
    ([{"source": 0, "webhook": "mqtt://me:secret@host"}], "no web address"),
    ([{"source": 0, "classes": []}], "camera 1: classes"),
    (["rtsp://me:secret@host/x"], "camera 1: the entry: "),
]


@pytest.mark.parametrize(("given", "sentence"), BAD, ids=[sentence for _, sentence in BAD])
def test_a_bad_entry_is_refused_by_a_sentence(given: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        read_cameras(given)
    text = str(caught.value)
    assert "\n" not in text and "secret" not in text


def test_what_is_refused_ends_the_start_with_one_line(tmp_path: Path) -> None:
    flags = configured(tmp_path, {"source": 0, "preset": "no such preset"})
    refused = Server(tmp_path / "store", *flags, wait=False)
    assert refused.process.wait(120) == 1
    (said,) = refused.log.read_text().splitlines()
    assert "camera camera-0: " in said and "no such preset" in said
    keyed = Server(tmp_path / "other", *configured(tmp_path, {"source": 0, "key": "nobody"}), wait=False)
    assert keyed.process.wait(120) == 1
    assert "there is no API key 'nobody'" in keyed.log.read_text()


class BusyService:
    """A service that has no room at first."""

    stopping = False

    def __init__(self, refusals: int) -> None:
        self.refusals, self.frames = refusals, 0
        self.metrics = Metrics()
        self.events = SimpleNamespace(publish=lambda *about: None)

    async def place(self, row: StreamRow) -> Any:
        return SimpleNamespace(keys={}, last=None)

    async def classify(self, row: StreamRow, images: Any, asked: Any, timeout: Any) -> list[Any]:
        if self.refusals:
            self.refusals -= 1
            raise BusyError("too much waits", "send it again", 1)
        self.frames += 1
        about = dict.fromkeys(("label", "zero_shot_label"), NAMES[0]) | dict.fromkeys(("changed", "refused"), False)
        numbers = dict.fromkeys(("index", "score", "entropy", "domain_changes", "frames"), 0)
        return [{"seq": self.frames, "unknown_score": None, **about, **numbers}]


@pytest.mark.parametrize("frames", ["newest", "all"])
def test_where_the_queue_is_full_the_older_frame_goes_and_a_file_waits(
    clip: Path, frames: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lessmore.serve.cameras.feed.AGAIN", 0.3)
    (camera,) = read_cameras([{"source": str(clip), "stream": "yard", "frames": frames}])
    told: list[CameraAnswer] = []
    outputs: Any = SimpleNamespace(put=lambda answer, image: told.append(answer), told=lambda *about: None)
    service: Any = BusyService(refusals=3)
    feed = Feed(service, StreamRow("yard", "", None, {}), camera, outputs)
    with ThreadPoolExecutor(1) as hands:
        asyncio.run(asyncio.wait_for(feed.run(hands), 60))
    numbers = [answer.frame for answer in told]
    assert feed.facts()["condition"] == "ended" and numbers[-1] == FRAMES
    if frames == "all":
        assert numbers == list(range(1, FRAMES + 1)) and not feed.dropped
    else:
        assert numbers[0] > 3, "an old frame was answered although newer ones were there"
        assert feed.dropped["busy"] == 3 and feed.dropped["newer"] > 0
        assert len(numbers) + sum(feed.dropped.values()) == FRAMES


def test_a_key_of_a_client_is_no_place_of_a_camera(clip: Path) -> None:
    (camera,) = read_cameras([{"source": str(clip), "stream": "yard"}])
    size = clip.stat().st_size
    own = f"camera-frame {size}/7/3584/0.6"
    assert place_in([own, "camera-frame", "camera-frame 3", f"camera-frame {size + 1}/9/1/1.0"], camera, None)[:2] == (
        7,
        3584,
    )
    assert place_in([own], camera, "scene 4").past == (0.6, 4, None)
    assert place_in(["camera-frame 3"], camera, "cup") == START


def test_one_answer_path_with_images_that_clients_send(clip: Path, tmp_path: Path) -> None:
    entry = {"source": str(clip), "stream": "yard", "classes": NAMES, "frames": "newest"}
    with running(tmp_path / "store", *configured(tmp_path, entry)) as server:
        until(lambda: camera_of(server, "yard")["answered"] > 0)
        answer = server.send("yard", served.pictures()[0], top=3)
        until(lambda: camera_of(server, "yard")["condition"] == "ended")
        status = server.client.get("/v1/streams/yard").json()
        assert 1 < answer["seq"] < status["seq"] == status["camera"]["answered"] + 1
        assert status["health"]["seen"] == status["seq"]


def images_in(folder: Path, names: Iterable[str], broken: str = "") -> None:
    """Pictures that a camera has put into a folder; one of them is none."""
    folder.mkdir(exist_ok=True)
    for i, name in enumerate(names):
        path = folder / name
        pictures()[i % 12].save(path)
        if name == broken:
            path.write_bytes(b"no image")
        os.utime(path, (1, 1))  # written long ago, and so complete


def test_a_folder_goes_on_after_kill_9_with_the_images_it_has_not_answered(tmp_path: Path) -> None:
    odd = ["a/../b".replace("/", "%2F") + ".png", "=1+1.png", "Ä ö 日.png", os.fsdecode(b"\xff\xfe.png")]
    names = sorted([f"{i:02}.png" for i in range(16)] + odd)
    entry = {"stream": "up", "classes": NAMES, "preset": "camera"}
    for kind in ("one", "other"):
        images_in(tmp_path / kind, names, broken="03.png")
    rows = tmp_path / "rows.jsonl"
    flags = configured(tmp_path, {**entry, "source": str(tmp_path / "one"), "output": str(rows)})
    flags = (*flags, "--snapshot-every", "4")  # names stand in snapshots and in journals
    for least in (5, 11):
        with running(tmp_path / "store", *flags) as server:
            until(lambda least=least: server.client.get("/v1/streams/up").json()["seq"] >= least)  # type: ignore[misc]
            server.kill()
    with running(tmp_path / "store", *flags) as server:
        until(lambda: server.client.get("/v1/streams/up").json()["health"]["seen"] == len(names) - 1)
        images_in(tmp_path / "one", ["later.png"])
        until(lambda: server.client.get("/v1/streams/up").json()["seq"] == len(names))
        state, about = server.state("up"), camera_of(server, "up")
        assert about["condition"] == "live" and about["answered"] <= len(names) - 11 + 1
        assert server.stop() == 0
    files = [one["file"] for one in read_rows(rows)]
    assert set(files) <= {*names, "later.png"} and len(files) == len(set(files)), "an image was answered twice"
    assert files[-1] == "later.png" and read_rows(rows)[-1]["frame"] == len(names) + 1
    uninterrupted = configured(tmp_path, {**entry, "source": str(tmp_path / "other")})
    with running(tmp_path / "third", *uninterrupted) as server:
        until(lambda: server.client.get("/v1/streams/up").json()["seq"] == len(names) - 1)
        images_in(tmp_path / "other", ["later.png"])
        until(lambda: server.client.get("/v1/streams/up").json()["seq"] == len(names))
        assert server.state("up")[0] == state[0]


def test_where_a_folder_stands(tmp_path: Path) -> None:
    """Images without motion are known, too, and the next is compared with the one answered last."""
    images_in(tmp_path / "up", ["a.png", "b.png", "c.png", "d.png"])
    (camera,) = read_cameras([{"source": str(tmp_path / "up"), "when": "motion"}])
    answer = {"seq": 1, "track": None}
    place = Place()
    for key in (f"{FILES}a.png", f"{FILES}b.png/c.png", "a client's", None):
        place.pass_by(key)
        place.remember(key, answer | {"seq": place.seq + 1})
    stands, known = folder_place(place, camera)
    assert known == {"a.png", "b.png", "c.png"} and stands.number == 3
    assert stands.past.reference == np.asarray(Frame(0, lambda: pictures()[2]).glance).tobytes()
    (tmp_path / "up" / "c.png").unlink()
    assert folder_place(place, camera)[0].past.reference is None
