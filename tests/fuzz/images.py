"""Images: damaged files of every format, the attacks in mutation, and whatever else is handed over as an image."""

from __future__ import annotations

import io
import os
import random
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import lessmore
from lessmore.data.formats import FORMATS
from lessmore.data.images import load_image
from tests.data import attack_images
from tests.fuzz.mutate import damaged
from tests.fuzz.outcomes import Outcome, Trial

MODES = "1 L LA La P PA RGBA RGBa RGBX CMYK YCbCr LAB HSV I F I;16"
KINDS = "u1 i1 u2 i4 i8 f2 f4 f8 c8 ? O U1 M8[s] >u2 >f4 V3"
SHAPES: tuple[tuple[int, ...], ...] = (
    *((), (0,), (5,), (4, 4), (0, 4, 3), (4, 4, 1), (4, 4, 3), (4, 4, 4), (4, 4, 2), (3, 64, 64), (1, 3, 64, 64)),
    *((2, 3, 64, 64), (3, 0, 4), (1, 1, 1, 1, 1), (70_000, 1_000)),
)
TYPES = (
    *(torch.uint8, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.bool, torch.complex64, torch.float64),
)


def originals() -> list[bytes]:
    """A picture in every format and mode that Pillow writes, and attacks that are small."""
    ramp = np.add.outer(np.arange(40), np.arange(56))[..., None] * [1, 2, 1] % 256
    whole = Image.fromarray(ramp.astype(np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    modes = [whole, *(whole.convert(mode) for mode in ("L", "P", "RGBA", "CMYK", "1"))]
    modes += [Image.fromarray((ramp[..., 0] * 257).astype(np.uint16)), Image.fromarray(ramp[..., 0].astype(np.float32))]
    options: list[dict[str, Any]] = [{}, {"progressive": True, "exif": exif.tobytes()}, {"lossless": True}]
    options.append({"compression": "tiff_lzw"})
    found: list[bytes] = []
    for form in FORMATS:
        for image in modes:
            for more in options:
                buffer = io.BytesIO()
                try:
                    image.save(buffer, form, **more)
                except Exception:
                    continue
                if buffer.getvalue() not in found:
                    found.append(buffer.getvalue())
    small = (attack_images.webp_canvas, attack_images.png_of_shared_tags, attack_images.grey_of_twelve_bits)
    return found + [make() for make in small]


def image_files(folder: Path, crafted: bool) -> Trial:
    """A picture is damaged and read; headers alone where `crafted`. Accepted means an RGB image of a sane size."""
    good = originals()
    assert len(good) > 30

    def trial(dice: random.Random) -> tuple[Callable[[], bool | Outcome], str]:
        data = dice.choice(good)
        if crafted:
            data = _header(data, dice)
        else:
            data = damaged(data, dice)

        def use() -> bool:
            image = load_image(data)
            return image.mode == "RGB" and len(image.tobytes()) == 3 * image.width * image.height

        return use, repr(data[:60])

    return trial


def _header(data: bytes, dice: random.Random) -> bytes:
    """Numbers near the start that are suddenly large, in either order of bytes."""
    changed = bytearray(data)
    size = dice.choice([2, 4])
    place = dice.randrange(min(len(data) - size, 200))
    value = dice.choice([0, 1, 2**15, 2**16 - 1, 2**31 - 1, 2**32 - 1, dice.randrange(2**16)]) % 256**size
    changed[place : place + size] = value.to_bytes(size, dice.choice(["little", "big"]))
    return bytes(changed)


def special_inputs(folder: Path, crafted: bool) -> Trial:
    """Everything that is no ordinary image: through an adapter, which must stay usable."""
    adapter = lessmore.adapt("tiny", ["red plain star", "blue plain ring"], cache=folder / "cache")
    os.mkfifo(folder / "pipe")
    (folder / "folder.png").mkdir()
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "dangling").symlink_to(folder / "nothing")
    (folder / "empty.png").write_bytes(b"")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "socket"))
    here = ("pipe", "folder.png", "loop", "dangling", "empty.png", "socket", "nothing")
    names: list[Any] = [folder / name for name in here]
    names += ["", ".", "/", "/dev/zero", "/dev/null", "/dev/tty", "/dev/stdin", "/proc/self/mem", "/proc/self/maps"]
    names += ["x" * 5_000, "a\0b", "\udcff", "http://localhost/x.png", "file:///etc/passwd", "~", "x/" * 3_000, "-"]
    things: list[Any] = [None, 1, 1.5, object(), [], {}, (), set(), b"", bytearray(), memoryview(b"x"), print, Image]
    keep = [listener]

    def trial(dice: random.Random) -> tuple[Callable[[], bool | Outcome], str]:
        assert keep
        thing = _array(dice) if crafted else dice.choice([*names, *things, _lazy(dice)])

        def use() -> bool:
            found = adapter(thing)
            return bool(found.scores.isfinite().all()) and not found.refused

        return use, f"{type(thing).__name__} {getattr(thing, 'shape', thing)!r} {getattr(thing, 'dtype', '')}"[:120]

    return trial


def _lazy(dice: random.Random) -> Image.Image:
    """A Pillow image that is broken, closed, or of an odd mode."""
    buffer = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(buffer, "PNG")
    data = buffer.getvalue()
    opened = Image.open(io.BytesIO(data[: dice.choice([len(data), 60, 90])]))
    closed = Image.open(io.BytesIO(data))
    closed.close()
    modes = [Image.new(mode, (5, 5)) for mode in MODES.split()]
    return dice.choice([opened, closed, Image.new("RGB", (0, 5)), Image.new("RGB", (1, 1)), *modes])


def _array(dice: random.Random) -> Any:
    """Arrays and tensors of odd types, shapes and values."""
    shape = dice.choice(SHAPES)
    if dice.random() < 0.5:
        array = np.zeros(shape, dice.choice(KINDS.split()))
        if array.dtype.kind == "f" and array.size:
            array.flat[0] = dice.choice([np.nan, np.inf, -1, 2, 0.5])
        return array[::-1] if array.ndim and dice.random() < 0.2 else array
    tensor = torch.zeros(shape if shape[:1] != (70_000,) else (3, 4, 4), dtype=dice.choice(TYPES))
    if tensor.is_floating_point() and tensor.numel():
        tensor.view(-1)[0] = dice.choice([float("nan"), float("inf"), 1e30, 0.5])
    return dice.choice([tensor, tensor, tensor.to("meta"), tensor.to_sparse() if tensor.ndim else tensor])
