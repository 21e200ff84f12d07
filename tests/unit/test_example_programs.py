"""The programs in examples/, run as a user would run them, on the embedded model and drawn pictures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lessmore.assets import shifts, world
from lessmore.lab.report.tokens import as_picture
from tests.architecture.test_shape import ROOT

IMAGES = 6


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of four classes, a folder each."""
    folder = tmp_path_factory.mktemp("photos")
    classes = world.test_classes(4, seed=1)
    scene = world.world_sample(IMAGES, 5, classes)
    images, _ = shifts.draw_shifted(scene, "clean", 0)
    for i, (image, label) in enumerate(zip(images, scene.index.tolist(), strict=True)):
        path = folder / world.class_name(*classes[label]) / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        as_picture(image).save(path)
    return folder


def run(name: str, *args: str | Path, folder: Path) -> str:
    """What an example prints."""
    command = [sys.executable, str(ROOT / "examples" / name), *map(str, args)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=True).stdout


def names(photos: Path) -> list[str]:
    return sorted(path.name for path in photos.iterdir())


def test_folder_goes_on(photos: Path, tmp_path: Path) -> None:
    first, second = (run("folder.py", photos, "--classes", *names(photos), folder=tmp_path) for _ in range(2))
    assert len(first.splitlines()) == IMAGES + 1 and f"{IMAGES} images so far" in first
    assert f"{2 * IMAGES} images so far" in second


def test_table(photos: Path, tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    printed = run("table.py", photos, folder=tmp_path)
    assert all(name in printed for name in names(photos)) and "zero-shot" in printed and "adapted" in printed


def test_webcam(photos: Path, tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    from PIL import Image

    video = tmp_path / "clip.mp4"
    with av.open(str(video), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width = stream.height = 64
        for path in sorted(photos.glob("*/*.png")):
            picture = Image.open(path).convert("RGB").resize((64, 64))
            for _ in range(10):
                container.mux(stream.encode(av.VideoFrame.from_image(picture)))
        container.mux(stream.encode())
    printed = run("webcam.py", "--source", video, "--classes", *names(photos), folder=tmp_path)
    lines = printed.splitlines()
    assert 1 <= len(lines) <= IMAGES and all(" s  " in line for line in lines)


def test_fastapi_app(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fastapi")
    from fastapi.testclient import TestClient

    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.setenv("LESSMORE_CLASSES", ",".join(names(photos)))
    import fastapi_app

    client, image = TestClient(fastapi_app.app), next(photos.glob("*/*.png")).read_bytes()
    answer = client.post("/streams/door", files={"image": image})
    assert answer.status_code == 200 and answer.json()["label"] in names(photos)
    assert client.post("/streams/door", files={"image": b"no picture"}).status_code == 422
