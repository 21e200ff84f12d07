"""What the README and the guide show, against a server that was started with nothing else."""

from __future__ import annotations

import io
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.serve.server import CLASSES, Server, expected, fresh_adapter, pictures, renewed, saved_state, scores_of

ROOT = Path(__file__).parents[2]


def test_the_curl_lines_of_the_readme(shared_server: Server) -> None:
    lines = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("curl ")]
    assert len(lines) == 3
    told = []
    for line in lines:
        words = shlex.split(line.partition("  #")[0].replace("http://127.0.0.1:8080", shared_server.address))
        told.append(subprocess.run([*words, "-sS", "--fail-with-body"], cwd=ROOT, capture_output=True, text=True))
    assert [one.returncode for one in told] == [0, 0, 0], told
    assert '"label":' in told[1].stdout and '"health":' in told[2].stdout


def test_five_lines_of_httpx(shared_server: Server, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "serve.md").read_text()
    script = next(code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "httpx" in code)
    (tmp_path / "photo.png").write_bytes(pictures()[0])
    script = script.replace("http://127.0.0.1:8080", shared_server.address)
    told = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert told.returncode == 0 and told.stdout.strip().split()[0] in {name.split()[0] for name in CLASSES}, told


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The package as it is; only the tests' ban on networks is lifted, for loopback."""
    found = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(import_module("huggingface_hub.constants"), "HF_HUB_OFFLINE", False)
    return found


@pytest.mark.parametrize("path", ["", "/zero-shot-image-classification"])
def test_the_client_of_hugging_face_unchanged(shared_server: Server, path: str, tmp_path: Path, hub: Any) -> None:
    (tmp_path / "photo.png").write_bytes(pictures()[1])
    client = hub.InferenceClient(base_url=shared_server.address + path)
    labels = CLASSES[:6]
    told = client.zero_shot_image_classification(tmp_path / "photo.png", candidate_labels=labels)
    own = fresh_adapter(classes=labels, method="zeroshot")(pictures()[1]).zero_shot_scores.tolist()
    assert {one.label: one.score for one in told} == pytest.approx(dict(zip(labels, own, strict=True)), abs=1e-6)
    assert [one.score for one in told] == sorted((one.score for one in told), reverse=True)


def test_that_client_with_a_stream_adapts(shared_server: Server, hub: Any) -> None:
    shared_server.create("hub", classes=CLASSES[:6])
    client = hub.InferenceClient(base_url=shared_server.address, headers={"X-Stream": "hub"})
    adapter = fresh_adapter(classes=CLASSES[:6])
    for image in pictures()[:4]:
        told = client.zero_shot_image_classification(image, candidate_labels=CLASSES[:6])
        assert {one.label: one.score for one in told} == dict(
            zip(CLASSES[:6], adapter(image).scores.tolist(), strict=True)
        )
    assert shared_server.client.get("/v1/streams/hub").json()["seq"] == 4


def test_several_images_in_one_request(shared_server: Server) -> None:
    shared_server.create("parts")
    files = [("image", ("a.png", image, "image/png")) for image in pictures()[:5]]
    answers = shared_server.client.post("/v1/streams/parts/images", files=files).json()["answers"]
    adapter = fresh_adapter()
    assert [one["seq"] for one in answers] == [1, 2, 3, 4, 5]
    assert [(one["label"], one["score"]) for one in answers] == [
        (p.label, float(p.scores[p.index])) for p in map(adapter, pictures()[:5])
    ]


def test_a_repeated_key_gets_the_first_answer(shared_server: Server) -> None:
    shared_server.create("again")
    first = shared_server.send("again", pictures()[0], key="a")
    shared_server.send("again", pictures()[1], key="b")
    repeated = shared_server.send("again", pictures()[0], key="a")
    assert {**first, "ms": 0} == {**repeated, "ms": 0}
    assert shared_server.client.get("/v1/streams/again").json()["health"]["seen"] == 2


def test_reset_fork_state_and_delete(shared_server: Server, tmp_path: Path) -> None:
    client, adapter = shared_server.client, fresh_adapter()
    shared_server.create("base")
    for image in pictures()[:4]:
        shared_server.send("base", image)
        adapter(image)
    assert client.post("/v1/streams/base/fork", json={"id": "branch", "name": "a branch"}).status_code == 201
    adapter.save(tmp_path / "base.safetensors")
    shared_server.create("other")
    put = client.put("/v1/streams/other/state", content=(tmp_path / "base.safetensors").read_bytes())
    assert put.status_code == 204, put.text
    assert client.post("/v1/streams/base/reset").status_code == 204
    assert client.get("/v1/streams/base").json()["health"]["seen"] == 0
    own = adapter(pictures()[4])
    for stream in ("branch", "other"):
        told = shared_server.send(stream, pictures()[4])
        assert (told["label"], told["score"]) == (own.label, float(own.scores[own.index]))
    assert client.delete("/v1/streams/branch").status_code == 204
    assert client.get("/v1/streams/branch").status_code == 404
    listed = client.get("/v1/streams", params={"limit": 1000}).json()["streams"]
    assert {"base", "other"} <= {one["id"] for one in listed} and "branch" not in {one["id"] for one in listed}


def test_classes_that_change(shared_server: Server, tmp_path: Path) -> None:
    client, adapter = shared_server.client, fresh_adapter(classes=CLASSES[:6])
    shared_server.create("changing", classes=CLASSES[:6])
    for image in pictures()[:4]:
        shared_server.send("changing", image, top=6)
        adapter(image)
    change = {"rename": {CLASSES[0]: "a red thing"}, "remove": [CLASSES[1]], "add": CLASSES[6:9]}
    assert client.patch("/v1/streams/changing", json=change).status_code == 204
    adapter.rename(CLASSES[0], "a red thing")
    adapter.remove_classes([CLASSES[1]])
    adapter.add_classes(CLASSES[6:9])
    adapter = renewed(adapter, tmp_path)
    for image in pictures()[4:7]:
        assert scores_of(shared_server.send("changing", image)) == expected(adapter, image)
    assert shared_server.state("changing") == saved_state(adapter, tmp_path)
    for wrong in (
        {"add": [CLASSES[6]]},
        {"remove": ["nothing"]},
        {"rename": {"nothing": "x"}},
        {"remove": adapter.classes},
    ):
        answer = client.patch("/v1/streams/changing", json={"add": ["first", "second"], **wrong})
        assert (answer.status_code, answer.json()["error"]["type"]) == (422, "invalid_settings"), answer.text
    assert client.get("/v1/streams/changing").json()["config"]["classes"] == adapter.classes
    assert scores_of(shared_server.send("changing", pictures()[7])) == expected(adapter, pictures()[7])


def test_pages_of_the_list(shared_server: Server) -> None:
    for i in range(3):
        shared_server.create(f"page-{i}")
    seen, after = [], ""
    while after is not None:
        page = shared_server.client.get("/v1/streams", params={"limit": 2, "after": after}).json()
        seen += [one["id"] for one in page["streams"]]
        after = page["next"]
    assert {"page-0", "page-1", "page-2"} <= set(seen) and seen == sorted(set(seen))


def test_events_of_a_stream(shared_server: Server) -> None:
    shared_server.create("watched")
    with shared_server.client.stream("GET", "/v1/streams/watched/events", timeout=30) as events:
        lines = events.iter_lines()
        assert next(lines) == ": listening"
        told = shared_server.send("watched", pictures()[0])
        kinds = []
        for line in lines:
            kinds.append(line)
            if line.startswith("data:"):
                break
    assert "event: answer" in kinds and told["label"] in kinds[-1]


def test_the_page_at_the_root_names_no_stream(shared_server: Server) -> None:
    shared_server.create("secret", name="<script>alert(1)</script>")
    page = shared_server.client.get("/").text
    assert "tiny" in page and "alert" not in page and "secret" not in page


def test_ready_and_alive(shared_server: Server) -> None:
    assert shared_server.client.get("/healthz").json() == {"status": "ok"}
    assert shared_server.client.get("/readyz").json() == {"status": "ready"}


def test_image_formats(shared_server: Server) -> None:
    shared_server.create("formats", method="zeroshot")
    image = Image.open(io.BytesIO(pictures()[0]))
    for kind in ("JPEG", "WEBP", "GIF", "BMP", "TIFF"):
        file = io.BytesIO()
        image.save(file, kind)
        assert shared_server.send("formats", file.getvalue())["label"] in CLASSES
