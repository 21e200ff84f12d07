"""What watching costs on this machine: latency of a 30 fps camera, a camera's share of a core, cameras without drops.

    python benchmarks/cameras.py --output benchmarks/results/cameras.json

Videos are 1080p (latency, share) and 640 × 360 (many cameras), drawn here, encoded as H.264 and played at their own
pace, as a camera would. The RTSP camera is GStreamer in the system's Python (see `make test-services`), sends JPEG in
1080p and shares the cores. ViT-B-16 has random weights, which changes no time. The load says how busy the machine was.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from PIL import Image

from lessmore.adapter import Adapter, adapt
from lessmore.cameras.reader import ReadingOptions
from lessmore.cameras.selection import SelectionRules
from lessmore.cameras.source import read_sources
from lessmore.cameras.video import DecodingOptions
from lessmore.cameras.watch import Watch, WatchOptions
from lessmore.engines.cores import limit_threads, usable_cores

CLASSES = [f"{colour} {thing}" for colour in ("red", "blue") for thing in ("circle", "square", "star", "gear", "key")]
PYTHON = "/usr/bin/python3"
SERVER = Path(__file__).parents[1] / "tests" / "cameras" / "rtsp_server.py"


@cache
def wall(width: int, height: int) -> np.ndarray:
    """A textured wall."""
    y, x = np.mgrid[:height, :width]
    tiles = ((x // 16 + y // 16) % 2 * 40 + 80 + (x * 60 // width))[..., None] + np.array([0, 10, 25])
    return tiles.astype(np.uint8)


def scene(i: int, width: int, height: int) -> np.ndarray:
    """A frame: the wall, and something that moves across it."""
    frame = wall(width, height).copy()
    left = i * width // 120 % width
    frame[height // 3 : height // 2, left : left + width // 10] = (220, 40, 30)
    return frame


def draw(path: Path, width: int, height: int, rate: int, seconds: int) -> Path:
    """A video of it; a key frame every second."""
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=rate, options={"preset": "veryfast", "bf": "0"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.codec_context.gop_size = rate
        for i in range(rate * seconds):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(scene(i, width, height), format="rgb24")))
        container.mux(stream.encode(None))
    return path


def model(name: str, **options: Any) -> Adapter:
    """A stream of `tiny`, or of a shape of open_clip with random weights."""
    if name == "tiny":
        return adapt("tiny", CLASSES, cache=False, **options)
    import open_clip

    torch.manual_seed(0)
    host = open_clip.create_model(name).eval()
    return adapt(host, CLASSES, tokenizer=open_clip.get_tokenizer(name), cache=False, **options)


def watched(adapter: Adapter, words: list[str], seconds: float, reading: ReadingOptions) -> tuple[Watch, float, float]:
    """A watch of so many seconds after every source was live, its wall time and its processor time."""
    watch = Watch(adapter, read_sources(words), WatchOptions(reading), [])
    began: list[tuple[float, float]] = []

    def stopped() -> bool:
        if not began and all(stream.kept.answers for stream in watch.streams):
            began.append((time.monotonic(), time.process_time()))
            for stream in watch.streams:
                stream.latencies.clear()
                stream.reader.selection.dropped.clear()
        return bool(began) and time.monotonic() - began[0][0] > seconds

    watch.run(stopped)
    start, cpu = began[0]
    return watch, time.monotonic() - start, time.process_time() - cpu


def latency(adapter: Adapter, word: str, seconds: float) -> dict[str, Any]:
    """From a decoded frame to its answer, of the newest frames of one camera."""
    watch, wall, cpu = watched(adapter, [word], seconds, ReadingOptions(frames="newest"))
    (stream,) = watch.streams
    times = sorted(stream.latencies)
    return {
        "answers": len(times),
        "answers a second": round(len(times) / wall, 1),
        "p50 ms": round(times[len(times) // 2], 1),
        "p99 ms": round(times[int(0.99 * (len(times) - 1))], 1),
        "dropped": dict(stream.reader.selection.dropped),
        "processor": round(cpu / wall, 2),
    }


def idle_share(adapter: Adapter, word: str, seconds: float, keyframes: bool) -> float:
    """Processor seconds for each second of a camera whose frames are decoded and not answered."""
    reading = ReadingOptions(SelectionRules(every=1e6), DecodingOptions(keyframes), frames="newest")
    watch, _, cpu = watched(adapter, [word], seconds, reading)
    frames = watch.streams[0].reader.selection.dropped["every"]
    # By the video's clock, not the wall's: on a busy machine the watch may fall behind.
    return round(cpu / (frames if keyframes else frames / 30), 4)


def carried(adapter: Adapter, clip: Path, seconds: float, most: int) -> dict[str, Any]:
    """How many cameras of one frame a second are answered without a drop: doubled until one drops."""
    tried: dict[int, int] = {}
    count = 1
    while count <= most:
        words = [f"cam{i}={clip.with_name(f'cam{i}.mp4')}" for i in range(count)]
        for i in range(count):
            copy = clip.with_name(f"cam{i}.mp4")
            if not copy.exists():
                os.link(clip, copy)
        watch, _, _ = watched(adapter, words, seconds, ReadingOptions(frames="newest"))
        tried[count] = sum(stream.reader.selection.dropped["newer"] for stream in watch.streams)
        if tried[count]:
            break
        count *= 2
    return {"without drops": max((n for n, drops in tried.items() if not drops), default=0), "drops by cameras": tried}


@contextmanager
def rtsp_camera(folder: Path) -> Iterator[str | None]:
    """The address of a 1080p camera of 30 frames a second; None where GStreamer is not installed."""
    check = "import gi; gi.require_version('GstRtspServer', '1.0'); from gi.repository import GstRtspServer"
    if not Path(PYTHON).exists() or subprocess.run([PYTHON, "-c", check], capture_output=True).returncode:
        yield None
        return
    for i in range(30):
        Image.fromarray(scene(4 * i, 1920, 1080)).save(folder / f"{i:03}.jpg", quality=85)
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    command = [PYTHON, str(SERVER), str(port), f"{folder}/%03d.jpg", "30", "30", "jpeg"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    try:
        yield f"rtsp://127.0.0.1:{port}/live"
    finally:
        server.kill()
        server.wait()


def main() -> None:
    """Measure everything and write it down."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--output", type=Path, required=True)
    options.add_argument("--seconds", type=float, default=10, help="length of each measurement")
    options.add_argument("--models", nargs="+", default=["tiny", "ViT-B-16"])
    options.add_argument("--most", type=int, default=64, help="cameras to try at most")
    args = options.parse_args()
    limit_threads()
    load = round(os.getloadavg()[0], 1)
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        length = int(4 * args.seconds) + 20
        large = draw(folder / "large.mp4", 1920, 1080, 30, int(2 * args.seconds) + 8)
        small = draw(folder / "small.mp4", 640, 360, 1, length)
        results["processor seconds a second, idle 1080p camera"] = {
            what: idle_share(model("tiny"), str(large), args.seconds, keyframes)
            for what, keyframes in (("every frame decoded", False), ("key frames alone", True))
        }
        print(results, flush=True)
        for one in args.models:
            adapter = model(one)
            results[f"{one}, file"] = latency(adapter, str(large), args.seconds)
            with rtsp_camera(folder) as address:
                results[f"{one}, RTSP"] = address and latency(adapter, address, args.seconds)
            results[f"{one}, cameras of 1 fps"] = carried(adapter, small, args.seconds, args.most)
            print(json.dumps(results, indent=1), flush=True)
    results["machine"] = {
        "cores": usable_cores(), "threads": torch.get_num_threads(), "torch": torch.__version__,
        "load before": load, "load after": round(os.getloadavg()[0], 1),
    }  # fmt: skip
    args.output.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
