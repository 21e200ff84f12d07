"""A real server in a process of its own, on loopback, and pictures to send to it."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import torch
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families
from safetensors.torch import load

import lessmore
from lessmore import Adapter, adapt
from lessmore.assets import shifts, world
from lessmore.serve.metrics import Metrics
from lessmore.serve.registry import StreamRegistry
from lessmore.serve.resident import Place
from lessmore.serve.settings import ServerSettings
from lessmore.serve.store import FolderStore
from lessmore.serve.streams import ServedStreams

State = tuple[dict[str, tuple[str, tuple[int, ...], bytes]], dict[str, Any]]
"""All that a state file says."""

CLASSES = world.world_class_names(world.test_classes())


@cache
def pictures(count: int = 24, seed: int = 5, kind: str = "contrast", severity: int = 3) -> list[bytes]:
    """Images of the embedded world under a shift, as PNG."""
    scene = world.world_sample(count, seed, world.test_classes())
    drawn = shifts.draw_shifted(scene, kind, severity)[0]
    return [png(one) for one in drawn]


def png(pixels: torch.Tensor) -> bytes:
    """Pixels [3, H, W] between 0 and 1 as a PNG."""
    return png_of(Image.fromarray((pixels.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy()))


def png_of(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


@cache
def tiny() -> Any:
    return lessmore.load("tiny")


def fresh_adapter(**options: Any) -> Adapter:
    """What a stream of the server is, in this process."""
    return adapt(tiny(), options.pop("classes", CLASSES), cache=False, **options)


class Server:
    """A process of `lessmore serve`."""

    def __init__(self, store: Path, *flags: str, wait: bool = True, **environment: str) -> None:
        place = () if "--store" in flags else ("--store", str(store))
        command = [sys.executable, "-m", "lessmore", "serve", "--port", "0", *place, *flags]
        given = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path), **environment}
        self.store, self.log = store, store.with_suffix(".log")
        with open(self.log, "ab") as errors:
            self.process = subprocess.Popen(command, env=given, stdout=subprocess.PIPE, stderr=errors, text=True)
        self.address = self._address() if wait else ""
        self.client = httpx.Client(base_url=self.address, timeout=60, limits=httpx.Limits(max_connections=200))

    def _address(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert " on http" in line, f"no address: {line!r}\n{self.log.read_text()[-3000:]}"
        threading.Thread(target=self.process.stdout.read, daemon=True).start()
        return line.split(" on ")[1].split(";")[0].strip()

    def kill(self) -> None:
        """As `kill -9` does it."""
        self.process.kill()
        self.process.wait()
        self.client.close()

    def stop(self) -> int:
        """As `kill` does it; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        self.client.close()
        return code

    def create(self, stream: str, **settings: Any) -> None:
        answer = self.client.post("/v1/streams", json={"id": stream, **settings})
        assert answer.status_code == 201, answer.text

    def send(self, stream: str, image: bytes, key: str | None = None, top: int = len(CLASSES)) -> dict[str, Any]:
        """The answer to an image, with all classes."""
        headers = {"Content-Type": "image/png"} | ({"Idempotency-Key": key} if key else {})
        answer = self.client.post(f"/v1/streams/{stream}/images", params={"top": top}, content=image, headers=headers)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def metrics(self) -> dict[str, float]:
        """Samples without labels by name, and the sums of those with some."""
        sums: Counter[str] = Counter()
        for family in text_string_to_metric_families(self.client.get("/metrics").raise_for_status().text):
            for sample in family.samples:
                sums[sample.name] += sample.value
        return dict(sums)

    def state(self, stream: str) -> State:
        return contents(self.client.get(f"/v1/streams/{stream}/state").raise_for_status().content)


@contextmanager
def running(store: Path, *flags: str, **environment: str) -> Iterator[Server]:
    server = Server(store, *flags, **environment)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.kill()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def kept_place(store: Path, stream: str) -> Place:
    """Where a stream stands in a folder that no server uses; read here, for a server takes seconds to start."""
    folder, registry = FolderStore(store, fsync=False), StreamRegistry(f"sqlite:///{store}/registry.db", fsync=False)
    found = ServedStreams(tiny(), ServerSettings(max_batch=1), registry, folder, Metrics()).get(stream).place
    folder.close()
    registry.close()
    return found


def scores_of(answer: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Adapted and zero-shot probability by class."""
    return {one["label"]: (one["score"], one["zero_shot_score"]) for one in answer["top"]}


def expected(adapter: Adapter, image: bytes) -> dict[str, tuple[float, float]]:
    """The same of an adapter in this process."""
    prediction = adapter(image)
    pairs = zip(prediction.scores.tolist(), prediction.zero_shot_scores.tolist(), strict=True)
    return dict(zip(adapter.classes, pairs, strict=True))


def contents(data: bytes) -> State:
    """Every tensor's type, shape and bytes, and the facts; safetensors itself writes its header in any order."""
    facts = json.loads(json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]["facts"])
    tensors = {
        name: (str(tensor.dtype), tuple(tensor.shape), tensor.numpy().tobytes()) for name, tensor in load(data).items()
    }
    return tensors, facts


def saved_state(adapter: Adapter, folder: Path) -> State:
    adapter.save(folder / "own.safetensors")
    return contents((folder / "own.safetensors").read_bytes())


def renewed(adapter: Adapter, folder: Path, **options: Any) -> Adapter:
    """The same stream on a class list that is embedded as a whole, as after a restart."""
    adapter.save(folder / "before.safetensors")
    pairs = [(group, [name]) for group, name in zip(adapter.groups, adapter.classes, strict=False)]
    other = fresh_adapter(classes=pairs or adapter.classes, method=adapter.method_name, **options)
    other.restore(folder / "before.safetensors")
    return other


def resident_mb(server: Server) -> float:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def vanish(server: Server) -> None:
    """Send half a body and go."""
    host, port = server.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as line:
        head = f"POST /v1/streams/s0/images HTTP/1.1\r\nHost: {host}\r\nContent-Type: image/png\r\n"
        line.sendall(f"{head}Content-Length: 9999999\r\n\r\n".encode() + b"x" * 65536)
