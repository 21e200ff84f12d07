"""Every bad input has its status, its type and a remedy. The table is that of docs/serve.md."""

from __future__ import annotations

import asyncio
import base64
import io
import re
import socket
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
from PIL import Image

from lessmore.serve.errors import STATUS, ServeError
from lessmore.serve.guard import AccessLog
from lessmore.serve.metrics import Metrics
from tests.serve.server import CLASSES, Server, fresh_adapter, pictures, running, saved_state

PAGE = Path(__file__).parents[2] / "docs" / "serve.md"
PNG, JSON = {"Content-Type": "image/png"}, {"Content-Type": "application/json"}
LABELS = {"candidate_labels": ["a", "b"]}


def huge_png() -> bytes:
    """A well-formed PNG of 20,000 x 20,000 pixels that is a few hundred bytes long."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 20_000, 20_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def post(path: str, **more: Any) -> Callable[[httpx.Client], httpx.Response]:
    return lambda client: client.post(path, **more)


IMAGES = "/v1/streams/errors/images"
BAD: dict[str, tuple[int, str, Callable[[httpx.Client], httpx.Response]]] = {
    "broken image": (422, "broken_image", post(IMAGES, content=b"no image", headers=PNG)),
    "cut image": (422, "broken_image", post(IMAGES, content=pictures()[0][:-200], headers=PNG)),
    "empty body": (422, "broken_image", post(IMAGES, content=b"", headers=PNG)),
    "too many pixels": (413, "image_too_large", post(IMAGES, content=huge_png(), headers=PNG)),
    "large body": (413, "too_large", post(IMAGES, content=b"x" * (2**20 + 1), headers=PNG)),
    "large body without length": (413, "too_large", post(IMAGES, content=iter([b"x" * 2**16] * 20), headers=PNG)),
    "other type": (415, "unsupported_media_type", post(IMAGES, content=b"{}", headers={"Content-Type": "text/plain"})),
    "form without files": (422, "invalid_request", post(IMAGES, files={"a": (None, "text")})),
    "bad form": (400, "bad_request", post(IMAGES, content=b"x", headers={"Content-Type": "multipart/form-data"})),
    "unknown stream": (404, "unknown_stream", post("/v1/streams/nobody/images", content=b"", headers=PNG)),
    "odd stream": (404, "unknown_stream", post("/v1/streams/%00%ff'--/images", content=b"", headers=PNG)),
    "path as stream": (404, "not_found", post("/v1/streams/..%2f..%2fetc/images", content=b"", headers=PNG)),
    "unknown address": (404, "not_found", post("/v1/nothing")),
    "wrong method": (405, "method_not_allowed", lambda client: client.patch("/healthz")),
    "taken id": (409, "stream_exists", post("/v1/streams", json={"id": "errors"})),
    "odd id": (422, "invalid_request", post("/v1/streams", json={"id": "../x"})),
    "no JSON": (422, "invalid_request", post("/v1/streams", content=b"{", headers=JSON)),
    "unknown field": (422, "invalid_request", post("/v1/streams", json={"klasses": ["a"]})),
    "no classes": (422, "invalid_request", post("/v1/streams", json={"classes": []})),
    "too many classes": (422, "invalid_request", post("/v1/streams", json={"classes": [f"c{i}" for i in range(1001)]})),
    "same class twice": (422, "invalid_settings", post("/v1/streams", json={"classes": ["a", "a"]})),
    "half a letter": (422, "invalid_request", post("/v1/streams", content=rb'{"name": "\ud800"}', headers=JSON)),
    "infinite R": (422, "invalid_request", post("/v1/streams", content=b'{"R": Infinity}', headers=JSON)),
    "unknown preset": (422, "invalid_settings", post("/v1/streams", json={"preset": "fast"})),
    "unknown method": (422, "invalid_settings", post("/v1/streams", json={"method": "magic"})),
    "template without {}": (422, "invalid_settings", post("/v1/streams", json={"templates": ["a photo"]})),
    "odd key": (422, "invalid_request", post(IMAGES, content=pictures()[0], headers={**PNG, "Idempotency-Key": "a b"})),
    "odd timeout": (422, "invalid_request", post(IMAGES, content=pictures()[0], headers={**PNG, "X-Timeout-Ms": "-1"})),
    "odd top": (422, "invalid_request", post(IMAGES + "?top=0", content=pictures()[0], headers=PNG)),
    "no state": (422, "refused_state", lambda client: client.put("/v1/streams/errors/state", content=b"x" * 100)),
    "no base64": (422, "invalid_request", post("/", json={"inputs": "?", "parameters": LABELS})),
    "other labels": (
        422, "invalid_request",
        post("/", json={"inputs": base64.b64encode(pictures()[0]).decode(),
                        "parameters": {"candidate_labels": ["a", "b"], "stream": "errors"}}),
    ),
    "foreign host": (403, "forbidden", lambda client: client.get("/v1/streams", headers={"Host": "evil.example"})),
    "foreign page": (403, "forbidden", post(IMAGES, content=b"", headers={"Origin": "https://evil.example"})),
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    flags = ("--max-body-mb", "1", "--queue", "2", "--queue-total", "3", "--body-timeout", "0.5", "--max-batch", "1")
    with running(tmp_path_factory.mktemp("errors") / "store", *flags) as started:
        started.create("errors")
        yield started


@pytest.mark.parametrize("case", BAD)
def test_bad_input(server: Server, case: str) -> None:
    status, kind, ask = BAD[case]
    answer = ask(server.client)
    assert (answer.status_code, answer.json()["error"]["type"]) == (status, kind), answer.text
    assert answer.json()["error"]["message"] and answer.json()["error"]["remedy"]
    assert re.fullmatch(r"[\w.-]{1,64}", answer.headers["X-Request-Id"])


def test_too_many_wait(server: Server) -> None:
    """Three images at a time for a stream that may have two in its queue: nothing of them is taken."""
    before = server.client.get("/v1/streams/errors").json()["health"]
    files = [("image", ("a.png", image, "image/png")) for image in pictures()[:2]]
    server.create("busy")
    codes: list[int] = []

    def send() -> None:
        answer = server.client.post("/v1/streams/busy/images", files=files)
        codes.append(answer.status_code)
        if answer.status_code == 429:
            assert answer.json()["error"]["type"] == "busy" and 1 <= int(answer.headers["Retry-After"]) <= 60

    threads = [Thread(target=send) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(codes) == {200, 429}
    assert server.client.get("/v1/streams/busy").json()["seq"] == 2 * codes.count(200)
    assert server.client.get("/v1/streams/errors").json()["health"] == before


def test_a_deadline_passes_before_the_image_is_adapted_to(server: Server) -> None:
    server.create("late")
    big = io.BytesIO()
    Image.linear_gradient("L").resize((5000, 5000)).save(big, "PNG")
    answer = server.client.post("/v1/streams/late/images", content=big.getvalue(), headers={**PNG, "X-Timeout-Ms": "1"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (504, "deadline")
    assert server.client.get("/v1/streams/late").json()["health"]["seen"] == 0


def test_a_body_that_stops(server: Server) -> None:
    host, port = server.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as line:
        head = f"POST {IMAGES} HTTP/1.1\r\nHost: {host}\r\nContent-Type: image/png\r\nContent-Length: 99\r\n\r\n"
        line.sendall(head.encode() + b"abc")
        assert line.recv(4096).startswith(b"HTTP/1.1 408")


def test_refused_images_are_counted_and_leave_no_trace(server: Server, tmp_path: Path) -> None:
    server.create("mixed")
    adapter = fresh_adapter()
    for image in [*pictures()[:3], b"broken", pictures()[3]]:
        server.client.post("/v1/streams/mixed/images", content=image, headers=PNG)
        if image != b"broken":
            adapter(image)
        else:
            adapter.answerer.refuse()
    assert server.state("mixed") == saved_state(adapter, tmp_path)


def test_several_images_some_of_them_broken(server: Server) -> None:
    server.create("several")
    files = [("image", ("a.png", image, "image/png")) for image in (pictures()[0], b"broken")]
    answer = server.client.post("/v1/streams/several/images", files=files)
    assert answer.status_code == 207
    first, second = answer.json()["answers"]
    assert first["label"] in CLASSES and second["error"]["type"] == "broken_image"


def test_the_page_lists_every_status() -> None:
    listed = set(re.findall(r"^\| (\d{3}) \| `(\w+)`", PAGE.read_text(), re.MULTILINE))
    known = {(str(one.status), one.type) for one in ServeError.__subclasses__()}
    known |= {(str(status), kind) for status, kind in STATUS.values()}
    ours = {("400", "bad_request"), ("405", "method_not_allowed"), ("500", "internal")}
    assert listed == known | ours


def test_a_fault_of_the_server_has_a_body_too() -> None:
    """The client hears what to report, and nothing of the fault."""

    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("a secret")

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(AccessLog(broken, Metrics()))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get("/v1/streams", headers={"X-Request-Id": "mine"})

    answer = asyncio.run(ask())
    assert (answer.status_code, answer.json()["error"]["type"]) == (500, "internal") and "secret" not in answer.text
    assert answer.headers["X-Request-Id"] == "mine"
