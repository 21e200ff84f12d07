"""What watching costs on this machine: latency of a 30 fps camera, a camera's share of a core, cameras without drops.

    python -m benchmarks.cameras --page docs/cameras.md          # at most 11 minutes, on an idle machine
    python -m benchmarks.cameras --table                         # the table of the last run
    python -m benchmarks.cameras --quick --output /dev/shm/cameras.json

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
from typing import Any, NamedTuple

import av
import numpy as np
import torch
from PIL import Image

from benchmarks.results_page import between
from lessmore.adapter import Adapter, adapt
from lessmore.cameras.reader import ReadingOptions
from lessmore.cameras.selection import SelectionRules
from lessmore.cameras.source import read_sources
from lessmore.cameras.video import DecodingOptions
from lessmore.cameras.watch import Watch, WatchOptions
from lessmore.engines.cores import limit_threads, usable_cores
from lessmore.errors import ConfigError

CLASSES = [f"{colour} {thing}" for colour in ("red", "blue") for thing in ("circle", "square", "star", "gear", "key")]
PYTHON = "/usr/bin/python3"
ENGINES = ["eager", "cpu", "openvino", "openvino bfloat16", "cpu bfloat16", "openvino int8"]
MOST, STEPS = 64, 4
"""Cameras tried at most, and numbers of cameras tried."""
LOADING = 45.0
"""Seconds that must be left to begin with an engine; int8 takes most of them to be calibrated."""
LATEST = 20.0
"""Seconds in which every source must have had its first answer."""
LATE = {"refused": "no time was left"}
BEGIN, END = "<!-- numbers: benchmarks/cameras.py -->", "<!-- end of the numbers -->"
HEAD = (
    "| model and engine | file, p50 / p99 | answers a second | RTSP, p50 / p99 | answers a second | cameras of 1 fps |",
    "|---|---|---|---|---|---|",
)
EXPLAINED = """\
Milliseconds from the decoded frame to its answer, of one 1080p camera of 30 frames a second, always the newest
frame. Frames without an answer were dropped because a newer one came. The last column is the most cameras of one frame
of 640 × 360 a second that were answered without a drop in {seconds:.0f} seconds."""
MACHINE = """\
{cores} cores, {threads} threads, torch {torch}, load {load_before} before. {model} has random weights.
Preset `camera`. The RTSP server shares the cores."""
Figures = dict[str, Any]
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


@cache
def random_weights(name: str) -> Any:
    """A model of open_clip in this shape."""
    import open_clip

    torch.manual_seed(0)
    return open_clip.create_model(name).eval()


def model(name: str, **options: Any) -> Adapter:
    """A stream of `tiny`, or of a shape of open_clip with random weights, under preset `camera`."""
    options["preset"] = "camera"
    if name == "tiny":
        return adapt("tiny", CLASSES, cache=False, **options)
    import open_clip

    host = random_weights(name)
    return adapt(host, CLASSES, tokenizer=open_clip.get_tokenizer(name), cache=False, **options)


class TooSlow(Exception):
    """Not every source had an answer in time."""


class Clock:
    """What is left of the time that a run may take."""

    def __init__(self, seconds: float) -> None:
        self._began, self._seconds = time.monotonic(), seconds

    @property
    def took(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self._seconds - self.took


class Places(NamedTuple):
    """Where the frames come from."""

    large: Path
    """A 1080p video of 30 frames a second."""
    small: Path
    """A video of one small frame a second."""
    rtsp: str | None
    """A 1080p camera of 30 frames a second."""


def watched(adapter: Adapter, words: list[str], seconds: float, reading: ReadingOptions) -> tuple[Watch, float, float]:
    """A watch of so many seconds after every source was live, its wall time and its processor time."""
    watch = Watch(adapter, read_sources(words), WatchOptions(reading), [])
    began: list[tuple[float, float]] = []
    end = time.monotonic() + seconds + LATEST

    def stopped() -> bool:
        if not began and all(stream.kept.answers for stream in watch.streams):
            began.append((time.monotonic(), time.process_time()))
            for stream in watch.streams:
                stream.latencies.clear()
                stream.reader.selection.dropped.clear()
        return time.monotonic() > (began[0][0] + seconds if began else end)

    watch.run(stopped)
    if not began:
        raise TooSlow
    start, cpu = began[0]
    return watch, time.monotonic() - start, time.process_time() - cpu


def percentile(ordered: list[float], percent: int) -> float:
    """The nearest-rank percentile of values in order; the largest where there are few."""
    return ordered[-(-percent * len(ordered) // 100) - 1]


def latency(adapter: Adapter, word: str, seconds: float) -> Figures:
    """From a decoded frame to its answer, of the newest frames of one camera."""
    watch, wall, cpu = watched(adapter, [word], seconds, ReadingOptions(frames="newest"))
    (stream,) = watch.streams
    times = sorted(stream.latencies)
    if not times:
        raise TooSlow
    return {
        "answers a second": round(len(times) / wall, 1),
        "p50 ms": round(percentile(times, 50), 1),
        "p99 ms": round(percentile(times, 99), 1),
        "dropped a second": {why: round(n / wall, 1) for why, n in stream.reader.selection.dropped.items()},
        "processor": round(cpu / wall, 2),
    }


def idle_share(adapter: Adapter, word: str, seconds: float, keyframes: bool) -> float:
    """Processor seconds for each second of a camera whose frames are decoded and not answered."""
    reading = ReadingOptions(SelectionRules(every=1e6), DecodingOptions(keyframes), frames="newest")
    watch, wall, cpu = watched(adapter, [word], seconds, reading)
    frames = watch.streams[0].reader.selection.dropped["every"]
    # By the video's clock, not the wall's: on a busy machine the watch may fall behind.
    return round(cpu / (wall if keyframes else max(1, frames) / 30), 3)


def drops(adapter: Adapter, clip: Path, count: int, seconds: float) -> int:
    """Frames left out by so many cameras of one frame a second."""
    for i in range(count):
        if not (copy := clip.with_name(f"cam{i}.mp4")).exists():
            os.link(clip, copy)
    words = [f"cam{i}={clip.with_name(f'cam{i}.mp4')}" for i in range(count)]
    watch, _, _ = watched(adapter, words, seconds, ReadingOptions(frames="newest"))
    return sum(stream.reader.selection.dropped["newer"] for stream in watch.streams)


def carried(adapter: Adapter, clip: Path, seconds: float, first: float, clock: Clock) -> Figures:
    """How many cameras of one frame a second are answered without a drop; a few steps around a first guess."""
    tried: dict[int, int] = {}
    count = max(1, min(MOST, round(first)))
    while len(tried) < STEPS and count not in tried and clock.left > seconds:
        try:
            tried[count] = drops(adapter, clip, count, seconds)
        except TooSlow:
            tried[count] = count
        good = [n for n, lost in tried.items() if not lost]
        bad = [n for n, lost in tried.items() if lost]
        low, high = max(good, default=0), min(bad, default=MOST + 1)
        if not bad:
            count = min(MOST, max(low + 1, round(1.3 * low)))
        else:
            count = max(1, (low + high) // 2)
    return {"without drops": max((n for n, lost in tried.items() if not lost), default=0), "drops by cameras": tried}


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


def measure_one(name: str, engine: str, places: Places, seconds: float, clock: Clock) -> Figures:
    """All figures of a model in one engine; what there is no time for is left out."""
    kind, _, precision = engine.partition(" ")
    more: dict[str, Any] = {"engine": kind, "precision": precision or None}
    if precision == "int8":
        more["calibrate"] = [Image.fromarray(scene(8 * i, 640, 360)) for i in range(16)]
    try:
        adapter = model(name, **more)
    except ConfigError as error:
        return {"refused": str(error)}
    found: Figures = {}
    for what, word in (("file", str(places.large)), ("RTSP", places.rtsp)):
        if word is None or clock.left < seconds:
            continue
        try:
            found[what] = latency(adapter, word, seconds)
        except TooSlow:
            found[what] = {"answers a second": 0.0}
    if clock.left > seconds:
        first = found.get("file", {}).get("answers a second", 1.0)
        found["cameras of 1 fps"] = carried(adapter, places.small, seconds, first, clock)
    return found or LATE


def measured(args: argparse.Namespace, clock: Clock) -> Figures:
    """Everything, as far as there is time."""
    load, rows, idle = round(os.getloadavg()[0], 1), {}, {}
    with tempfile.TemporaryDirectory() as name:
        folder, seconds = Path(name), args.seconds
        large = draw(folder / "large.mp4", 1920, 1080, 30, int(seconds + LATEST))
        small = draw(folder / "small.mp4", 640, 360, 1, int(seconds + LATEST + 10))
        with rtsp_camera(folder) as address:
            places = Places(large, small, address)
            plain = model("tiny")
            for source, word in (("file, H.264", str(large)), ("RTSP, JPEG", address)):
                for what, keyframes in (("every frame", False), ("key frames alone", True)):
                    if word is not None and not (keyframes and word == address):  # every JPEG is a key frame
                        idle[f"{source}, {what}"] = idle_share(plain, word, seconds, keyframes)
            for one in [f"tiny {engine}" for engine in args.engines[:2]] + [f"{args.model} {e}" for e in args.engines]:
                which, _, engine = one.partition(" ")
                rows[one] = measure_one(which, engine, places, seconds, clock) if clock.left > LOADING else LATE
                print(f"{one}: {json.dumps(rows[one])}", flush=True)
    return {
        "idle": idle, "rows": rows, "seconds": args.seconds, "model": args.model,
        "machine": {
            "cores": usable_cores(), "threads": torch.get_num_threads(), "torch": torch.__version__,
            "load before": load, "load after": round(os.getloadavg()[0], 1), "took": round(clock.took),
        },
    }  # fmt: skip


def table(results: Figures) -> str:
    """The figures as Markdown."""
    machine, (columns, rule) = results["machine"], HEAD
    lines = [columns, rule]
    for name, row in results["rows"].items():
        if "refused" in row:
            lines.append(f"| {name} | not measured: {row['refused'].replace('|', '/')} | | | | |")
            continue
        cells = [cell for what in ("file", "RTSP") for cell in _latency_cells(row.get(what))]
        lines.append(f"| {name} | {' | '.join(cells)} | {row.get('cameras of 1 fps', {}).get('without drops', '–')} |")
    lines += [
        "",
        EXPLAINED.format(**results),
        "",
        "| a 1080p camera that is decoded and not answered | share of a core |",
    ]
    lines += ["|---|---|", *(f"| {what} | {share} |" for what, share in results["idle"].items()), ""]
    lines.append(MACHINE.format(**results, **{name.replace(" ", "_"): value for name, value in machine.items()}))
    return "\n".join(lines) + "\n"


def _latency_cells(found: Figures | None) -> tuple[str, str]:
    if found is None or "p50 ms" not in found:
        return "–", "–" if found is None else "0"
    return f"{found['p50 ms']} / {found['p99 ms']}", str(found["answers a second"])


def main() -> None:
    """Measure everything, write it down, and show it as a table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--output", type=Path, default=Path("benchmarks/results/cameras.json"))
    options.add_argument("--seconds", type=float, default=7, help="length of each measurement")
    options.add_argument("--minutes", type=float, default=10, help="what has not begun by then is left out")
    options.add_argument("--model", default="ViT-B-16", help="shape of open_clip, with random weights")
    options.add_argument("--engines", nargs="+", default=ENGINES)
    options.add_argument("--quick", action="store_true", help="a smoke test: tiny in two engines, two seconds each")
    options.add_argument("--table", action="store_true", help="print the table; measure nothing")
    options.add_argument("--page", type=Path, help="put the table into this page, between its marks")
    args = options.parse_args()
    if args.quick:
        args.seconds, args.engines, args.model = 2.0, ENGINES[:1], "tiny"
    if not args.table:
        limit_threads()
        results = measured(args, Clock(60 * args.minutes))
        args.output.write_text(json.dumps(results, indent=1) + "\n")
    text = table(json.loads(args.output.read_text()))
    print(text)
    if args.page is not None:
        args.page.write_text(between(args.page.read_text(encoding="utf-8"), BEGIN, END, text), encoding="utf-8")


if __name__ == "__main__":
    main()
