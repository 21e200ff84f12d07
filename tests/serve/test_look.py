"""What the live page asks of the server beside the streams' own calls."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lessmore.assets import camera, world
from lessmore.serve import page as package
from lessmore.serve.page.glance import Glance
from tests.serve.server import CLASSES, Server, fresh_adapter, pictures

PAGE = Path(package.__file__).parent


def test_the_page_is_small_strict_and_whole(shared_server: Server) -> None:
    root = shared_server.client.get("/")
    policy = root.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy and "http" not in policy and "frame-ancestors 'none'" in policy
    files = [path for path in PAGE.iterdir() if path.suffix in (".html", ".js", ".css", ".svg")]
    assert sum(path.stat().st_size for path in files) <= 150_000
    for path in files:
        text = path.read_text(encoding="utf-8")
        assert "innerHTML" not in text and "http://" not in text.replace("http://www.w3.org/2000/svg", "")
        if path.suffix != ".html":
            got = shared_server.client.get(f"/page/{path.name}")
            assert (got.status_code, got.text) == (200, text)
            assert got.headers["x-content-type-options"] == "nosniff"
    assert shared_server.client.get("/page/routes.py").status_code == 404
    assert shared_server.client.get("/page/..%2froutes.py").status_code == 404


def test_a_look_shows_the_newest_images_tokens_and_voters(shared_server: Server) -> None:
    shared_server.create("looked")
    adapter = fresh_adapter()
    for image in pictures(12):
        shared_server.send("looked", image)
        prediction = adapter(image, trace=True)
    found = shared_server.client.get("/v1/streams/looked/look").json()
    assert prediction.trace is not None
    assert found["seq"] == 12 and found["square"] == adapter.vlm.preprocess.mode
    assert found["tokens"]["fate"] == prediction.trace.fate[0].tolist()
    assert found["tokens"]["left"] == prediction.trace.left[0].tolist()
    assert found["strength"] == pytest.approx(adapter.health().strength)
    ids = adapter.answerer.method.state()["ids"]
    assert [vote["label"] for vote in found["votes"]] == [label for label, _ in prediction.top(3)]
    for vote in found["votes"]:
        numbers = [i + 1 for i in sorted(ids[CLASSES.index(vote["label"])].tolist()) if i >= 0]
        assert sorted(image["number"] for image in vote["images"]) == numbers
        added = [image["added"] for image in vote["images"]]
        assert added == sorted(added, reverse=True) and all(weight > 0 for weight in added)
    assert any(vote["images"] for vote in found["votes"])


@pytest.mark.parametrize(("preset", "engine"), [("default", "eager"), ("default", "cpu"), ("fixed", "eager")])
def test_what_stored_images_added_is_what_adaptation_added(preset: str, engine: str) -> None:
    adapter = fresh_adapter(preset=preset, engine=engine)
    method = adapter.answerer.method
    for image in pictures(12):
        outcome = method.predict(adapter.pixels(image))
    sums = method.contributions().sum(dim=-1)
    assert sums.max() > 0.01
    torch.testing.assert_close((outcome.evidence + sums).softmax(dim=-1), outcome.scores, rtol=1e-4, atol=1e-6)


def test_pictures_are_kept_only_where_the_operator_says_so(shared_server: Server) -> None:
    shared_server.create("bare")
    shared_server.send("bare", pictures()[0])
    found = shared_server.client.get("/v1/streams/bare/look").json()
    assert found["frame"] is None
    assert all(image["thumbnail"] is None for vote in found["votes"] for image in vote["images"])
    assert shared_server.client.get("/v1/streams/bare/frame").status_code == 204
    assert "data:image" not in shared_server.client.get("/v1/streams/bare/look").text


def test_kept_pictures_are_those_that_were_seen() -> None:
    adapter, glance = fresh_adapter(), Glance(keep=True)
    images = pictures(24)
    for seq, image in enumerate(images, start=1):
        pixels = adapter.pixels(image)
        glance.take(adapter, adapter.answerer.predict(pixels), pixels, seq)
    assert glance.frame is not None
    shown = np.asarray(Image.open(io.BytesIO(glance.frame)), dtype=float)
    sent = np.asarray(Image.open(io.BytesIO(images[-1])), dtype=float)
    assert np.abs(shown - sent).mean() < 8, "a JPEG of the same picture"
    stored = {i for i in adapter.answerer.method.state()["ids"].flatten().tolist() if i >= 0}
    assert set(glance.thumbnails) == stored and stored
    for number, picture in glance.thumbnails.items():
        small = np.asarray(Image.open(io.BytesIO(picture)), dtype=float)
        assert np.abs(small - np.asarray(Image.open(io.BytesIO(images[number])), dtype=float)).mean() < 8
    assert glance.memory == len(glance.frame) + sum(map(len, glance.thumbnails.values()))


def test_the_camera_tells_the_truth_within_its_limits(shared_server: Server) -> None:
    covered = sum(frames for name, frames in camera.TIMELINE[:4])
    found = shared_server.client.get(
        "/v1/camera", params={"kind": "spot", "seed": 7, "start": covered - 2, "count": 4}
    ).json()
    expected = camera.camera_frames("spot", 7, covered - 2, 4)
    names = world.world_class_names(camera.camera_classes("spot"))
    for told, frame in zip(found["frames"], expected, strict=True):
        assert told["label"] == (None if frame.label is None else names[frame.label])
        pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(told["image"]))), dtype=float) / 255
        assert np.abs(pixels - frame.pixels.permute(1, 2, 0).numpy()).max() <= 0.5 / 255 + 1e-6
    assert [told["condition"] for told in found["frames"]] == ["fog", "fog", "covered lens", "covered lens"]
    assert shared_server.client.get("/v1/camera", params={"count": 61}).status_code == 422
    assert shared_server.client.get("/v1/camera", params={"seed": -1}).status_code == 422
