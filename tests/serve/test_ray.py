"""Two replicas under Ray Serve on one S3 store: a stream stays with one of them, and moves when that one is killed."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from lessmore.errors import ConfigError
from lessmore.serve.front import stream_of
from lessmore.serve.on_ray import check_shared
from lessmore.serve.settings import ServerSettings
from tests.serve.server import CLASSES, Server, expected, fresh_adapter, pictures, running, saved_state, scores_of

psutil = pytest.importorskip("psutil", reason="needs the extra services")
TITLE = "ray::ServeReplica:lessmore:Replica"
STREAMS = [f"s{i}" for i in range(4)]


@pytest.fixture(scope="module")
def replicated(bucket: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    pytest.importorskip("ray.serve", reason="needs the extra ray")
    folder = tmp_path_factory.mktemp("ray")
    shared = ("--store", f"{bucket}/ray", "--db", f"sqlite:///{folder}/registry.db")
    flags = ("--ray", "2", "--max-batch", "1", "--snapshot-every", "4", "--max-resident", "3", "--max-body-mb", "1")
    with running(folder / "log", *shared, *flags) as server:
        family = psutil.Process(server.process.pid).children(recursive=True)
        yield server
        assert server.stop() == 0
        assert psutil.wait_procs(family, timeout=30)[1] == []


def replicas(server: Server) -> list[Any]:
    found = []
    for one in psutil.Process(server.process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            found += [one] if one.cmdline()[0].startswith(TITLE) else []
    return found


def send(server: Server, stream: str, turn: int) -> dict[str, Any]:
    """As a client that sends again, under the same key, what was refused with a Retry-After."""
    image = pictures(24, seed=STREAMS.index(stream))[turn]
    headers = {"Content-Type": "image/png", "Idempotency-Key": str(turn)}
    for _ in range(100):
        answer = server.client.post(
            f"/v1/streams/{stream}/images", params={"top": len(CLASSES)}, content=image, headers=headers
        )
        if answer.status_code == 200:
            found: dict[str, Any] = answer.json()
            return found
        assert answer.status_code == 503 and "Retry-After" in answer.headers, answer.text
        time.sleep(0.1)
    raise AssertionError(answer.text)


def figures(server: Server, name: str) -> dict[str, float]:
    """A figure of each replica."""
    text = server.client.get("/metrics").raise_for_status().text
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    return {one.labels["replica"]: one.value for one in samples if one.name == name}


@pytest.mark.services
def test_streams_stay_with_their_replica_and_move_when_it_is_killed(replicated: Server, tmp_path: Any) -> None:
    adapters = {stream: fresh_adapter() for stream in STREAMS}
    for stream in STREAMS:
        replicated.create(stream)

    def turns(which: range) -> None:
        for turn in which:
            for i, stream in enumerate(STREAMS):
                told, image = send(replicated, stream, turn), pictures(24, seed=i)[turn]
                assert (scores_of(told), told["seq"]) == (expected(adapters[stream], image), turn + 1)

    turns(range(3))
    loads = figures(replicated, "lessmore_load_seconds_count")
    shares = figures(replicated, "lessmore_images_total")
    assert len(shares) == 2 and min(shares.values()) > 0 and sum(shares.values()) == 12, shares
    turns(range(3, 6))
    assert figures(replicated, "lessmore_load_seconds_count") == loads, "a stream has wandered"
    before = replicas(replicated)
    assert len(before) == 2
    assert {one.environ()["RAY_USAGE_STATS_ENABLED"] for one in before} == {"0"}
    before[0].kill()
    turns(range(6, 9))
    for stream in STREAMS:
        assert replicated.state(stream) == saved_state(adapters[stream], tmp_path)
    for _ in range(300):
        if len(replicas(replicated)) == 2:
            break
        time.sleep(0.1)
    assert len({one.pid for one in replicas(replicated)} - {one.pid for one in before}) == 1


@pytest.mark.services
def test_the_other_routes_of_replicas(replicated: Server) -> None:
    client = replicated.client
    replicated.create("routes", classes=CLASSES[:4])
    image = base64.b64encode(pictures()[0]).decode()
    body = {"inputs": image, "parameters": {"candidate_labels": CLASSES[:4]}}
    assert client.post("/", json=body, headers={"X-Stream": "routes"}).status_code == 200
    with client.stream("GET", "/v1/streams/routes/events", timeout=30) as events:
        lines = events.iter_lines()
        assert next(lines) == ": listening"
        told = replicated.send("routes", pictures()[1], top=4)
        data = next(line for line in lines if line.startswith("data:"))
    assert told["label"] in data and told["seq"] == 2
    tensor = {"name": "image", "shape": [1], "datatype": "BYTES", "data": [image]}
    asked = {"inputs": [tensor], "parameters": {"sequence_id": "routes"}}
    assert client.post("/v2/models/tiny/infer", json=asked).json()["outputs"][4]["data"] == [3]
    for url, status, kind in (
        ("/v1/streams/nobody", 404, "unknown_stream"),
        ("/v1/events", 422, "invalid_request"),
        ("/nothing", 404, "not_found"),
    ):
        answer = client.get(url)
        assert (answer.status_code, answer.json()["error"]["type"]) == (status, kind), answer.text
    assert client.get("/readyz").json() == {"status": "ready"}
    large = client.post("/v1/streams/routes/images", content=b"x" * (2**20 + 1))
    assert large.status_code == 413 and large.json()["error"]["type"] == "too_large"
    assert httpx.get(f"{replicated.address}/healthz", headers={"Host": "evil.example"}).status_code == 403
    assert figures(replicated, "lessmore_errors_total")["front"] >= 1


def test_replicas_need_what_they_share() -> None:
    url = "file:///somewhere"
    for settings in (ServerSettings(ray=2), ServerSettings(ray=2, store=url), ServerSettings(ray=1, durability="none")):
        with pytest.raises(ConfigError, match="replicas"):
            check_shared(settings)
    check_shared(ServerSettings(ray=2, store=url, db="sqlite:///registry.db"))


@pytest.mark.parametrize(
    ("path", "headers", "body", "stream"),
    [
        ("/v1/streams/door/images", {}, b"", "door"),
        ("/v1/streams", {}, b'{"id": "door"}', ""),
        ("/", {"x-stream": "door"}, b"{}", "door"),
        ("/", {}, b'{"parameters": {"stream": "door"}}', "door"),
        ("/v2/models/tiny/infer", {}, b'{"parameters": {"sequence_id": 7}}', "7"),
        ("/v2/models/tiny/infer", {"inference-header-content-length": "36"},
         b'{"parameters": {"sequence_id": "a"}}' + b"\xff", "a"),
        ("/", {}, b"[" * 100_000, ""),
        ("/", {}, b'{"parameters": null}', ""),
        ("/", {}, b"\xff", ""),
    ],
)  # fmt: skip
def test_the_stream_of_a_request(path: str, headers: dict[str, str], body: bytes, stream: str) -> None:
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    assert stream_of({"type": "http", "path": path, "headers": pairs}, body) == stream
