"""The live page in a browser beside a real server: it follows events, survives a restart, and hurts nobody."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")

from lessmore.assets import camera, world
from lessmore.serve.auth import make_key
from tests.serve.server import Server, fresh_adapter, pictures, running
from tests.web.chromium import CHROMIUM, Page
from tests.web.live import AXE, EVIL, LONG, NO_AXE, faults, overflow, says, show

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if CHROMIUM is None:
        pytest.skip("no browser")
    folder = tmp_path_factory.mktemp("live")
    with running(folder / "store", "--max-batch", "1", "--thumbnails", "true", "--durability", "none") as one:
        yield one


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with Page(tmp_path_factory.mktemp("browser")) as one:
        yield one


@pytest.fixture(autouse=True)
def quiet(page: Page) -> Iterator[None]:
    """Nothing may be said on the console, and nothing may come from elsewhere."""
    page.complaints.clear()
    page.requests.clear()
    yield
    assert page.complaints == []
    assert [one for one in page.requests if not re.match(r"http://127\.0\.0\.1:\d+/|about:|blob:|data:", one)] == []


def test_without_streams_it_says_how_to_begin(page: Page, server: Server) -> None:
    show(page, server, width=360)
    says(page, "#empty:not([hidden])", "No streams yet")
    assert f"{server.address}/v1/streams/door/images" in page.text("#commands")
    assert overflow(page) <= 0


def test_answers_arrive_by_events(page: Page, server: Server) -> None:
    show(page, server)
    server.create("events", name="Front door")
    first = server.send("events", pictures()[0])
    says(page, "#streams", "Front door")
    says(page, "#streams", first["label"])
    second = server.send("events", pictures()[3])
    assert second["label"] != first["label"]
    says(page, "#streams .card", "#2")
    says(page, "#streams .card", second["label"])
    page.wait("document.querySelector('.card img').naturalWidth > 0")


def test_pause_and_compare(page: Page, server: Server) -> None:
    server.create("paused", name="To be paused")
    server.send("paused", pictures()[0])
    show(page, server)
    says(page, "#streams", "To be paused")
    page.click("#compare")
    assert page.do("getComputedStyle(document.querySelector('.line.plain')).display") == "none"
    page.click("#compare")
    page.click("#pause")
    assert page.do("document.getElementById('pause').getAttribute('aria-pressed')") == "true"
    server.send("paused", pictures()[1])
    assert "#2" not in page.text("#streams li:last-child")
    page.click("#pause")
    says(page, "#streams li:last-child", "#2")


def test_a_stream_in_detail_by_keyboard_alone(page: Page, server: Server) -> None:
    server.create("keys", name="By keyboard")
    answers = [server.send("keys", image) for image in pictures(6)]
    show(page, server)
    says(page, "#streams", "By keyboard")
    page.do("[...document.querySelectorAll('.card button')].find((b) => b.textContent === 'By keyboard').focus()")
    page.press("Enter")
    page.wait("document.activeElement.id === 'stage-name'")
    says(page, "#verdict", answers[-1]["label"])
    says(page, "#picture-text", "image 6")
    page.wait("document.querySelectorAll('#why img').length > 0")
    page.do("document.getElementById('tokens').focus()")
    before = page.do("document.getElementById('picture').toDataURL()")
    page.press(" ")
    says(page, "#picture-text", "patches are left after block")
    assert page.do("document.getElementById('picture').toDataURL()") != before
    page.do("document.getElementById('stage-close').focus()")
    page.press("Enter")
    page.wait("document.getElementById('stage').hidden")
    assert page.do("document.activeElement.textContent") == "By keyboard"


def test_hostile_and_long_names_are_texts(page: Page, server: Server) -> None:
    server.create("evil", name=EVIL, classes=[EVIL, LONG, "cat"])
    server.create("long", name=LONG, classes=[LONG, EVIL])
    for stream in ("evil", "long"):
        for image in pictures(3):
            server.client.post(f"/v1/streams/{stream}/images", content=image, headers={"Content-Type": "image/png"})
    show(page, server, width=360)
    says(page, "#streams", EVIL)
    page.do("[...document.querySelectorAll('.card button')].find((b) => b.textContent.startsWith('<img')).click()")
    says(page, "#scores", EVIL)
    says(page, "#why", EVIL)
    assert page.do("document.title") == "lessmore · live"
    assert page.do("document.querySelectorAll('main script, img[src=x]').length") == 0
    assert overflow(page) <= 0


def test_a_camera_of_the_server_says_how_it_is(page: Page, tmp_path: Path) -> None:
    pytest.importorskip("av", reason="needs the extra camera")
    cameras = json.dumps({"cameras": [{"source": "rtsp://me:secret@127.0.0.1:9/live", "stream": "gate"}]})
    (tmp_path / "serve.yaml").write_text(cameras, encoding="utf-8")
    with running(tmp_path / "store", "--config", str(tmp_path / "serve.yaml")) as one:
        show(page, one)
        says(page, "#streams .card", "camera lost")
        says(page, "#streams .card", "rtsp://127.0.0.1:9/live: Connection refused")
        page.do("document.querySelector('.card button').click()")
        says(page, "#stage-facts", "camera rtsp://127.0.0.1:9/live lost")
        assert "secret" not in page.do("document.documentElement.outerHTML")
        page.ask("Page.navigate", url="about:blank")
        page.wait("location.href === 'about:blank'")


def test_a_dropped_image_teaches_a_stream(page: Page, server: Server, tmp_path: Path) -> None:
    server.create("drop", name="For dropping")
    file = tmp_path / "photo.png"
    file.write_bytes(pictures()[2])
    show(page, server)
    says(page, "#streams", "For dropping")
    page.do("[...document.querySelectorAll('.card button')].find((b) => b.textContent === 'For dropping').click()")
    page.wait("!document.getElementById('stage').hidden")
    root = page.ask("DOM.getDocument")["root"]["nodeId"]
    node = page.ask("DOM.querySelector", nodeId=root, selector="#file")["nodeId"]
    page.ask("DOM.setFileInputFiles", nodeId=node, files=[str(file)])
    says(page, "#status", "1 image was answered")
    says(page, "#picture-text", "image 1")
    assert server.client.get("/v1/streams/drop").json()["last"]["label"] in page.text("#verdict")


def test_the_browsers_own_camera(server: Server, tmp_path: Path) -> None:
    server.create("webcam", name="For a camera")
    with Page(tmp_path, "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream") as other:
        show(other, server)
        says(other, "#streams", "For a camera")
        other.do("[...document.querySelectorAll('.card button')].find((b) => b.textContent === 'For a camera').click()")
        other.click("#camera")
        other.wait("parseInt(document.getElementById('stage-facts').textContent) >= 2")
        other.click("#camera")
        says(other, "#camera", "Use this device's camera")
        assert other.complaints == []
    assert server.client.get("/v1/streams/webcam").json()["seq"] >= 2


def test_the_rendered_camera_counts_what_an_adapter_counts(page: Page, server: Server) -> None:
    show(page, server, part="#try")
    says(page, "#trial-score", "%")
    page.do("document.getElementById('trial-speed').value = '1000'")
    page.wait("parseInt(document.getElementById('stage-facts').textContent) >= 40")
    facts, adapted, plain = page.do(  # all of it is drawn together
        "[document.getElementById('stage-facts'), ...[...document.querySelectorAll('#trial-score dd')].slice(2)]"
        ".map((e) => parseFloat(e.textContent))"
    )
    page.do("document.getElementById('trial-kind').value = 'spot'")
    page.do("document.getElementById('trial-kind').dispatchEvent(new Event('change'))")
    says(page, "#stage-name", "over a spot")
    says(page, "#trial-score", "%")
    page.click("#trial-stop")
    page.wait("document.getElementById('stage').hidden")
    end = time.monotonic() + 60
    while "Rendered camera" in server.client.get("/v1/streams").text:
        assert time.monotonic() < end, "a stopped camera leaves nothing"
        time.sleep(0.05)
    count = int(facts)
    frames = server.client.get("/v1/camera", params={"count": 60}).json()["frames"][:count]
    setting = server.client.get("/v1/camera", params={"count": 1}).json()["stream"]
    assert setting == {
        "classes": world.world_class_names(camera.camera_classes("belt")),
        **camera.CAMERAS["belt"].setting,
    }
    adapter = fresh_adapter(**setting)
    answers = [adapter(base64.b64decode(frame["image"])) for frame in frames]
    labels = [frame["label"] for frame in frames]
    firsts = [adapter.classes[int(one.zero_shot_scores.argmax())] for one in answers]
    assert len(labels) == count
    assert adapted == pytest.approx(
        100 * np.mean([a.label == b for a, b in zip(answers, labels, strict=True)]), abs=0.1
    )
    assert plain == pytest.approx(100 * np.mean([a == b for a, b in zip(firsts, labels, strict=True)]), abs=0.1)


@pytest.mark.skipif(not AXE.is_file(), reason=NO_AXE)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing(page: Page, server: Server, dark: bool) -> None:
    server.create(f"axe-{dark}".lower(), name="Checked")
    for image in pictures(3):
        server.send(f"axe-{dark}".lower(), image)
    show(page, server, dark=dark)
    says(page, "#streams", "Checked")
    assert faults(page) == []
    page.do("[...document.querySelectorAll('.card button')].find((b) => b.textContent === 'Checked').click()")
    says(page, "#picture-text", "image 3")
    page.click("#tokens")
    page.do("new Promise((done) => setTimeout(done, 400))")  # until bars stand still
    assert faults(page) == []
    page.click("#try")
    says(page, "#trial-score", "%")
    page.click("#pause")
    assert faults(page) == []
    page.click("#trial-stop")


def test_it_asks_for_a_key_and_goes_on_after_a_restart_of_the_server(page: Page, tmp_path: Path) -> None:
    key, entry = make_key("page")
    (tmp_path / "keys.yaml").write_text(f"keys:\n{entry}", encoding="utf-8")
    flags = ("--max-batch", "1", "--api-keys", str(tmp_path / "keys.yaml"))
    with running(tmp_path / "store", *flags) as one:
        one.client.headers["Authorization"] = f"Bearer {key}"
        one.create("stays", name="It stays")
        one.send("stays", pictures()[0])
        page.ask("Page.navigate", url="about:blank")
        page.visit(f"{one.address}/")
        page.wait("document.activeElement.id === 'key-text'")
        page.type(key)
        page.press("Enter")
        says(page, "#streams", "It stays")
        says(page, "#streams", "#1")
        page.do("window.mark = 'not reloaded'")
        one.stop()
        page.wait("document.getElementById('connection').textContent === 'reconnecting'")
    with running(tmp_path / "store", *flags, "--port", one.address.rpartition(":")[2]) as two:
        page.wait("document.getElementById('connection').textContent === 'connected'")
        two.client.headers["Authorization"] = f"Bearer {key}"
        assert two.send("stays", pictures()[1])["seq"] == 2
        says(page, "#streams", "#2")
        assert page.do("window.mark") == "not reloaded"
        page.ask("Page.navigate", url="about:blank")
        page.wait("location.href === 'about:blank'")
    assert not [address for address in page.requests if key in address]
    # What the browser itself says of a server that is away is no fault of the page.
    away = ("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE", "ERR_CONNECTION_RESET", "status of 503")
    page.complaints[:] = [line for line in page.complaints if not any(word in line for word in away)]
