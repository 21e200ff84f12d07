"""Requests that nobody would send: from the OpenAPI document, and good bodies with bytes changed. Never a 500."""

from __future__ import annotations

import base64
import json
import os
import random
import struct
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings

from tests.serve.server import Server, pictures, running

schemathesis = pytest.importorskip("schemathesis")
SOAK = bool(os.environ.get("LESSMORE_SOAK"))
MUTATIONS, EXAMPLES = (5_000, 200) if SOAK else (300, 4)
JSON = {"Content-Type": "application/json"}
HUB = {"inputs": base64.b64encode(pictures()[0]).decode(), "parameters": {"candidate_labels": ["red star", "blue key"]}}
STREAM = {"id": "fuzzed", "name": "a name", "classes": ["red star", "blue key"], "templates": ["a {}."], "R": 0.9}
TENSOR = {"name": "image", "shape": [1], "datatype": "BYTES"}
INFER = {
    "parameters": {"sequence_id": "fuzz", "timeout": 10**6},
    "inputs": [{**TENSOR, "data": [base64.b64encode(pictures()[0]).decode()]}],
}
BINARY = {**TENSOR, "parameters": {"binary_data_size": 4 + len(pictures()[0])}}
BINARY_HEAD = json.dumps({"inputs": [BINARY], "parameters": {"binary_data_output": True}}).encode()
FORM = (
    b'--x\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\nContent-Type: image/png\r\n\r\n'
    + pictures()[0]
    + b"\r\n--x--\r\n"
)
DISLIKED = [b"\0", b"\xff\xff\xff\xff", b"\\ud800", b"[" * 5000, b"1e999", b"NaN", b'"', b"9" * 5000]
BODIES: dict[str, tuple[str, str, dict[str, str], bytes]] = {
    "image": ("POST", "/v1/streams/fuzz/images", {"Content-Type": "image/png"}, pictures()[0]),
    "form": ("POST", "/v1/streams/fuzz/images", {"Content-Type": "multipart/form-data; boundary=x"}, FORM),
    "stream": ("POST", "/v1/streams", JSON, json.dumps(STREAM).encode()),
    "fork": ("POST", "/v1/streams/fuzz/fork", JSON, b'{"id": "fuzz-fork", "name": "n"}'),
    "infer": ("POST", "/v2/models/tiny/infer", JSON, json.dumps(INFER).encode()),
    "binary infer": (
        "POST",
        "/v2/models/tiny/infer",
        {"Inference-Header-Content-Length": str(len(BINARY_HEAD))},
        BINARY_HEAD + struct.pack("<I", len(pictures()[0])) + pictures()[0],
    ),
    "hub": ("POST", "/", JSON, json.dumps(HUB).encode()),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with running(tmp_path_factory.mktemp("fuzz") / "store", "--max-body-mb", "2", "--max-classes", "50") as started:
        started.create("fuzz")
        yield started


def test_http_fuzz_by_the_document(server: Server) -> None:
    schema = schemathesis.openapi.from_url(f"{server.address}/openapi.json").exclude(path_regex="/events$")
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) >= 14
    for operation in operations:

        @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(operation.as_strategy())
        def ask(case: Any) -> None:
            response = case.call()
            assert response.status_code < 500 or response.status_code in (503, 504), response.text
            if response.status_code >= 400:
                check_error(response.json()["error"], case.path)

        ask()


def check_error(error: Any, path: str) -> None:
    """A typed body; the open inference protocol has a text instead."""
    assert isinstance(error, str) if path.startswith("/v2") else set(error) == {"type", "message", "remedy"}


def mutated(data: bytes, dice: random.Random) -> bytes:
    """The bytes with some of them flipped, cut, doubled or replaced by what parsers dislike."""
    out = bytearray(data)
    for _ in range(dice.choice([1, 1, 2, 8])):
        at = dice.randrange(len(out) + 1)
        how = dice.randrange(6)
        if how == 0 and out:
            out[min(at, len(out) - 1)] ^= 1 << dice.randrange(8)
        elif how == 1:
            del out[at : at + dice.choice([1, 4, 64])]
        elif how == 2:
            out[at:at] = out[at : at + dice.choice([1, 16, 256])]
        elif how == 3:
            out[at:at] = dice.choice(
                [b"\0", b"\xff\xff\xff\xff", b"\\ud800", b"[" * 5000, b"1e999", b"NaN", b'"', b"9" * 5000]
            )
        elif how == 4:
            del out[at:]
        else:
            out[at : at + 4] = dice.randbytes(4)
    return bytes(out)


def test_http_fuzz_by_mutation(server: Server) -> None:
    dice, codes = random.Random(1), set()
    for _ in range(MUTATIONS):
        method, path, headers, body = BODIES[dice.choice(list(BODIES))]
        try:
            answer = server.client.request(method, path, headers=headers, content=mutated(body, dice))
        except httpx.TransportError as error:
            raise AssertionError(f"the connection broke: {error}") from error
        assert answer.status_code < 500, answer.text
        codes.add(answer.status_code)
        if answer.status_code >= 400:
            check_error(answer.json()["error"], path)
    assert {200, 422} <= codes
    assert server.client.get("/readyz").status_code == 200
    errors = {line for line in server.log.read_text().splitlines() if '"traceback"' in line}
    assert not errors, errors


def test_a_broken_image_leaves_the_stream_as_it_was(server: Server, tmp_path: Path) -> None:
    server.create("calm")
    server.send("calm", pictures()[0])
    tensors, facts = server.state("calm")
    dice, refused = random.Random(2), 0
    for _ in range(30):
        data = pictures()[1][: dice.randrange(len(pictures()[1]) - 200)]
        answer = server.client.post("/v1/streams/calm/images", content=data, headers={"Content-Type": "image/png"})
        assert answer.status_code == 422
        refused += 1
    after, told = server.state("calm")
    assert after == tensors
    assert told["facts"]["health"] == {**facts["facts"]["health"], "refused": refused}
