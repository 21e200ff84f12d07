"""Groups, tracks, pictures of tokens and changes of domain over HTTP, beside an Adapter on the same images."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps

from tests.serve.server import (
    CLASSES,
    Server,
    expected,
    fresh_adapter,
    pictures,
    png_of,
    renewed,
    running,
    saved_state,
    scores_of,
)

GROUPS = {"left": CLASSES[:4], "right": CLASSES[4:9], "alone": CLASSES[9:10]}


def images_url(stream: str) -> str:
    return f"/v1/streams/{stream}/images"


def test_groups_that_grow_and_come_back_after_a_kill(tmp_path: Path) -> None:
    """Classes added to a group later stand at the end of the list, and stay there over a restart."""
    adapter = fresh_adapter(classes=GROUPS)
    with running(tmp_path / "store", "--max-batch", "1") as server:
        server.create("grouped", classes=GROUPS)
        for image in pictures()[:4]:
            told, own = server.send("grouped", image), adapter(image)
            assert (told["label"], told["group"]) == (own.label, own.group)
            assert {one["label"]: one["score"] for one in told["groups"]} == own.group_scores
        more = {"left": CLASSES[20:22], "new": CLASSES[22:23]}
        assert server.client.patch("/v1/streams/grouped", json={"add": more}).status_code == 204
        listed = server.client.get("/v1/streams/grouped").json()["config"]["classes"]
        assert listed == [[group, names] for group, names in GROUPS.items()] + [list(pair) for pair in more.items()]
        refused = server.client.patch("/v1/streams/grouped", json={"add": CLASSES[30:31]})
        assert (refused.status_code, refused.json()["error"]["type"]) == (422, "invalid_settings")
        server.send("grouped", pictures()[4])
        server.kill()
    adapter.add_classes(more)
    adapter = renewed(adapter, tmp_path)
    adapter(pictures()[4])
    with running(tmp_path / "store", "--max-batch", "1") as server:
        told, own = server.send("grouped", pictures()[5]), adapter(pictures()[5])
        assert {one["label"]: one["score"] for one in told["groups"]} == own.group_scores
        assert list(own.group_scores) == ["left", "right", "alone", "new"]
        assert server.state("grouped") == saved_state(adapter, tmp_path)


def test_frames_of_a_track_over_a_kill(tmp_path: Path) -> None:
    """Two objects in turn, images of none between them; a snapshot is taken and the server killed in the middle."""
    adapters = {method: fresh_adapter(method=method) for method in ("tca", "tda")}
    tracks = ["cup", None, "cup", "plate", "cup", "plate", None, "cup", "plate", "fork & knife"]
    sent = list(zip(tracks, pictures(), strict=False))
    for part in (slice(0, 6), slice(6, 10)):
        with running(tmp_path / "store", "--max-batch", "1", "--snapshot-every", "4") as server:
            for method, adapter in adapters.items():
                if part.start == 0:
                    server.create(method, method=method)
                for track, image in sent[part]:
                    params = {"top": len(CLASSES)} | ({"track": track} if track else {})
                    told = server.client.post(images_url(method), params=params, content=image).json()
                    own = adapter(image, track=track)
                    assert (told["label"], told["track"], told["frames"]) == (own.label, track, own.frames)
                    scores = [pair[0] for pair in scores_of(told).values()]
                    assert scores == own.scores.sort(descending=True)[0].tolist()
                assert server.state(method) == saved_state(adapter, tmp_path)
            server.kill()
    assert own.frames == 1 and {adapter.health().frames for adapter in adapters.values()} == {5}


def test_a_picture_of_the_tokens(shared_server: Server, tmp_path: Path) -> None:
    """It is drawn where it is asked for, of every image of a form, and changes nothing."""
    shared_server.create("explained")
    adapter, client = fresh_adapter(), shared_server.client
    files = [("image", ("a.png", image, "image/png")) for image in pictures()[:2]]
    answers = client.post(images_url("explained"), params={"explain": "tokens"}, files=files).json()["answers"]
    for answer, image in zip(answers, pictures(), strict=False):
        head, _, data = answer["tokens"].partition(",")
        picture = Image.open(io.BytesIO(base64.b64decode(data)))
        blocks = adapter(image, trace=True).trace
        assert head == "data:image/png;base64" and picture.format == "PNG"
        assert blocks is not None and picture.width >= 192 * (1 + len(blocks.blocks))
    assert client.get("/v1/streams/explained").json()["last"]["tokens"] is None
    assert "tokens" not in shared_server.send("explained", pictures()[2])
    adapter(pictures()[2])
    assert shared_server.state("explained") == saved_state(adapter, tmp_path)
    wrong = client.post(images_url("explained"), params={"explain": "everything"}, content=pictures()[0])
    assert (wrong.status_code, wrong.json()["error"]["type"]) == (422, "invalid_request")


def negative(image: bytes) -> bytes:
    return png_of(ImageOps.invert(Image.open(io.BytesIO(image)).convert("RGB")))


def test_a_change_of_domain_is_an_event(shared_server: Server) -> None:
    """A camera whose noise ends and whose picture turns into its negative."""
    night = pictures(100, seed=1, kind="noise", severity=5)
    images = [*night, *map(negative, pictures(100, seed=2, severity=1)[:14])]
    adapter, client = fresh_adapter(), shared_server.client
    shared_server.create("camera")
    told: list[dict[str, Any]] = []
    with client.stream("GET", "/v1/streams/camera/events", timeout=30) as events:
        lines = events.iter_lines()
        assert next(lines) == ": listening"
        changed = []
        for i, image in enumerate(images, start=1):
            before = adapter.health().domain_changes
            own = expected(adapter, image)
            assert scores_of(shared_server.send("camera", image)) == own
            if adapter.health().domain_changes > before:
                changed.append(i)
        assert changed, "the images are not different enough"
        for line in lines:
            if line == "event: domain_change":
                told.append(json.loads(next(lines).removeprefix("data:")))
            if len(told) == len(changed):
                break
    assert [one["seq"] for one in told] == changed and told[-1]["domain_changes"] == len(changed)
