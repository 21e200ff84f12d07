"""Hostile images: refused with a reason, or decoded, in little memory; never a wait, never a traceback."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lessmore.data import image_files
from lessmore.data.images import load_image
from lessmore.errors import ImageError
from tests.data.attack_images import ATTACKS, encoded, grey_of_twelve_bits, tiff_of_floats, webp_with_zeros

REFUSED = {
    "webp_canvas": "would take",
    "png_of_zeros": "would take",
    "png_of_chunks": "chunks",
    "tiff_of_floats": "would take",
    "tiff_of_one_strip": "would take",
    "tiff_of_shared_tags": "tags",
    "jpeg_of_shared_tags": "tags",
    "jpeg_progressive": "would take",
    "jpeg_turned": "would take",
    "jpeg_of_scans": "segments",
    "jpeg_of_segments": "segments",
    "jpeg_of_padding": "padded",
    "gif_of_comments": "metadata",
    "ppm_with_comment": "header",
    "ppm_of_text": "PNG",
    "ppm_of_odd_depth": "PNG",
    "bmp_of_runs": "PNG",
    "runs_at_the_limit": "damaged",
}
MOST = 300
"""MB over what the process had before."""


@pytest.fixture(scope="module")
def measured() -> dict[str, dict[str, Any]]:
    if not Path("/proc/self/status").exists():
        pytest.skip("peak memory is read from /proc")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.data.attack_images"], capture_output=True, text=True, check=True
    )
    return {row["name"]: row for row in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_takes_little_memory_and_ends_in_an_image_or_a_reason(
    name: str, measured: dict[str, dict[str, Any]]
) -> None:
    found = measured[name]
    assert found["mb"] <= MOST
    assert "traceback" not in found["is"]
    if name in REFUSED:
        assert REFUSED[name] in found["is"]
    else:
        assert found["is"].startswith("("), found


def test_a_picture_is_the_same_with_bytes_behind_it() -> None:
    assert load_image(webp_with_zeros()).getpixel((5, 5)) == (255, 0, 0)


def test_too_many_bytes_are_refused_before_decoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_files, "MAX_BYTES", 2**20)
    whole = encoded(Image.new("RGB", (8, 8)), "BMP")
    file = tmp_path / "image.bmp"
    file.write_bytes(whole + bytes(2**20))
    for source in (file, whole + bytes(2**20), bytearray(whole + bytes(2**20))):
        with pytest.raises(ImageError, match="larger than 1 MB"):
            load_image(source)
    file.write_bytes(whole + bytes(2**20 - len(whole)))
    assert load_image(file).size == (8, 8)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "socket"))
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in (tmp_path / "pipe", tmp_path / "socket", Path("/dev/zero"), Path("/dev/tty"), Path("/dev/null")):
        with pytest.raises(ImageError, match="pipe, socket or device|cannot be opened"):
            load_image(name)
    with pytest.raises(ImageError, match="cannot be opened"):
        load_image(tmp_path / "loop")
    listener.close()


def test_endless_files_end(tmp_path: Path) -> None:
    for name in ("/proc/self/mem", "/proc/kmsg", "/proc/self/status"):
        with pytest.raises(ImageError):
            load_image(name)


@pytest.mark.parametrize("name", ["x" * 5_000, "a\0b", "", "\udcff.png", "x/" * 3_000])
def test_names_that_no_file_can_have(name: str) -> None:
    with pytest.raises(ImageError, match="check the path"):
        load_image(name)


def test_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    name = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe.png")
    Path(name).write_bytes(encoded(Image.new("RGB", (3, 3), "blue"), "PNG"))
    assert load_image(name).getpixel((0, 0)) == (0, 0, 255)


@pytest.fixture
def no_superuser() -> Iterator[None]:
    """File permissions count, also where the tests run as root."""
    if not hasattr(os, "seteuid"):
        pytest.skip("this system knows no users to change to")
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    yield
    os.seteuid(before)


def test_files_and_folders_that_may_not_be_read(tmp_path_factory: pytest.TempPathFactory, no_superuser: None) -> None:
    before = os.geteuid()
    place = Path(os.path.realpath(os.environ.get("TMPDIR", "/tmp"))) / f"lessmore-closed-{os.getpid()}"
    place.mkdir()
    try:
        (place / "a.png").write_bytes(encoded(Image.new("RGB", (3, 3)), "PNG"))
        (place / "a.png").chmod(0)
        (place / "inner").mkdir()
        (place / "inner").chmod(0)
        with pytest.raises(ImageError, match="permission"):
            load_image(place / "a.png")
        with pytest.raises(ImageError, match="permission"):
            load_image(place / "inner" / "b.png")
        with pytest.raises(ImageError, match=r"Permission denied|may not be searched"):
            load_image(place / "inner")
    finally:
        assert os.geteuid() == before
        (place / "inner").rmdir()
        (place / "a.png").unlink()
        place.rmdir()


def test_twelve_bits_in_sixteen_are_not_dark() -> None:
    pixels = np.asarray(load_image(grey_of_twelve_bits()))[..., 0]
    assert pixels[0, 0] == 0
    assert pixels[-1, -1] == 255
    assert (np.diff(pixels.reshape(-1).astype(int)) >= 3).all()


@pytest.mark.parametrize("mode", ["F", "I", "I;16", "I;16B"])
@pytest.mark.parametrize("height", [1, 255, 257, 700])
def test_deep_images_are_the_same_in_strips(mode: str, height: int) -> None:
    ramp = np.linspace(0, 1, 3 * height).reshape(height, 3)
    deep = {"F": ramp.astype(np.float32), "I": (ramp * 65535).astype(np.int32)}.get(mode, (ramp * 65535).astype("<u2"))
    image = (
        Image.frombytes("I;16B", (3, height), deep.astype(">u2").tobytes())
        if mode == "I;16B"
        else Image.fromarray(deep)
    )
    assert image.mode == mode
    assert np.abs(np.asarray(load_image(image))[..., 0] / 255 - ramp).max() < 0.005


def test_a_large_image_of_floats_is_refused_by_name() -> None:
    with pytest.raises(ImageError, match="make it smaller"):
        load_image(tiff_of_floats())


def test_ordinary_large_photographs_are_read() -> None:
    photograph = encoded(Image.new("RGB", (8_064, 6_048), "green"), "JPEG")
    assert load_image(photograph).size == (8_064, 6_048)
