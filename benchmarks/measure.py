"""Do all runs of some tables in one process on a GPU; the tables follow with --collect.

    python benchmarks/measure.py options budget --model MODEL --root DATA --dataset eurosat --limit 600 --output OUT
    lessmore reproduce options budget --model MODEL --root DATA --dataset eurosat --limit 600 --output OUT --collect \
        --engine eager

Left to itself a run is a process that encodes images one by one. Here one process has the GPU to itself and all images
on it. It encodes a stream in batches, once for every condensation, and TCA goes through each order of it by the exact
steps of the engine `chunk`; where anchors guide the encoder, that engine encodes again what does not fit. Tent and SAR
take the steps of all streams together, methods with the same views share them (`measure_gradients.py`). Other processes
decode, let TDA go on from features, and write what `lessmore run` would have written, times apart
(`measure_records.py`).

Batches differ from one by one by rounding, which now and then decides which of two nearly tied tokens goes.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.stats
import torch
import torchmetrics.functional.classification
from measure_gradients import online, viewed
from measure_records import Answers, Bench, Costs, begin, image, pixels, record, setup_for
from torch import Tensor

from lessmore.config import Condensation
from lessmore.core import encoder
from lessmore.core.encoder import PLAIN, Encoded
from lessmore.core.vit import ViT
from lessmore.data.dataset import Dataset
from lessmore.data.stream import Stream, make_stream
from lessmore.engines.chunk import SIZES, Chunk
from lessmore.lab.cache import canonical_condensation
from lessmore.lab.job import prepare_job
from lessmore.lab.provenance import environment
from lessmore.lab.spec import RunSpec
from lessmore.methods import Outcome, Setup, make_method
from lessmore.methods.zeroshot import zero_shot_logits
from lessmore.models.load import load
from lessmore.paper.plan import DatasetCache, ReproductionRequest, distinct_runs, finished_runs, plan_table
from lessmore.paper.tables import find_table

_IMPORTED_BEFORE_THE_FORK = (scipy.stats, torchmetrics.functional.classification)
_KINDS = {
    **dict.fromkeys(("tpt", "c-tpt"), "prompts"),
    **dict.fromkeys(("tent", "sar"), "online"),
    **dict.fromkeys(("zeroshot", "tda", "tca"), "encoded"),
    **dict.fromkeys(("mta", "zero"), "views"),
}
_ORDER = ("prompts", "online", "encoded", "guided", "views")
"""In which the kinds of runs are done."""
Where = tuple[str, str | None, int | None]
"""Data set, corruption and limit: which images."""


class Pictures(NamedTuple):
    """The images of a stream, in the order of seed 0."""

    ids: dict[str, int]
    pixels: Tensor
    """[n, 3, H, W]"""
    plain: Tensor
    """Features without condensation, [n, E]."""


class Codes(NamedTuple):
    """Their encodings under one condensation."""

    feature: Tensor
    tokens: Tensor
    kept: list[int]


class Machine:
    """The GPU's side of it."""

    def __init__(self, bench: Bench, specs: Sequence[RunSpec], pool: ProcessPoolExecutor, batch: int) -> None:
        self.bench, self.pool, self.batch = bench, pool, batch
        self.vision = bench.vlm.vision
        text = {name: setup.text.to(self.vision.positions) for name, setup in bench.setups.items()}
        on_device = {"vision": self.vision, "vlm": bench.vlm}
        self.setups = {name: replace(s, text=text[name], **on_device) for name, s in bench.setups.items()}
        self.written: list[Future[str]] = []
        self.order = functools.cache(self._order)
        self.pictures = {where: self._pictures(where) for where in dict.fromkeys(map(where_of, specs))}

    def _pictures(self, where: Where) -> Pictures:
        stream = stream_at(self.bench, where, 0)
        made = self.pool.map(partial(pixels, where), range(len(stream)), chunksize=10)
        there = torch.from_numpy(np.stack(list(made))).to(self.vision.positions)
        ids = {stream.id(i): i for i in range(len(stream))}
        return Pictures(ids, there, codes(self.vision, there, PLAIN, self.batch).feature)

    def setup(self, spec: RunSpec) -> Setup:
        """What the run's method is built from."""
        return setup_for(self.setups[spec.dataset], spec)

    def _order(self, where: Where, seed: int) -> list[int]:
        """The images of a stream in the order of a seed."""
        stream, ids = stream_at(self.bench, where, seed), self.pictures[where].ids
        return [ids[stream.id(i)] for i in range(len(stream))]

    def probabilities(self, spec: RunSpec, feature: Tensor) -> Tensor:
        """Zero-shot, of features [n, E]: [n, C]."""
        setup = self.setups[spec.dataset]
        none = feature.new_empty(len(feature), 0, 0)
        return zero_shot_logits(Encoded(feature, none, []), setup.text, setup.logit_scale).softmax(dim=-1)

    def hand_over(
        self, spec: RunSpec, scores: Tensor, before: Tensor, kept: Sequence[int], evidence: Tensor | None = None
    ) -> None:
        """Have a run written; scores, before and evidence [n, C] in its order, kept in the order of seed 0."""
        order = self.order(where_of(spec), spec.seed)
        plain = self.probabilities(spec, self.pictures[where_of(spec)].plain)[order]
        ours, unadapted, matched = (part.float().cpu().numpy() for part in (scores, before, plain))
        method = make_method(spec.method, self.setup(spec))
        costs = Costs(method.macs("paper"), method.macs("matmul"))
        judged_by = None if evidence is None else evidence.float().cpu().numpy()
        answers = Answers(ours, unadapted, matched, [kept[i] for i in order], judged_by)
        self.written.append(self.pool.submit(record, spec, answers, costs))

    def encoded(self, specs: Sequence[RunSpec]) -> None:
        """Runs that go on from the encodings of one stream under one condensation."""
        where, condensation = where_of(specs[0]), condensation_of(specs[0])
        found = codes(self.vision, self.pictures[where].pixels, condensation, self.batch)
        for spec in specs:
            rows = torch.tensor(self.order(where_of(spec), spec.seed), device=found.feature.device)
            before = self.probabilities(spec, found.feature[rows])
            scores, evidence = before if spec.method == "zeroshot" else found.feature[rows], None
            if spec.method == "tca":
                scores, evidence = walked(self.setup(spec), found, rows)
            self.hand_over(spec, scores, before, found.kept, evidence)

    def guided(self, specs: Sequence[RunSpec]) -> None:
        """A run of TCA whose anchors guide the encoder."""
        (spec,) = specs
        setup, config = self.setup(spec), spec.settings().condensation
        first = partial(encoder.begin, self.vision, config=config)
        chunk = Chunk(setup, SIZES, first, lambda begun, anchors: encoder.resume(self.vision, begun, config, anchors))
        order = self.order(where_of(spec), spec.seed)
        answers = chunk.predict_many(self.pictures[where_of(spec)].pixels[order])
        last = torch.stack([answer.steps[-1].target.amax() for answer in answers])
        kept = dict(zip(order, (last + 1 + self.vision.shape.first).tolist(), strict=True))
        scores, before = (torch.stack(part) for part in ([a.scores for a in answers], [a.zero_shot for a in answers]))
        self.hand_over(spec, scores, before, [kept[i] for i in range(len(order))], evidence_of_all(answers))
        print(f"again {chunk.work.again / chunk.work.images:.2f}, walks {chunk.work.walks}", flush=True)

    def online(self, specs: Sequence[RunSpec]) -> None:
        """Tent or SAR, all streams together."""
        orders = [self.order(where_of(spec), spec.seed) for spec in specs]
        seen = [self.pictures[where_of(spec)].pixels[order] for spec, order in zip(specs, orders, strict=True)]
        answers = online([self.setup(spec) for spec in specs], seen, specs[0].method)
        for spec, scores in zip(specs, answers, strict=True):
            self.unreduced(spec, scores)

    def by_views(self, specs: Sequence[RunSpec]) -> None:
        """Methods on one stream that look at the same views of its images."""
        methods = [make_method(spec.method, self.setup(spec)) for spec in specs]
        where, seed = where_of(specs[0]), specs[0].seed
        originals = self.pool.map(partial(image, where), self.order(where, seed), chunksize=4)
        answers = [viewed(methods, methods[0].views(original, seed)) for original in originals]  # type: ignore[attr-defined]
        for spec, scores in zip(specs, zip(*answers, strict=True), strict=True):
            self.unreduced(spec, torch.stack(scores))

    def unreduced(self, spec: RunSpec, scores: Tensor) -> None:
        """Hand over a run of a method that sees all tokens."""
        before = self.probabilities(spec, self.pictures[where_of(spec)].plain[self.order(where_of(spec), spec.seed)])
        self.hand_over(spec, scores, before, [self.vision.shape.tokens] * len(before))


def stream_at(bench: Bench, where: Where, seed: int) -> Stream:
    """The stream of some images in the order of a seed."""
    dataset, corruption, limit = where
    return make_stream(bench.datasets[dataset], "iid", seed, limit, corruption)


def where_of(spec: RunSpec) -> Where:
    """Which images a run sees."""
    return spec.dataset, spec.corruption, spec.limit  # type: ignore[return-value]


def condensation_of(spec: RunSpec) -> Condensation:
    """What the run's images are encoded under."""
    return canonical_condensation(spec.settings().condensation)


def codes(vision: ViT, images: Tensor, config: Condensation, batch: int) -> Codes:
    """Encode images [n, 3, H, W] in batches."""
    features, tokens, kept = [], [], []
    for part in images.split(batch):
        feature, token, steps, _ = encoder.encode(vision, part, config)
        features.append(feature)
        tokens.append(token)
        last = steps[-1].target.flatten(1).amax(1) + 1 + vision.shape.first if steps else None
        kept += [vision.shape.tokens] * len(part) if last is None else last.tolist()
    return Codes(torch.cat(features), torch.cat(tokens), kept)


def walked(setup: Setup, found: Codes, rows: Tensor) -> tuple[Tensor, Tensor | None]:
    """TCA's probabilities and the logits it judges them by, [n, C] each, for encodings in the order of rows [n]."""
    chunk = Chunk(
        setup,
        (len(rows),),
        prefix=lambda chosen: chosen,  # type: ignore[arg-type,return-value]
        rest=lambda chosen, _: Encoded(found.feature[chosen], found.tokens[chosen], []),  # type: ignore[index]
    )
    answers = chunk.predict_many(rows)
    return torch.stack([answer.scores for answer in answers]), evidence_of_all(answers)


def evidence_of_all(answers: Sequence[Outcome]) -> Tensor | None:
    """The logits by which answers are judged, [n, C]; None where the method has none of its own."""
    found = [answer.evidence for answer in answers if answer.evidence is not None]
    return torch.stack(found) if found else None


def tasks(machine: Machine, specs: Sequence[RunSpec]) -> Iterator[tuple[str, Callable[[], None]]]:
    """What there is to do, in the order in which it should be done, so that what is cut off is whole rows."""
    groups: dict[Any, list[RunSpec]] = defaultdict(list)
    for spec in specs:
        config, where = condensation_of(spec), where_of(spec)
        kind = "guided" if spec.method == "tca" and config.uses_anchor else _KINDS[spec.method]
        apart = {"online": (spec.method,), "encoded": (config, where), "guided": (spec.settings(), where, spec.seed)}
        groups[kind, apart.get(kind, (where,))].append(spec)
    ways = {"online": machine.online, "encoded": machine.encoded, "guided": machine.guided}
    datasets = list(dict.fromkeys(spec.dataset for spec in specs))
    for kind, what in sorted(groups, key=lambda key: (_ORDER.index(key[0]), datasets.index(groups[key][0].dataset))):
        first = groups[kind, what][0]
        name = f"{kind} {first.method} {first.preset} {first.R} {first.reducer} {dict(first.options)} {where_of(first)}"
        yield name, partial(ways.get(kind, machine.by_views), groups[kind, what])


def prepared(specs: Sequence[RunSpec], datasets: DatasetCache, output: Path) -> Bench:
    """Model, data sets and class embeddings, each once."""
    here = load(specs[0].model)
    vlm = here.to(specs[0].device)
    vlm.fingerprint()  # now, for processes that are forked cannot read the weights
    first = {spec.dataset: spec for spec in reversed(specs)}
    datasets = {name: dataset for name in first if isinstance(dataset := datasets(name), Dataset)}
    made = {name: prepare_job(first[name], vlm, dataset).setup(cache=False) for name, dataset in datasets.items()}
    setups = {name: replace(setup, text=setup.text.cpu(), vision=here.vision, vlm=None) for name, setup in made.items()}
    return Bench(vlm, datasets, setups, environment(vlm.device), output)


def arguments() -> argparse.Namespace:
    """What was asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+")
    parser.add_argument("--model", required=True)
    parser.add_argument("--root", required=True)
    parser.add_argument("--dataset", nargs="+", required=True)
    parser.add_argument("--corruption", nargs="+", default=["none"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--limit", type=int)
    parser.add_argument("--rows", nargs="*", default=[], help="patterns, as for lessmore reproduce")
    parser.add_argument("--methods", nargs="+", default=list(_KINDS), help="do the runs of these alone")
    parser.add_argument("--output", required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--processes", type=int, default=14)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing new after so many")
    return parser.parse_args()


def missing(args: argparse.Namespace, datasets: DatasetCache) -> list[RunSpec]:
    """The runs that the tables need and that are not done, planned as `lessmore reproduce` plans."""
    common = {"root": args.root, "limit": args.limit, "preset": "fixed", "device": args.device, "engine": "eager"}
    corruptions = tuple(None if name == "none" else name for name in args.corruption)
    request = ReproductionRequest(
        args.model,
        tuple(args.dataset),
        corruptions,
        seeds=tuple(args.seeds),
        rows=tuple(args.rows),
        common=common,
    )
    runs = distinct_runs(plan_table(find_table(name), request, datasets) for name in args.tables)
    done = finished_runs(Path(args.output) / "runs")
    return [spec for key, spec in runs.items() if key not in done and spec.method in args.methods]


@torch.no_grad()
def main() -> None:
    """Do what is not done yet."""
    begun, args = time.monotonic(), arguments()
    datasets = DatasetCache(Path(args.root))
    specs = missing(args, datasets)
    bench = prepared(specs, datasets, Path(args.output))
    with ProcessPoolExecutor(args.processes, get_context("fork"), begin, (bench,)) as pool:
        machine = Machine(bench, specs, pool, args.batch)
        print(f"{len(specs)} runs; ready after {time.monotonic() - begun:.0f} s", flush=True)
        for name, task in tasks(machine, specs):
            start = time.monotonic()
            if start - begun > args.seconds:
                print(f"no time for {name}", flush=True)
                continue
            task()
            print(f"{start - begun:.0f} s: {name} took {time.monotonic() - start:.2f} s", flush=True)
        for future in machine.written:
            print(future.result(), flush=True)


if __name__ == "__main__":
    main()
