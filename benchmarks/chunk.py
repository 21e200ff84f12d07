"""What exact batched streaming costs: `chunk` and `multi` against the batched forward pass, and how much is done twice.

    python benchmarks/chunk.py --device cuda --dtype float16 --output benchmarks/results/chunk.json

Random weights of a known shape; images are class prototypes under noise, made on the device, and the class texts are
the prototypes' own features, so that predictions are diverse and the reservoir fills. The first 5·M·C images, while it
fills, are reported apart. Answers are compared with those of one image at a time (`graph` on CUDA, else `eager`).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lessmore.config import Preset, preset
from lessmore.core.encoder import encode
from lessmore.core.vit import BlockShape, ViT, ViTShape
from lessmore.engines import build
from lessmore.engines.capture import capture
from lessmore.engines.chunk import Chunk, Work
from lessmore.engines.multi import Multi
from lessmore.engines.split_encoder import halves
from lessmore.methods import Outcome, Setup
from lessmore.models.shapes import SHAPES

TINY = ViTShape(BlockShape(32, 12, 2, 64, "quick_gelu"), image_size=24, patch=4, embed=128)


class Stream:
    """Noisy prototypes: T images in batches, in a random order of classes."""

    def __init__(self, vit: ViT, C: int, T: int, batch: int, noise: float) -> None:
        like, side = vit.positions, vit.shape.image_size
        self.random = torch.Generator(like.device).manual_seed(0)
        self.like, self.batch, self.noise = like, batch, noise
        coarse = self._normal(C, 3, 7, 7)
        self.prototypes = F.interpolate(coarse, (side, side), mode="bicubic")
        self.labels = torch.randint(C, (T,), generator=self.random, device=like.device)
        self.batches = [self._images(part) for part in self.labels.split(batch)]

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.random, device=self.like.device)

    def _images(self, labels: Tensor) -> Tensor:
        clean = self.prototypes[labels]
        return (clean + self.noise * self._normal(*clean.shape)).to(self.like.dtype)

    def text(self, vit: ViT) -> Tensor:
        """Class embeddings: the prototypes' features around their mean."""
        features = torch.cat([encode(vit, part.to(self.like.dtype)).feature for part in self.prototypes.split(64)])
        return F.normalize(features - features.mean(dim=0), dim=-1).to(self.like.dtype)


def lively(shape: ViTShape) -> ViT:
    """A tower of random weights large enough that different images have different features."""
    vit = ViT(shape).eval().requires_grad_(False)
    random = torch.Generator().manual_seed(0)
    for name, parameter in vit.named_parameters():
        noise = torch.randn(parameter.shape, generator=random)
        if parameter.ndim > 1 or name == "class_embed":
            parameter.copy_(noise * (1 if name in ("positions", "class_embed") else 2 * parameter[0].numel() ** -0.5))
    return vit


def now(device: torch.device) -> float:
    """The time once the device has done everything."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def rate(work: Callable[[], Any], images: int, device: torch.device, repeats: int = 5) -> float:
    """Images per second, the median of some repetitions after a first one."""
    work()
    seconds = []
    for _ in range(repeats):
        start = now(device)
        work()
        seconds.append(now(device) - start)
    return images / sorted(seconds)[repeats // 2]


def captured(body: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """As one graph on CUDA, so that a slow host does not count."""
    if device.type != "cuda":
        return body
    graph = capture(body, ())
    return lambda: graph.replay()


PARTS = {"_open": "encode", "_check": "check", "_repeat": "encode again", "_close": "settle", "_pass": "all"}
"""Of an engine, and what they are called here."""


class Clock:
    """Where time goes in an engine: the host's, which launches work and waits for results, and the device's."""

    def __init__(self, engine: Chunk, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        self.restart()
        for part in PARTS:
            setattr(engine, part, self._timed("launch", part, getattr(engine, part)))
        engine._misfits = self._timed("wait", None, engine._misfits)

    def restart(self) -> None:
        """Forget what has been."""
        self.seconds = {"launch": 0.0, "wait": 0.0}
        self.marks: list[tuple[str, Any, Any]] = []

    def _mark(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _timed(self, name: str, part: str | None, run: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            start, mark = time.perf_counter(), self._mark() if self.cuda and part else None
            result = run(*arguments)
            if mark and part:
                self.marks.append((PARTS[part], mark, self._mark()))
            self.seconds[name] += time.perf_counter() - start
            return result

        return call

    def host(self, images: int, total: float) -> dict[str, float]:
        """Microseconds of the host for each image; the rest is Python between the parts."""
        seconds = {**self.seconds, "rest": total - sum(self.seconds.values())}
        return {name: 1e6 * value / images for name, value in seconds.items()}

    def device(self, images: int, total: float) -> dict[str, float]:
        """Microseconds of the device for each image; it is idle for the rest."""
        parts = dict.fromkeys((name for name, *_ in self.marks), 0.0)
        for name, start, end in self.marks:
            parts[name] += 1000 * start.elapsed_time(end) / images
        return {**parts, "idle": 1e6 * total / images - sum(parts.values())} if parts else {}


def streamed(engine: Chunk, stream: Stream, fill: int) -> tuple[list[Outcome], dict[str, Any]]:
    """All answers, the speed before and after `fill` images, and the share of repeated encodings along the stream."""
    device = stream.like.device
    parts: list[Sequence[Outcome]] = []
    along: list[dict[str, float]] = []
    clock, engine.work = Clock(engine, device), Work()
    start = middle = now(device)
    filled = seen = again = done = 0
    for part in engine.predict_chunks(stream.batches):
        parts.append(part)
        done += len(part)
        if seen < fill <= done:
            middle, filled = now(device), done
            clock.restart()
        if done - seen >= stream.batch or done == sum(map(len, stream.batches)):
            share = (engine.work.again - again) / (done - seen)
            along.append({"images": done, "again": round(share, 3), "chunk": engine.size})
            seen, again = done, engine.work.again
    launched = time.perf_counter()
    end = now(device)
    clock.seconds["wait"] += end - launched
    late = [row["again"] for row in along if row["images"] > filled]
    answers = [answer for part in parts for answer in part]
    return answers, {
        "images/s while filling": filled / (middle - start) if filled else None,
        "images/s": (done - filled) / (end - middle),
        "again": engine.work.again / engine.work.images,
        "again, filled": sum(late) / len(late) if late else None,
        "walks": engine.work.walks,
        "host us/image": clock.host(done - filled, end - middle),
        "device us/image": clock.device(done - filled, end - middle),
        "split us/image": 1e6 * (time.perf_counter() - end) / done,
        "along": along,
    }


def compared(setup: Setup, stream: Stream, answers: list[Outcome], count: int) -> dict[str, Any]:
    """The same stream one image at a time: its speed, and where the answers differ, with the margin there."""
    method, device = build("auto", "tca", setup), stream.like.device
    images = [image for batch in stream.batches for image in batch][:count]
    start = now(device)
    single = [method.predict(image[None]).scores for image in images]
    labels = stream.labels[:count]
    seconds = now(device) - start
    ours, theirs = torch.stack([a.scores for a in answers[:count]]), torch.stack(single)
    top = theirs.topk(2, dim=1).values
    differ = (ours.argmax(dim=1) != theirs.argmax(dim=1)).nonzero().flatten()
    return {
        "one by one images/s": count / seconds,
        "accuracy": float((ours.argmax(dim=1) == labels).float().mean()),
        "one by one accuracy": float((theirs.argmax(dim=1) == labels).float().mean()),
        "compared": count,
        "differ": len(differ),
        "margins": (top[:, 0] - top[:, 1])[differ].tolist(),
        "largest difference": float((ours - theirs).abs().max()),
    }


def many(setup: Setup, stream: Stream, S: int) -> Iterator[Callable[[], Any]]:
    """One turn of S streams, after some that fill their reservoirs."""
    engine = Multi(setup, S)
    turns = [part for batch in stream.batches for part in batch.split(S) if len(part) == S]
    for part in turns[:8]:
        engine.predict(part)
    yield lambda: engine.predict(turns[0])


def measure(vit: ViT, text: Tensor, stream: Stream, chosen: Preset, args: argparse.Namespace) -> dict[str, Any]:
    """Everything about one preset."""
    setup, device = Setup(vit, text, args.scale, chosen), stream.like.device
    prefix, rest = halves(vit, chosen.condensation)
    forward = rate(captured(lambda: rest(prefix(stream.batches[0]), None), device), args.batch, device)
    fill = 5 * chosen.adaptation.M * args.classes
    sizes = tuple(size for size in Chunk(setup).sizes if size <= args.batch)
    engine = Chunk(setup, sizes)
    for _ in engine.predict_chunks(stream.batches):
        pass  # all shapes once: kernels are compiled, libraries make their plans, graphs are captured
    engine.reset()
    engine.size = sizes[-1]
    answers, row = streamed(engine, stream, fill)
    small = stream.batches[0][: args.streams]
    row["predicted classes"] = len({int(a.scores.argmax()) for a in answers})
    row |= {"forward images/s": forward, "of forward": row["images/s"] / forward}
    row["forward at S images/s"] = rate(captured(lambda: rest(prefix(small), None), device), args.streams, device)
    (turn,) = many(setup, stream, args.streams)
    row["multi images/s"] = rate(turn, args.streams, device)
    row["multi of forward"] = row["multi images/s"] / row["forward at S images/s"]
    row |= compared(setup, stream, answers, min(args.compare, len(answers)))
    return row | {"of one by one": row["images/s"] / row["one by one images/s"]}


def show(name: str, row: dict[str, Any]) -> None:
    """A few lines for people."""
    print(f"{name}: batched forward {row['forward images/s']:.0f} images/s")
    filling = row["images/s while filling"]
    print(f"  chunk {row['images/s']:.0f} images/s, {row['of forward']:.2f} of forward", end="")
    print("" if filling is None else f"; while filling {filling:.0f} ({filling / row['forward images/s']:.2f})")
    shares = " ".join(f"{step['again']:.2f}" for step in row["along"])
    times = ", ".join(f"{name} {value:.1f}" for name, value in row["host us/image"].items())
    print(f"  host, us/image once filled: {times}; answers one by one {row['split us/image']:.1f} more")
    parts = ", ".join(f"{name} {value:.1f}" for name, value in row["device us/image"].items())
    if parts:
        print(f"  device, us/image once filled: {parts}")
    print(f"  encoded again {row['again']:.2f} of all, along the stream {shares}")
    print(f"  multi {row['multi images/s']:.0f} images/s, {row['multi of forward']:.2f} of forward at the same batch")
    print(
        f"  one by one {row['one by one images/s']:.1f} images/s, chunk {row['of one by one']:.2f} times that; "
        f"of {row['compared']} answers {row['differ']} differ",
        end="",
    )
    print(
        f" (scores by up to {row['largest difference']:.1e}); {row['predicted classes']} classes predicted", flush=True
    )


@torch.no_grad()
def main() -> None:
    """Measure each preset, print, and write the table as it grows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=["tiny", *SHAPES], default="ViT-B-16")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=["float64", "float32", "float16", "bfloat16"], default="float32")
    parser.add_argument("--classes", type=int, default=102)
    parser.add_argument("--images", type=int, default=5120)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--preset", nargs="+", default=["fixed", "labelfree", "released"])
    parser.add_argument("--R", type=float)
    parser.add_argument("--noise", type=float, default=0.05)
    parser.add_argument("--scale", type=float, default=20.0, help="of the zero-shot logits")
    parser.add_argument("--compare", type=int, default=500, help="images also answered one by one")
    parser.add_argument("--output")
    args = parser.parse_args()
    vit = lively(TINY if args.shape == "tiny" else SHAPES[args.shape][0]).to(args.device, getattr(torch, args.dtype))
    stream = Stream(vit, args.classes, args.images, args.batch, args.noise)
    text = stream.text(vit)
    rows: dict[str, Any] = {"arguments": {name: value for name, value in vars(args).items() if name != "output"}}
    for name in args.preset:
        rows[name] = measure(vit, text, stream, preset(name, **({} if args.R is None else {"R": args.R})), args)
        show(name, rows[name])
        if args.output:
            Path(args.output).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
