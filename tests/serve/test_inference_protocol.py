"""The open inference protocol: Triton's own client unchanged, and bodies by hand where it sends no such thing."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serve.server import CLASSES, Server, fresh_adapter, pictures

ROOT = Path(__file__).parents[2]
INFER = "/v2/models/tiny/infer"


@pytest.fixture
def triton() -> Any:
    return pytest.importorskip("tritonclient.http", reason="needs the extra services")


@pytest.fixture
def client(triton: Any, shared_server: Server) -> Any:
    made = triton.InferenceServerClient(shared_server.address.removeprefix("http://"))
    yield made
    made.close()


def tensor(triton: Any, images: list[bytes], binary: bool = True) -> Any:
    made = triton.InferInput("image", [len(images)], "BYTES")
    texts = images if binary else [base64.b64encode(image).decode() for image in images]
    made.set_data_from_numpy(np.array(texts, dtype=object), binary_data=binary)
    return made


def test_health_and_metadata(client: Any) -> None:
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("tiny") and client.is_model_ready("tiny", "1")
    assert not client.is_model_ready("other") and not client.is_model_ready("tiny", "2")
    assert client.get_server_metadata()["extensions"] == ["binary_tensor_data", "sequence"]
    told = client.get_model_metadata("tiny")
    assert told["inputs"] == [{"name": "image", "datatype": "BYTES", "shape": [-1]}]


@pytest.mark.parametrize("binary", [True, False])
def test_a_sequence_is_a_stream(triton: Any, client: Any, shared_server: Server, binary: bool) -> None:
    """It starts, goes on with one image and with several, starts again, and ends."""
    sequence, adapter = 71 + binary, fresh_adapter()

    def infer(images: list[bytes], **flags: bool) -> Any:
        wanted = [triton.InferRequestedOutput(name, binary_data=binary) for name in ("label", "scores", "seq")]
        return client.infer("tiny", [tensor(triton, images, binary)], outputs=wanted, sequence_id=sequence, **flags)

    def check(answer: Any, images: list[bytes]) -> None:
        own = [adapter(image) for image in images]
        labels = [text.decode() if isinstance(text, bytes) else text for text in answer.as_numpy("label")]
        assert labels == [one.label for one in own]
        best = np.stack([one.scores.sort(descending=True).values[:5].numpy() for one in own])
        assert np.array_equal(answer.as_numpy("scores"), best)

    check(infer(pictures()[:1], sequence_start=True), pictures()[:1])
    check(infer(pictures()[1:2]), pictures()[1:2])
    check(infer(pictures()[2:6]), pictures()[2:6])
    assert shared_server.client.get(f"/v1/streams/{sequence}").json()["seq"] == 6
    adapter.reset()
    check(infer(pictures()[6:7], sequence_start=True), pictures()[6:7])
    last = infer(pictures()[7:8], sequence_end=True)
    check(last, pictures()[7:8])
    assert last.as_numpy("seq").tolist() == [8]
    assert shared_server.client.get(f"/v1/streams/{sequence}").status_code == 404
    with pytest.raises(triton.InferenceServerException, match="begin it with sequence_start") as error:
        infer(pictures()[:1])
    assert error.value.status() == "404"


def test_without_a_sequence_nothing_adapts(triton: Any, client: Any) -> None:
    answer = client.infer("tiny", [tensor(triton, pictures()[:3])], request_id="r1", parameters={"top": 48})
    own = [fresh_adapter(method="zeroshot")(image).zero_shot_scores for image in pictures()[:3]]
    for names, told, scores in zip(answer.as_numpy("labels"), answer.as_numpy("scores"), own, strict=True):
        row = dict(zip([name.decode() for name in names], told, strict=True))
        assert row == pytest.approx(dict(zip(CLASSES, scores.tolist(), strict=True)), abs=1e-6)
    assert answer.get_response()["id"] == "r1" and not answer.as_numpy("changed").any()
    assert [CLASSES[i] for i in answer.as_numpy("index")] == [text.decode() for text in answer.as_numpy("label")]


def test_the_script_of_the_guide(triton: Any, shared_server: Server, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "serve.md").read_text(encoding="utf-8")
    script = next(code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "triton" in code)
    (tmp_path / "photo.png").write_bytes(pictures()[0])
    script = script.replace("127.0.0.1:8080", shared_server.address.removeprefix("http://"))
    told = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert told.returncode == 0 and " ".join(told.stdout.split()[:-1]) in CLASSES, told


IMAGE = {"name": "image", "shape": [1], "datatype": "BYTES", "data": [base64.b64encode(pictures()[0]).decode()]}
WRONG: dict[str, tuple[int, dict[str, Any]]] = {
    "no input": (422, {"inputs": []}),
    "two inputs": (422, {"inputs": [IMAGE, IMAGE]}),
    "other name": (422, {"inputs": [{**IMAGE, "name": "x"}]}),
    "other type": (422, {"inputs": [{**IMAGE, "datatype": "FP32"}]}),
    "wrong shape": (422, {"inputs": [{**IMAGE, "shape": [2]}]}),
    "negative shape": (422, {"inputs": [{**IMAGE, "shape": [-1, -1]}]}),
    "no base64": (422, {"inputs": [{**IMAGE, "data": ["?"]}]}),
    "number": (422, {"inputs": [{**IMAGE, "data": [1]}]}),
    "no image": (422, {"inputs": [{**IMAGE, "data": ["AAAA"]}]}),
    "size without data": (422, {"inputs": [{**IMAGE, "data": None, "parameters": {"binary_data_size": 3}}]}),
    "unknown output": (422, {"inputs": [IMAGE], "outputs": [{"name": "x"}]}),
    "odd sequence": (422, {"inputs": [IMAGE], "parameters": {"sequence_id": "../x"}}),
    "negative sequence": (422, {"inputs": [IMAGE], "parameters": {"sequence_id": -1}}),
    "unknown sequence": (404, {"inputs": [IMAGE], "parameters": {"sequence_id": 99}}),
    "odd top": (422, {"inputs": [IMAGE], "parameters": {"top": 0}}),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_requests_are_told_in_words(shared_server: Server, case: str) -> None:
    status, body = WRONG[case]
    answer = shared_server.client.post(INFER, json=body)
    assert answer.status_code == status and isinstance(answer.json()["error"], str), answer.text


def test_wrong_models_and_headers(shared_server: Server) -> None:
    client = shared_server.client
    assert client.post("/v2/models/other/infer", json={"inputs": [IMAGE]}).status_code == 404
    assert isinstance(client.get("/v2/nothing").json()["error"], str)
    for header in ("x", "-1", "99999999999999999999999", "²"):
        given = {"Inference-Header-Content-Length": header.encode()}
        assert client.post(INFER, content=json.dumps({"inputs": [IMAGE]}), headers=given).status_code == 422
