"""Decoding: every usual image becomes RGB, every unusable one an ImageError with a remedy."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFile

from lessmore.data.images import MAX_PIXELS, load_image
from lessmore.errors import ImageError

RNG = np.random.default_rng(0)
COLOUR = RNG.integers(0, 256, (5, 7, 3), dtype=np.uint8)


def _encode(image: Image.Image, form: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("form", ["PNG", "BMP", "TIFF", "PPM", "WEBP"])
def test_lossless_formats_keep_every_pixel(form: str, tmp_path: Path) -> None:
    options = {"lossless": True} if form == "WEBP" else {}
    data = _encode(Image.fromarray(COLOUR), form, **options)
    path = tmp_path / "image"
    path.write_bytes(data)
    for source in (data, bytearray(data), path, str(path), Image.open(io.BytesIO(data)), COLOUR):
        image = load_image(source)
        assert image.mode == "RGB"
        assert np.array_equal(np.asarray(image), COLOUR)


@pytest.mark.parametrize(
    "mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "I", "F", "I;16"]
)
def test_every_mode_becomes_rgb(mode: str) -> None:
    grey = Image.fromarray(np.full((3, 4), 200, np.uint8))
    if mode == "I;16":
        image = Image.fromarray(np.full((3, 4), 200 * 257, np.uint16))
    else:
        image = grey.convert("P").convert("PA") if mode == "PA" else grey.convert(mode)
    assert image.mode == mode
    pixels = np.asarray(load_image(image))
    assert pixels.shape == (3, 4, 3)
    expected = 255 if mode == "1" else 200
    assert np.abs(pixels.astype(int) - expected).max() <= (255 if mode == "1" else 2)


def test_sixteen_bits_are_scaled_not_clipped() -> None:
    deep = np.array([[0, 257, 32768, 65535]], np.uint16)
    expected = [0, 1, 128, 255]
    for source in (deep, _encode(Image.fromarray(deep), "PNG"), _encode(Image.fromarray(deep), "TIFF")):
        assert np.asarray(load_image(source))[0, :, 0].tolist() == expected


def test_transparency_is_dropped() -> None:
    clear = Image.new("RGBA", (2, 2), (10, 20, 30, 0))
    assert load_image(clear).getpixel((0, 0)) == (10, 20, 30)
    palette = Image.new("P", (2, 2), 1)
    palette.putpalette([0, 0, 0, 9, 8, 7])
    assert load_image(_encode(palette, "GIF", transparency=1)).getpixel((0, 0)) == (9, 8, 7)


def test_exif_rotation_is_applied() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = _encode(Image.fromarray(COLOUR), "PNG", exif=exif.tobytes())
    assert np.array_equal(np.asarray(load_image(data)), np.rot90(COLOUR, -1))


def test_broken_exif_is_ignored() -> None:
    data = _encode(Image.fromarray(COLOUR), "PNG", exif=b"Exif\x00\x00MM\x00*\xff\xff\xff\xff")
    assert np.array_equal(np.asarray(load_image(data)), COLOUR)


@pytest.mark.parametrize("form", ["GIF", "WEBP", "TIFF", "PNG"])
def test_first_frame_of_an_animation(form: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    options = {"lossless": True} if form == "WEBP" else {}
    data = _encode(frames[0], form, save_all=True, append_images=frames[1:], **options)
    assert load_image(data).getpixel((0, 0)) == (255, 0, 0)


@pytest.mark.parametrize(
    "source", [np.zeros((1, 1), np.uint8), Image.new("L", (1, 1)), np.zeros((1, 1, 4), np.float32)]
)
def test_one_pixel_is_enough(source: Any) -> None:
    assert load_image(source).size == (1, 1)


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (COLOUR, COLOUR),
        (COLOUR[..., :1], COLOUR[..., [0, 0, 0]]),
        (COLOUR[..., 0], COLOUR[..., [0, 0, 0]]),
        (COLOUR[..., [0, 1, 2, 0]], COLOUR),
        (COLOUR / np.float32(255), COLOUR),
        (COLOUR.astype(np.uint16) * 257, COLOUR),
        (COLOUR[:, ::-1], COLOUR[:, ::-1]),
    ],
)
def test_arrays(array: Any, expected: Any) -> None:
    assert np.array_equal(np.asarray(load_image(array)), expected)


def test_the_array_is_not_shared() -> None:
    array = COLOUR.copy()
    image = load_image(array)
    array[:] = 0
    assert np.array_equal(np.asarray(image), COLOUR)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((3, 8, 9), np.uint8), "channels last"),
        (np.zeros((4, 4, 2), np.uint8), "channels last"),
        (np.zeros(4, np.uint8), "channels last"),
        (np.zeros((0, 4), np.uint8), "no pixels"),
        (np.zeros((4, 4), np.int64), "convert it to uint8"),
        (np.full((2, 2), 1.5), "rescale"),
        (np.full((2, 2), np.nan), "rescale"),
        (np.broadcast_to(np.uint8(0), (10_000, 10_000)), "50 million"),
    ],
)
def test_bad_arrays(array: Any, message: str) -> None:
    with pytest.raises(ImageError, match=message):
        load_image(array)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "PPM"])
def test_damaged_files(form: str) -> None:
    noise = Image.fromarray(RNG.integers(0, 256, (64, 64, 3), dtype=np.uint8))
    data = _encode(noise, form)
    for cut in (0, 3, len(data) // 2):
        with pytest.raises(ImageError):
            load_image(data[:cut])


def test_unusable_sources(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("hello")
    cases = {
        str(tmp_path / "none.png"): "no file",
        str(tmp_path): "is a folder",
        str(tmp_path / "text.png"): "not a readable image",
        "https://example.org/cat.png": "download",
        "/dev/zero": "pipe, socket or device",
        "nul\0byte": "cannot be opened",
    }
    for source, message in cases.items():
        with pytest.raises(ImageError, match=message):
            load_image(source)
    with pytest.raises(ImageError, match="give a path"):
        load_image(3)  # type: ignore[arg-type]


def test_other_formats_are_not_decoded() -> None:
    for form in ("ICO", "EPS", "PDF", "TGA"):
        with pytest.raises(ImageError, match="not a readable image"):
            load_image(_encode(Image.new("RGB", (16, 16)), form))


@pytest.mark.parametrize("side", [7_100, 12_000, 30_000])
def test_size_is_checked_before_decoding(side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert side * side > MAX_PIXELS
    data = bytearray(_encode(Image.new("L", (1, 1)), "PPM").replace(b"1 1", f"{side} {side}".encode()))

    def never(self: ImageFile.ImageFile) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(ImageFile.ImageFile, "load", never)
    with pytest.raises(ImageError, match="50 million"):
        load_image(data)


def test_pillows_settings_stay() -> None:
    before = Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES
    load_image(_encode(Image.fromarray(COLOUR), "PNG"))
    assert before == (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES)
