"""The other end of a `Decoder`: a process that decodes what it is sent, and holds itself to limits.

Each request is a line of JSON with name, size and time, then the encoded bytes. Each reply is a line of JSON, then the
pixels.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import IO

from PIL import Image

from lessmore.data.images import decode_image
from lessmore.errors import ImageError, ImageSizeError

STRIP = 256
"""Rows sent at a time."""


def serve_images(memory: int) -> None:
    """Decode images from standard input until it ends.

    Args:
        memory: Bytes that decoding may take beyond what the process holds now.
    """
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # nobody else may write into the replies
    Image.init()
    _limit(memory)
    _say(replies, {"ready": True})
    while line := requests.readline():
        asked = json.loads(line)
        try:
            data = requests.read(asked["bytes"])
            _allow(asked["seconds"])
            image = decode_image(data, asked["name"])
            _allow(0)
            _say(replies, {"size": image.size})
            _send(image, replies)
        except ImageError as error:
            _allow(0)
            _say(replies, {"error": str(error), "large": isinstance(error, ImageSizeError)})
        except MemoryError:
            os._exit(1)  # what is left of the memory may be too little for another image


def _allow(seconds: float) -> None:
    """Let the system end this process after so much of a core's time; 0 lifts the limit."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _say(replies: IO[bytes], told: dict[str, object]) -> None:
    replies.write(json.dumps(told).encode() + b"\n")
    replies.flush()


def _send(image: Image.Image, replies: IO[bytes]) -> None:
    """In strips, for a copy of the whole picture would double the memory."""
    for top in range(0, image.height, STRIP):
        box = (0, top, image.width, min(top + STRIP, image.height))
        replies.write(image.crop(box).tobytes())
    replies.flush()


def _limit(memory: int) -> None:
    """Limits that the system keeps: memory, and no file and no core dump written."""
    if sys.platform == "win32":
        return
    import resource

    limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: 0}
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
        limits[resource.RLIMIT_AS] = pages * resource.getpagesize() + memory
    for kind, limit in limits.items():
        hard = resource.getrlimit(kind)[1]
        lower = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (lower, lower))
