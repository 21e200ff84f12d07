"""What benchmarks/serve.py drives: servers in processes of their own, and clients that wait for their answers."""

from __future__ import annotations

import asyncio
import io
import json
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import torch
from PIL import Image
from safetensors.torch import save_file

from tests.serve.server import CLASSES, free_port, pictures

BARE = """
import asyncio, sys, uvicorn, lessmore
from fastapi import FastAPI, Request
from lessmore.engines.cores import limit_threads
from tests.serve.server import CLASSES
limit_threads()
adapter, app, lock = lessmore.adapt(lessmore.load(sys.argv[2]), CLASSES), FastAPI(), asyncio.Lock()

@app.post("/{stream}")
async def classify(stream: str, request: Request) -> dict:
    data = await request.body()
    async with lock:
        answer = await asyncio.to_thread(adapter, data)
    return {"label": answer.label, "score": float(answer.scores[answer.index])}

uvicorn.run(app, port=int(sys.argv[1]), log_level="warning", timeout_keep_alive=120)
"""
"""FastAPI around one Adapter with a lock: no queue, no journal, one stream."""

PATIENCE = 300
"""Seconds that a client waits for an answer, on a machine that may do other things."""


@contextmanager
def process(port: int, *command: str | Path) -> Iterator[str]:
    """A server on a port, once it answers."""
    address = f"http://127.0.0.1:{port}"
    started = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(1200):
            assert started.poll() is None, f"{command[1:4]} ended before it answered"
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
def served(store: Path, streams: int, *flags: str) -> Iterator[tuple[str, list[str]]]:
    """`lessmore serve` without lines for requests, and the paths of so many new streams."""
    port = free_port()
    command = (sys.executable, "-m", "lessmore", "serve", "--port", str(port), "--store", store, "--log", "quiet")
    with process(port, *command, *flags) as address:
        for i in range(streams):
            httpx.post(f"{address}/v1/streams", json={"id": f"s{i}"}, timeout=PATIENCE).raise_for_status()
        yield address, [f"/v1/streams/s{i}/images" for i in range(streams)]


@contextmanager
def bare_loop(model: str, clients: int) -> Iterator[tuple[str, list[str]]]:
    """The loop of `BARE`, and a path for each client."""
    port = free_port()
    with process(port, sys.executable, "-c", BARE, str(port), model) as address:
        yield address, [f"/s{i}" for i in range(clients)]


def send_all(address: str, paths: Sequence[str], images: Sequence[bytes], seconds: float, warm: float = 1) -> Any:
    """Every path from a client that waits for its answer before it sends the next image."""
    return asyncio.run(_send_all(address, paths, images, seconds, warm))


async def _send_all(address: str, paths: Sequence[str], images: Sequence[bytes], seconds: float, warm: float) -> Any:
    waits: list[float] = []
    codes, kind = Counter[int](), {"Content-Type": "image/jpeg"}
    limits = httpx.Limits(max_connections=len(paths), max_keepalive_connections=len(paths))
    async with httpx.AsyncClient(base_url=address, timeout=PATIENCE, limits=limits) as client:

        async def one(path: str, end: float) -> None:
            for i in range(10**9):
                start = time.perf_counter()
                if start > end:
                    return
                try:
                    codes[(await client.post(path, content=images[i % len(images)], headers=kind)).status_code] += 1
                except httpx.TransportError:
                    codes[0] += 1
                waits.append(time.perf_counter() - start)

        await asyncio.gather(*(one(path, time.perf_counter() + warm) for path in paths))
        waits.clear()
        codes.clear()
        start = time.perf_counter()
        await asyncio.gather(*(one(path, start + seconds) for path in paths))
        spent = time.perf_counter() - start
    ranks = statistics.quantiles(waits, n=100)
    return {
        "clients": len(paths), "requests": len(waits), "failures": sum(codes.values()) - codes[200],
        "requests/s": round(len(waits) / spent, 3), "p50 ms": round(1e3 * ranks[49], 1),
        "p99 ms": round(1e3 * ranks[98], 1),
    }  # fmt: skip


def photographs(count: int = 24) -> list[bytes]:
    """Images of the embedded world, enlarged to JPEGs of 640 x 480 as a camera sends them."""
    files = []
    for data in pictures(count):
        file = io.BytesIO()
        Image.open(io.BytesIO(data)).convert("RGB").resize((640, 480), Image.Resampling.BICUBIC).save(file, "JPEG")
        files.append(file.getvalue())
    return files


def random_model(folder: Path, name: str) -> str:
    """A model of random weights by open_clip's name of its shape, as `lessmore serve --model` takes it."""
    import open_clip

    torch.manual_seed(0)
    folder.mkdir(parents=True)
    weights = {key: value.contiguous() for key, value in open_clip.create_model(name).state_dict().items()}
    save_file(weights, folder / "open_clip_model.safetensors")
    looks = {"mean": open_clip.OPENAI_DATASET_MEAN, "std": open_clip.OPENAI_DATASET_STD, "interpolation": "bicubic"}
    config = {"model_cfg": open_clip.get_model_config(name), "preprocess_cfg": {**looks, "resize_mode": "shortest"}}
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    return f"open_clip:local-dir:{folder}"


def class_file(folder: Path) -> Path:
    """The class list of the embedded world as a file."""
    path = folder / "classes.txt"
    path.write_text("\n".join(CLASSES) + "\n", encoding="utf-8")
    return path
