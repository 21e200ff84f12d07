"""What the server costs, on this machine: requests a second, evicted streams, the journal, restarts, kills.

    python -m benchmarks.serve --output benchmarks/results/serve.json --write
    python -m benchmarks.serve --output benchmarks/results/serve.json --write --parts kills

A part that is measured again replaces its old figures. Clients run in a process of their own and share the cores with
the server. The timed parts take about eight minutes. `kills` takes about as long; it measures no time, so it runs only
when it is named, and a busy machine does. `benchmarks/serve_numbers.py` makes the table in docs/serve.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import torch

from benchmarks.serve_clients import PATIENCE, bare_loop, class_file, photographs, random_model, send_all, served
from benchmarks.serve_numbers import write_numbers
from lessmore import Adapter, adapt, load
from lessmore.config import preset
from lessmore.core.vit import ViT
from lessmore.engines import build
from lessmore.engines.cores import limit_threads, usable_cores
from lessmore.methods import Replayable, Setup
from lessmore.methods.resolve import resolve
from lessmore.models.shapes import SHAPES
from lessmore.serve.journal import pack_record, read_records
from lessmore.serve.metrics import Metrics
from lessmore.serve.registry import StreamRegistry, StreamRow
from lessmore.serve.settings import ServerSettings
from lessmore.serve.store import FolderStore
from lessmore.serve.streams import Look, ServedStreams
from tests.serve.server import CLASSES, pictures, tiny
from tests.serve.test_sigkill import survive

CONFIG: dict[str, Any] = {"classes": CLASSES, "templates": "photo", "preset": "default", "R": None, "method": "tca"}
PNG = {"Content-Type": "image/png"}
SHAPE = "ViT-B-16"


def overhead(folder: Path, seconds: float, rounds: int) -> dict[str, Any]:
    """16 clients of 16 streams beside a bare loop and the bare engine, in turn, on one shape and the same JPEGs.

    Server, clients and loop share the cores; the engine has none of the others beside it.
    """
    model, images = random_model(folder / "shape", SHAPE), photographs()
    adapter = adapt(load(model), CLASSES)
    flags = ("--model", model, "--classes", str(class_file(folder)))
    rates: dict[str, list[float]] = {"lessmore serve": [], "bare FastAPI loop": [], "bare engine": []}
    with served(folder / "overhead", 16, *flags) as ours, bare_loop(model, 16) as loop:
        for _ in range(rounds):
            for name, (address, paths) in (("lessmore serve", ours), ("bare FastAPI loop", loop)):
                told = send_all(address, paths, images, seconds)
                assert told["failures"] == 0, told
                rates[name].append(told["requests/s"])
            rates["bare engine"].append(engine_rate(adapter, images, seconds))
    ratios = sorted(a / b for a, b in zip(rates["lessmore serve"], rates["bare engine"], strict=True))
    return {
        "shape": SHAPE, "clients": 16, "rounds": rounds,
        "images/s": {name: round(statistics.median(each), 2) for name, each in rates.items()},
        "of the bare engine": [round(one, 3) for one in (ratios[0], statistics.median(ratios), ratios[-1])],
    }  # fmt: skip


def engine_rate(adapter: Adapter, images: list[bytes], seconds: float) -> float:
    """Images a second of an adapter in a loop, decoding included."""
    adapter(images[0])
    start, done = time.perf_counter(), 0
    while time.perf_counter() < start + seconds:
        adapter(images[done % len(images)])
        done += 1
    return done / (time.perf_counter() - start)


def load_rows(folder: Path, seconds: float) -> list[dict[str, Any]]:
    """Requests a second of `tiny` at 1, 16 and 128 streams, beside the bare loop."""
    rows = []
    for clients in (1, 16, 128):
        with served(folder / f"load-{clients}", clients, "--max-resident", "128") as (address, paths):
            rows.append({"server": "lessmore serve", **send_all(address, paths, pictures(), seconds)})
        with bare_loop("tiny", clients) as (address, paths):
            rows.append({"server": "bare FastAPI loop", **send_all(address, paths, pictures(), seconds)})
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
    step = max(1, streams // (2 * resident))
    flags = ("--max-resident", str(resident))
    with served(store, 0, *flags) as (address, _), httpx.Client(base_url=address, timeout=PATIENCE) as client:
        for turn in range(2):
            for i in range(0, streams, step):
                for times in (cold, warm):
                    start = time.perf_counter()
                    answer = client.post(f"/v1/streams/s{i}/images", content=image, headers=PNG)
                    assert answer.status_code == 200, answer.text
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
    """Time to bring back streams whose journals hold so many images; the journals differ in the stream's name alone."""
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
    journal = store.journal("s0")
    head = read_records(journal, "the journal")[0][0].facts
    images_of_it = journal[len(pack_record(head, {})) :]
    for i in range(1, streams):
        registry.add(StreamRow(f"s{i}", "", None, CONFIG))
        store.append(f"s{i}", pack_record({**head, "stream": f"s{i}"}, {}) + images_of_it)
    again = ServedStreams(tiny(), settings, registry, store, Metrics())
    again.template(CONFIG)
    start = time.perf_counter()
    for i in range(streams):
        assert again.get(f"s{i}").place.seq == images
    spent = time.perf_counter() - start
    store.close()
    return {"streams": streams, "images each": images, "seconds": round(spent, 2), "journal bytes each": len(journal)}


def kills(folder: Path, count: int) -> dict[str, Any]:
    """SIGKILLs under load; an answer or a byte of a state that differs, or an image that counts twice, ends this."""
    told, restarts = survive(folder / "kills", kills=count, between=20)
    answers = sum(map(len, told.values()))
    return {"kills": restarts, "streams": len(told), "answers": answers, "missing": 0, "twice": 0, "differing bytes": 0}


def machine() -> dict[str, Any]:
    """What the numbers are of; the load says how busy the machine was with other things."""
    return {
        "cores": usable_cores(), "threads": torch.get_num_threads(), "torch": torch.__version__,
        "load before": round(os.getloadavg()[0], 1), "R": preset("default").condensation.R,
    }  # fmt: skip


def main() -> None:
    """Measure, and write it down."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--output", type=Path, required=True)
    options.add_argument("--seconds", type=float, default=10, help="length of each load run")
    options.add_argument("--rounds", type=int, default=5, help="rounds of part overhead")
    options.add_argument("--streams", type=int, default=10_000, help="registered streams of part eviction")
    options.add_argument("--resident", type=int, default=100, help="streams in memory in part eviction")
    options.add_argument("--kept", type=int, nargs=2, default=(100, 1000), help="streams and images of part restart")
    options.add_argument("--kills", type=int, default=50, help="kills of part kills")
    options.add_argument(
        "--parts", nargs="+", choices=PARTS, default=TIMED, help="what to measure; kills if named only"
    )
    options.add_argument("--write", action="store_true", help="put the table of the output into docs/serve.md")
    args = options.parse_args()
    limit_threads()
    results: dict[str, Any] = json.loads(args.output.read_text()) if args.output.exists() else {}
    with tempfile.TemporaryDirectory() as name:
        for part in args.parts:
            about, start = machine(), time.perf_counter()
            found = PARTS[part](Path(name), args)
            about |= {"load after": round(os.getloadavg()[0], 1), "seconds": round(time.perf_counter() - start)}
            results[part] = {"machine": about, "found": found}
            args.output.write_text(json.dumps(results, indent=1) + "\n")
            print(part, json.dumps(results[part]), flush=True)
    if args.write:
        write_numbers(results)


PARTS: dict[str, Callable[[Path, argparse.Namespace], Any]] = {
    "overhead": lambda folder, args: overhead(folder, args.seconds, args.rounds),
    "load": lambda folder, args: load_rows(folder, args.seconds),
    "eviction": lambda folder, args: eviction(folder, args.streams, args.resident),
    "journal": lambda folder, args: journal_share(folder, SHAPE, 100, 20),
    "restart": lambda folder, args: restart(folder, *args.kept),
    "kills": lambda folder, args: kills(folder, args.kills),
}
TIMED = [part for part in PARTS if part != "kills"]


if __name__ == "__main__":
    main()
