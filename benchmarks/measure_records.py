"""What the processes beside the GPU do for `measure.py`: decode images, and write runs as `lessmore run` does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from lessmore.cli.run import line
from lessmore.core.encoder import Encoded
from lessmore.data.dataset import Dataset
from lessmore.data.stream import Stream, make_stream
from lessmore.engines.answered import judged, read
from lessmore.lab.job import prepare_job
from lessmore.lab.sampler import Sampler, _answer_row
from lessmore.lab.spec import RunSpec
from lessmore.lab.store import Store
from lessmore.lab.summary import header, summarise_run
from lessmore.methods import FromEncoded, Outcome, Setup, make_method
from lessmore.models.vlm import VLM

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Bench:
    """What every process inherits."""

    vlm: VLM
    """On the GPU; of its weights nothing but names and shapes may be touched here."""
    datasets: Mapping[str, Dataset]
    setups: Mapping[str, Setup]
    """On the CPU, by data set."""
    environment: Mapping[str, Any]
    output: Path


class Answers(NamedTuple):
    """A stream answered, in its order."""

    scores: Array
    """[n, C]; where the method itself is still to be asked, the features [n, E] that it goes on from."""
    before: Array
    """Probabilities without adaptation, [n, C]."""
    plain: Array
    """Those of matched zero-shot, [n, C]."""
    kept: list[int]
    """Tokens that left the last block, [n]."""
    evidence: Array | None = None
    """Logits by which answers are judged, [n, C], where the method has its own."""


class Costs(NamedTuple):
    """What a method says it costs, where it is not at hand."""

    paper: int
    matmul: int

    def macs(self, accounting: str) -> int:
        """Multiply-accumulates of one image."""
        return int(getattr(self, accounting))


class Run(NamedTuple):
    """What a summary asks of a sampler."""

    job: object
    method: Costs


_bench: Bench


def begin(bench: Bench) -> None:
    """What a process holds."""
    global _bench
    _bench = bench
    torch.set_num_threads(1)


@lru_cache(maxsize=64)
def stream_of(dataset: str, corruption: str | None, limit: int | None) -> Stream:
    """The images of a stream, in the order of seed 0."""
    return make_stream(_bench.datasets[dataset], "iid", 0, limit, corruption)


def image(where: tuple[str, str | None, int | None], i: int) -> Image.Image:
    """Image `i` of a stream, decoded and corrupted."""
    return stream_of(*where).image(i)


def pixels(where: tuple[str, str | None, int | None], i: int) -> Array:
    """The same, preprocessed: [3, H, W]."""
    return _bench.vlm.preprocess(image(where, i)).numpy()


def tda(spec: RunSpec, features: Array) -> Array:
    """Probabilities [n, C] of a method that goes on from features [n, E], one after the other."""
    setup = setup_for(_bench.setups[spec.dataset], spec)
    method = cast("FromEncoded", make_method(spec.method, setup))
    none = torch.empty(1, 0, 0)
    rows = torch.from_numpy(features).split(1)
    return torch.stack([method.answer(Encoded(row.clone(), none, [])).scores for row in rows]).numpy()


def setup_for(setup: Setup, spec: RunSpec) -> Setup:
    """The setup of a data set with a run's settings."""
    return replace(setup, preset=spec.settings(), options=spec.own_options())


@torch.no_grad()
def record(spec: RunSpec, answers: Answers, costs: Costs) -> str:
    """Write a run's folder; returns what came of it in one line."""
    job = prepare_job(spec, _bench.vlm, _bench.datasets[spec.dataset])
    scores = tda(spec, answers.scores) if spec.method == "tda" else answers.scores
    setup = _bench.setups[spec.dataset]
    each = [torch.from_numpy(np.asarray(part)) for part in (scores, answers.before, answers.plain)]
    with Store(_bench.output / "runs" / job.name, job.key) as store:
        store.begin(header(job, dict(_bench.environment)), restart=True)
        temperature, evidence = 1.0, None if answers.evidence is None else torch.from_numpy(answers.evidence)
        for i, (ours, before, plain) in enumerate(zip(*each, strict=True)):
            outcome = Outcome(before, ours, before, None, [], None if evidence is None else evidence[i])
            answered = judged(read(outcome, setup, lambda plain=plain: plain), temperature, i)
            temperature = answered.temperature
            row = _answer_row(answered, plain, answers.kept[i])
            store.append({**about(job.stream, i), **row}, {"i": i, "encoded": False})
        found = summarise_run(cast("Sampler", Run(job, costs)), store, dict(_bench.environment))
        found["cost"]["peak_memory_mb"] = None  # of this process, which did not answer anything
        store.finish(found)
    return line(found)


def about(stream: Stream, i: int) -> dict[str, Any]:
    """What a sample's line begins with."""
    return {"i": i, "id": stream.id(i), "label": stream.label(i), "domain": stream.visits[i].domain}
