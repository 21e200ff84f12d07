"""The demo: four shifted streams of the embedded world through zero-shot, EViT and TCA, one image at a time.

Every shift is its own stream with a fresh adapter. The three methods take turns on every image, in one thread, so that
their times are measured under the same conditions. The result is reported whatever it is.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from lessmore.adapter import Adapter, adapt
from lessmore.assets import shifts, world
from lessmore.core.condense.source import SourceMap
from lessmore.errors import LessmoreError
from lessmore.lab.report import tokens
from lessmore.lab.report.page import Exhibit, TokenPanel
from lessmore.models.load import load
from lessmore.models.vlm import VLM
from lessmore.prediction import Prediction

# Held out: no setting of this package was chosen on these shifts and seeds.
SHIFTS = (("background", 5), ("noise", 2), ("blur", 2), ("sketch", 2))
SEED = 82_000
SEEDS = 2**40 - len(SHIFTS)
"""Seeds must be below this: training used the following ones."""
CLASSES, CLASS_SEED = 48, 1
IMAGES = 600
PRESET = "default"

GALLERY = {"fixed": 1, "broken": 1, "right": 1}
"""How many images of each kind the page shows, per shift."""
_WINDOW = 40  # images between copies of TCA's state, from which the pictures of the gallery are made


class DemoContender(NamedTuple):
    """One line of the table."""

    name: str
    method: str
    reducer: str
    R: float


CONTENDERS = (
    DemoContender("zero-shot", "zeroshot", "none", 1.0),
    DemoContender("EViT", "zeroshot", "evit", 0.9),
    DemoContender(f"TCA ({PRESET})", "tca", "tca", 0.9),
)
BASELINE, OURS = CONTENDERS[0].name, CONTENDERS[-1].name


class DemoJob(NamedTuple):
    """One stream."""

    model: str
    shift: str
    severity: int
    images: int
    seed: int

    @property
    def title(self) -> str:
        """The shift with its severity."""
        return f"{self.shift} {self.severity}"


@dataclass(frozen=True)
class DemoStream:
    """The result of one stream of n images."""

    title: str
    labels: NDArray[np.int64]
    """[n]"""
    answers: dict[str, NDArray[np.int64]]
    """By contender, [n]."""
    ms: dict[str, NDArray[np.float64]]
    """By contender, milliseconds of every image, [n]."""
    before: NDArray[np.int64]
    """TCA's answers before their correction, from the same forward passes, [n]."""
    exhibits: list[Exhibit]

    def hits(self, name: str) -> NDArray[np.float64]:
        """1 where a contender was right, [n]."""
        return np.asarray(self.answers[name] == self.labels, dtype=np.float64)


DemoTick = tuple[str, int, dict[str, float]]
"""Stream, images done, running accuracy by contender."""
Ticker = Callable[[DemoTick], None]


@dataclass(frozen=True)
class DemoResult:
    """A whole run."""

    vlm: VLM
    classes: list[str]
    seed: int
    streams: list[DemoStream]
    workers: int
    seconds: float


def run_demo(
    model: str = "tiny",
    images: int = IMAGES,
    seed: int = SEED,
    workers: int | None = None,
    tick: Ticker = lambda _: None,
) -> DemoResult:
    """Stream all shifts through all contenders.

    Args:
        model: Name of an embedded model, or what else `lessmore.load` takes.
        images: Images per shift.
        seed: Of the first shift; the others use the next ones. Must be below `SEEDS`.
        workers: Processes; None means one per core. The answers do not depend on it.
        tick: Called after each image, for progress bars.
    """
    start = time.monotonic()
    vlm = load(model)
    jobs = [DemoJob(model, kind, severity, images, seed + i) for i, (kind, severity) in enumerate(SHIFTS)]
    workers = min(len(jobs), _cores() if workers is None else workers)
    streams = [run_stream(job, vlm, tick) for job in jobs] if workers == 1 else _in_parallel(jobs, workers, tick)
    return DemoResult(vlm, demo_class_names(), seed, streams, workers, time.monotonic() - start)


def demo_class_names() -> list[str]:
    """The demo's classes, half of them combinations that no training image showed."""
    return world.world_class_names(world.test_classes(CLASSES, CLASS_SEED))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _in_parallel(jobs: list[DemoJob], workers: int, tick: Ticker) -> list[DemoStream]:
    """Divide the streams among processes of one thread each, which at batch 1 uses the cores best."""
    context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    messages = context.Queue()
    processes = [context.Process(target=_work, args=(jobs[i::workers], messages), daemon=True) for i in range(workers)]
    for process in processes:
        process.start()
    try:
        done: dict[str, DemoStream] = {}
        while len(done) < len(jobs):
            message = _next(messages, processes)
            if isinstance(message, DemoStream):
                done[message.title] = message
            else:
                tick(message)
    finally:
        for process in processes:
            process.terminate()
            process.join()
    return [done[job.title] for job in jobs]


def _next(messages: Any, processes: list[Any]) -> Any:
    """The next message. A worker that died silently is an error, so that nobody waits forever."""
    while True:
        try:
            return messages.get(timeout=1)
        except queue.Empty:
            if any(process.exitcode not in (None, 0) for process in processes):
                raise LessmoreError("a worker of the demo died; try again with --workers 1 to see why") from None


def _work(jobs: list[DemoJob], messages: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to everyone; the parent decides
    torch.set_num_threads(1)
    vlm = load(jobs[0].model)
    for job in jobs:
        messages.put(run_stream(job, vlm, messages.put))


def run_stream(job: DemoJob, vlm: VLM, tick: Ticker) -> DemoStream:
    """One stream through every contender.

    Args:
        job: The stream.
        vlm: The model, shared by all contenders.
        tick: Called after each image.
    """
    race = Comparison(job, vlm)
    exhibits: list[Exhibit] = []
    missing = dict(GALLERY)
    for start in range(0, job.images, _WINDOW):
        fork = race.adapters[OURS].fork()
        window = range(start, min(start + _WINDOW, job.images))
        for i in window:
            race.step(i)
            tick((job.title, i + 1, race.accuracy(i + 1)))
        if window.stop > job.images // 4:  # before that, little has been remembered
            exhibits += race.exhibits(fork, window, missing)
    order = list(GALLERY)
    exhibits.sort(key=lambda exhibit: order.index(exhibit.verdict))
    return DemoStream(job.title, race.labels, race.answers, race.ms, race.before, exhibits)


class Comparison:
    """The contenders on one stream, image by image."""

    def __init__(self, job: DemoJob, vlm: VLM) -> None:
        self.job = job
        self.pictures, self.labels = _pictures(job)
        self.pixels = [vlm.preprocess(picture) for picture in self.pictures]
        self.adapters = {c.name: _adapter(vlm, c) for c in CONTENDERS}
        self.answers = {c.name: np.zeros(job.images, dtype=np.int64) for c in CONTENDERS}
        self.ms = {c.name: np.zeros(job.images) for c in CONTENDERS}
        self.before = np.zeros(job.images, dtype=np.int64)

    def step(self, i: int) -> None:
        """Let every contender answer image i. The first finds cold caches, so they take turns at being first."""
        names = list(self.adapters)
        for name in names[i % len(names) :] + names[: i % len(names)]:
            start = time.perf_counter()
            prediction = self.adapters[name](self.pixels[i])
            self.ms[name][i] = 1000 * (time.perf_counter() - start)
            self.answers[name][i] = prediction.index
            if name == OURS:
                self.before[i] = int(prediction.zero_shot_scores.argmax())

    def accuracy(self, count: int) -> dict[str, float]:
        """Share of right answers among the first `count`, by contender."""
        return {n: float(np.mean(a[:count] == self.labels[:count])) for n, a in self.answers.items()}

    def exhibits(self, fork: Adapter, window: range, missing: dict[str, int]) -> Iterator[Exhibit]:
        """Exhibits from one window, for the kinds that the gallery still lacks.

        The window is run a second time to record tokens; recording in the first run would count against TCA's time.

        Args:
            fork: Ours as it was before the window.
            window: Numbers of the images.
            missing: How many exhibits of each kind are still wanted; counted down in place.
        """
        wanted: dict[int, str] = {}
        for i in window:
            what = answer_verdict(self.labels[i], self.answers[BASELINE][i], self.answers[OURS][i])
            if missing.get(what, 0):
                wanted[i] = what
                missing[what] -= 1
        for i in range(window.start, max(wanted, default=-1) + 1):
            prediction = fork(self.pixels[i], trace=i in wanted)
            if i in wanted:
                yield self._exhibit(i, wanted[i], fork, prediction)

    def _exhibit(self, i: int, verdict: str, fork: Adapter, prediction: Prediction) -> Exhibit:
        before = self.adapters[BASELINE](self.pixels[i])
        seen = tokens.as_seen(self.pictures[i], fork.vlm)
        truth = fork.classes[self.labels[i]]
        panels = [TokenPanel(tokens.data_uri(seen), "original", f"{truth}, {self.job.title}")]
        if prediction.trace is not None:
            panels += _panels(seen, prediction.trace)
        return Exhibit(verdict, self.job.title, truth, _answer(before), _answer(prediction), OURS, panels)


def _answer(prediction: Prediction) -> str:
    return f"{prediction.label} {float(prediction.scores[prediction.index]):.2f}"


def _pictures(job: DemoJob) -> tuple[list[Image.Image], NDArray[np.int64]]:
    """The images, drawn all at once, and their labels [n]."""
    scene = world.world_sample(job.images, job.seed, world.test_classes(CLASSES, CLASS_SEED))
    parts = [shifts.draw_shifted(scene[i : i + 200], job.shift, job.severity)[0] for i in range(0, len(scene), 200)]
    return [tokens.as_picture(image) for part in parts for image in part], scene.index.numpy()


def _adapter(vlm: VLM, contender: DemoContender) -> Adapter:
    _, method, reducer, R = contender
    return adapt(vlm, demo_class_names(), method=method, reducer=reducer, preset=PRESET, R=R, cache=False)


def answer_verdict(label: np.int64, before: np.int64, after: np.int64) -> str:
    """What adaptation did to an answer: `right` or `wrong` before and after, or `fixed`, or `broken`.

    Args:
        label: The true class.
        before: Predicted class without adaptation.
        after: Predicted class with it.
    """
    if before == label:
        return "right" if after == label else "broken"
    return "fixed" if after == label else "wrong"


def _panels(seen: Image.Image, trace: SourceMap) -> Iterator[TokenPanel]:
    fates = trace.fate[0]
    for s, picture in enumerate(tokens.token_panels(seen, trace, side=seen.width)):
        kept, merged, pruned = (int((fates[s] == fate).sum()) for fate in range(3))
        alt = f"after block {trace.blocks[s]}: {kept} patches kept, {merged} merged, {pruned} pruned here"
        yield TokenPanel(tokens.data_uri(picture), f"block {trace.blocks[s]}: {int(trace.left[0, s])} tokens", alt)
