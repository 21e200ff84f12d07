"""What the server costs, on this machine: requests a second, evicted streams, the journal, a restart.

    python benchmarks/serve.py --output benchmarks/results/serve.json

Clients run in a process of their own and share the cores with the server. The bare loop of the other rows is
FastAPI around one Adapter with a lock: no queue, no journal, one stream. All numbers are of one run, one after another.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import torch

from lessmore import adapt
from lessmore.config import preset
from lessmore.core.vit import ViT
from lessmore.engines import build
from lessmore.engines.cores import limit_threads, usable_cores
from lessmore.methods import Replayable, Setup
from lessmore.methods.resolve import resolve
from lessmore.models.shapes import SHAPES
from lessmore.serve.journal import pack_record
from lessmore.serve.metrics import Metrics
from lessmore.serve.registry import StreamRegistry, StreamRow
from lessmore.serve.settings import ServerSettings
from lessmore.serve.store import FolderStore
from lessmore.serve.streams import Look, ServedStreams
from tests.serve.server import CLASSES, pictures, tiny

BARE = """
import asyncio, sys, uvicorn, lessmore
from fastapi import FastAPI, Request
from tests.serve.server import CLASSES
adapter, app, lock = lessmore.adapt("tiny", CLASSES), FastAPI(), asyncio.Lock()

@app.post("/{stream}")
async def classify(stream: str, request: Request) -> dict:
    data = await request.body()
    async with lock:
        answer = await asyncio.to_thread(adapter, data)
    return {"label": answer.label, "score": float(answer.scores[answer.index])}

uvicorn.run(app, port=int(sys.argv[1]), log_level="warning", timeout_keep_alive=120)
"""
PORT = 18_433
CONFIG: dict[str, Any] = {"classes": CLASSES, "templates": "photo", "preset": "default", "R": None, "method": "tca"}
PNG = {"Content-Type": "image/png"}


@contextmanager
def process(*command: str | Path) -> Iterator[str]:
    """A server on `PORT`, once it answers."""
    address = f"http://127.0.0.1:{PORT}"
    started = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            try:
                httpx.get(address)
                break
            except httpx.TransportError:
                time.sleep(0.1)
        yield address
    finally:
        started.terminate()
        started.wait()


@contextmanager
def served(store: Path, *flags: str) -> Iterator[str]:
    """`lessmore serve` without lines for requests."""
    command = (sys.executable, "-m", "lessmore", "serve", "--port", str(PORT), "--store", store, "--log", "quiet")
    with process(*command, *flags) as address:
        yield address


async def send_all(address: str, paths: list[str], seconds: float) -> dict[str, Any]:
    """Every path from a client that waits for its answer before it sends the next image."""
    waits: list[float] = []
    codes, images = Counter[int](), pictures()
    limits = httpx.Limits(max_connections=len(paths), max_keepalive_connections=len(paths))
    async with httpx.AsyncClient(base_url=address, timeout=120, limits=limits) as client:

        async def one(path: str, end: float) -> None:
            for i in range(10**9):
                start = time.perf_counter()
                if start > end:
                    return
                try:
                    codes[(await client.post(path, content=images[i % len(images)], headers=PNG)).status_code] += 1
                except httpx.TransportError:
                    codes[0] += 1
                waits.append(time.perf_counter() - start)

        await asyncio.gather(*(one(path, time.perf_counter() + 1) for path in paths))
        waits.clear()
        codes.clear()
        start = time.perf_counter()
        await asyncio.gather(*(one(path, start + seconds) for path in paths))
        spent = time.perf_counter() - start
    ranks = statistics.quantiles(waits, n=100)
    return {
        "clients": len(paths), "requests": len(waits), "failures": sum(codes.values()) - codes[200],
        "requests/s": round(len(waits) / spent, 1), "p50 ms": round(1e3 * ranks[49], 1),
        "p99 ms": round(1e3 * ranks[98], 1),
    }  # fmt: skip


def overhead(folder: Path, seconds: float, rounds: int) -> dict[str, Any]:
    """What the server adds to an image: 16 clients of 16 streams against one adapter in a loop, in turn.

    Server, clients and loop share the cores, but the loop has none of the others beside it. The share of a larger
    model's step is the milliseconds that are added, over the step of part `journal`.
    """
    adapter, images, served_ms, bare_ms = adapt(tiny(), CLASSES), pictures(), [], []
    with served(folder / "overhead") as address:
        for i in range(16):
            httpx.post(f"{address}/v1/streams", json={"id": f"s{i}"}).raise_for_status()
        paths = [f"/v1/streams/s{i}/images" for i in range(16)]
        for _ in range(rounds):
            served_ms.append(1e3 / asyncio.run(send_all(address, paths, seconds))["requests/s"])
            start, done = time.perf_counter(), 0
            while time.perf_counter() < start + seconds:
                adapter(images[done % len(images)])
                done += 1
            bare_ms.append(1e3 * (time.perf_counter() - start) / done)
    ratios = sorted(bare / ours for bare, ours in zip(bare_ms, served_ms, strict=True))
    return {
        "clients": 16, "rounds": rounds, "bare ms": round(statistics.median(bare_ms), 2),
        "served ms": round(statistics.median(served_ms), 2),
        "images/s of the bare engine's": [round(one, 3) for one in (ratios[0], statistics.median(ratios), ratios[-1])],
    }  # fmt: skip


def load_rows(folder: Path, seconds: float) -> list[dict[str, Any]]:
    """Requests a second at 1, 16 and 128 streams, beside the bare loop."""
    rows = []
    for clients in (1, 16, 128):
        with served(folder / f"load-{clients}", "--max-resident", "128") as address:
            for i in range(clients):
                httpx.post(f"{address}/v1/streams", json={"id": f"s{i}"}).raise_for_status()
            paths = [f"/v1/streams/s{i}/images" for i in range(clients)]
            rows.append({"server": "lessmore serve", **asyncio.run(send_all(address, paths, seconds))})
        with process(sys.executable, "-c", BARE, str(PORT)) as address:
            told = asyncio.run(send_all(address, [f"/s{i}" for i in range(clients)], seconds))
            rows.append({"server": "bare loop, one stream", **told})
        print(*rows[-2:], sep="\n")
    return rows


def eviction(folder: Path, streams: int, resident: int) -> dict[str, Any]:
    """Time to the first answer of a stream that has left memory, beside that of one that has not."""
    store = folder / "many"
    FolderStore(store, fsync=False).close()
    registry = StreamRegistry(f"sqlite:///{store}/registry.db", fsync=False)
    for i in range(streams):
        registry.add(StreamRow(f"s{i}", "", None, CONFIG))
    registry.close()
    image, cold, warm = pictures()[0], [], []
    with served(store, "--max-resident", str(resident)) as address, httpx.Client(base_url=address) as client:
        for turn in range(2):
            for i in range(0, streams, streams // (2 * resident)):
                for times in (cold, warm):
                    start = time.perf_counter()
                    path = f"/v1/streams/s{i}/images"
                    client.post(path, content=image, headers=PNG).raise_for_status()
                    if turn:
                        times.append(time.perf_counter() - start)
    return {
        "streams": streams, "resident": resident, "measured": len(cold),
        "evicted: median ms": round(1e3 * statistics.median(cold), 2),
        "evicted: p99 ms": round(1e3 * statistics.quantiles(cold, n=100)[98], 2),
        "in memory: median ms": round(1e3 * statistics.median(warm), 2),
    }  # fmt: skip


def random_setup(model: str, classes: int) -> Setup:
    """A model of random weights by the name of its shape."""
    torch.manual_seed(0)
    shape = SHAPES[model][0]
    text = torch.nn.functional.normalize(torch.randn(classes, shape.embed), dim=-1)
    vision = ViT(shape).eval().requires_grad_(False)
    for parameter in vision.parameters():
        parameter.normal_(0, 0.02)
    return Setup(vision, text, 100.0, resolve("tca", "default", shape=shape).preset)


@torch.no_grad()
def journal_share(folder: Path, model: str, classes: int, images: int) -> dict[str, Any]:
    """What writing a record takes of a step, both timed in turn."""
    setup = random_setup(model, classes)
    method, store = build("cpu", "tca", setup), FolderStore(folder / f"journal-{model}", fsync=False)
    assert isinstance(method, Replayable)
    size, steps, writes, total = setup.vision.shape.image_size, [], [], 0
    for i in range(images + 3):
        pixels = torch.randn(1, 3, size, size)
        start = time.perf_counter()
        method.predict(pixels)
        middle = time.perf_counter()
        record = pack_record({"number": i, "health": {}, "answer": {"label": "x" * 600}}, method.delta())
        store.append("s", record)
        end = time.perf_counter()
        if i >= 3:
            steps.append(middle - start)
            writes.append(end - middle)
            total += len(record)
    store.close()
    step, write = statistics.median(steps), statistics.median(writes)
    return {
        "model": model, "classes": classes, "images": images, "step ms": round(1e3 * step, 2),
        "record ms": round(1e3 * write, 3), "share": round(write / (step + write), 4),
        "bytes per image": round(total / images),
    }  # fmt: skip


def restart(folder: Path, streams: int, images: int) -> dict[str, Any]:
    """Time to bring back streams whose journals hold so many images; the journals are copies of one."""
    settings = ServerSettings(max_batch=1, snapshot_every=10**9, max_resident=streams)
    place = folder / "restart"
    store = FolderStore(place, fsync=False)
    registry = StreamRegistry(f"sqlite:///{place}/registry.db", fsync=False)
    registry.add(StreamRow("s0", "", None, CONFIG))
    first = ServedStreams(tiny(), settings, registry, store, Metrics())
    pixels = [first.template(CONFIG).pixels(image) for image in pictures()]
    for i in range(images):
        (told,) = first.answer([Look("s0", pixels[i % len(pixels)])])
        assert isinstance(told, dict), told
    for i in range(1, streams):
        registry.add(StreamRow(f"s{i}", "", None, CONFIG))
        shutil.copytree(place / "streams" / "s0", place / "streams" / f"s{i}")
    again = ServedStreams(tiny(), settings, registry, store, Metrics())
    again.template(CONFIG)
    start = time.perf_counter()
    for i in range(streams):
        assert again.get(f"s{i}").place.seq == images
    spent = time.perf_counter() - start
    size = (place / "streams" / "s0" / "journal").stat().st_size
    store.close()
    return {"streams": streams, "images each": images, "seconds": round(spent, 2), "journal bytes each": size}


def machine() -> dict[str, Any]:
    """What the numbers are of; the load says how busy the machine was with other things."""
    return {
        "cores": usable_cores(), "threads": torch.get_num_threads(), "torch": torch.__version__,
        "load before": round(os.getloadavg()[0], 1), "R": preset("default").condensation.R,
    }  # fmt: skip


def main() -> None:
    """Measure everything and write it down."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--output", type=Path, required=True)
    options.add_argument("--seconds", type=float, default=10, help="length of each load run")
    options.add_argument("--streams", type=int, default=10_000, help="registered streams of the eviction run")
    options.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what to measure")
    args = options.parse_args()
    limit_threads()
    results: dict[str, Any] = json.loads(args.output.read_text()) if args.output.exists() else {}
    with tempfile.TemporaryDirectory() as name:
        for part in args.parts:
            about = machine()
            found = PARTS[part](Path(name), args)
            results[part] = {"machine": about | {"load after": round(os.getloadavg()[0], 1)}, "found": found}
            args.output.write_text(json.dumps(results, indent=1) + "\n")
            print(part, results[part], flush=True)


PARTS: dict[str, Callable[[Path, argparse.Namespace], Any]] = {
    "overhead": lambda folder, args: overhead(folder, args.seconds / 2, 5),
    "load": lambda folder, args: load_rows(folder, args.seconds),
    "eviction": lambda folder, args: eviction(folder, args.streams, 100),
    "journal": lambda folder, args: [journal_share(folder, "ViT-B-16", 100, 20)],
    "restart": lambda folder, args: restart(folder, 100, 1000),
}


if __name__ == "__main__":
    main()
