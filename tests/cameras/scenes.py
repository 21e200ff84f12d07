"""Videos and pictures of the embedded world, as cameras would give them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import av
from PIL import Image

import lessmore
from lessmore import Adapter, adapt
from lessmore.assets import world
from lessmore.lab.report.tokens import as_picture

CLASSES = world.test_classes(8)
NAMES = world.world_class_names(CLASSES)
FLAGS = ["--model", "tiny", "--classes", ",".join(NAMES)]
TIMES = ("time", "ms")
"""Fields of rows that no two runs share."""


@cache
def pictures(count: int = 12, seed: int = 7) -> tuple[Image.Image, ...]:
    """Images of the embedded world."""
    drawn, _ = world.draw_scene(world.world_sample(count, seed, CLASSES))
    return tuple(as_picture(one) for one in drawn)


@cache
def tiny() -> Any:
    return lessmore.load("tiny")


def fresh(**options: Any) -> Adapter:
    """A stream that has seen nothing."""
    return adapt(tiny(), NAMES, cache=False, **options)


def write_video(
    path: Path,
    images: Iterable[Image.Image],
    *,
    rate: int = 10,
    repeat: int = 1,
    codec: str = "libx264",
    size: tuple[int, int] = (96, 96),
    gop: int = 12,
    form: str | None = None,
) -> Path:
    """A video that shows every image for so many frames."""
    with av.open(str(path), "w", format=form) as container:
        stream: Any = container.add_stream(codec, rate=rate)
        stream.width, stream.height = size
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        stream.codec_context.gop_size = gop
        if codec == "libx264":
            stream.options = {"crf": "12", "preset": "veryfast"}
        for image in images:
            frame = av.VideoFrame.from_image(image.resize(size))
            for _ in range(repeat):
                container.mux(stream.encode(frame))
                frame = av.VideoFrame.from_image(image.resize(size))
        container.mux(stream.encode(None))
    return path


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def of_source(rows: Sequence[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """The rows of one source without what no two runs share."""
    return [{k: v for k, v in row.items() if k not in TIMES} for row in rows if row["source"] == name]
