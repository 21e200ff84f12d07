"""What runs will cost before any is started: images, multiply-accumulates, and time on this machine.

Two steps are timed: the plain encoding of one image, and one answer from a stored encoding. Other encodings are scaled
by their multiply-accumulates. Encodings that runs share count once, because they are made once.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from lessmore.config import Condensation, Preset
from lessmore.core.encoder import PLAIN, encode
from lessmore.core.vit import ViT
from lessmore.data.dataset import Dataset
from lessmore.data.orders import CLEAN
from lessmore.data.registry import spec_of
from lessmore.data.stream import make_stream
from lessmore.lab.cache import canonical_condensation
from lessmore.lab.latency import seconds_of
from lessmore.lab.spec import RunSpec
from lessmore.lab.weightless import blank_method
from lessmore.methods import FromEncoded, Setup, make_method, method_options
from lessmore.models.vlm import VLM
from lessmore.paper.plan import DatasetCache

_ROUNDS = 3


@dataclass(frozen=True)
class Throughput:
    """The time that this machine takes for one image."""

    seconds_per_gmac: float
    answer: float
    """Seconds of an answer from a stored encoding."""
    plain_ms: float


@dataclass(frozen=True)
class Cost:
    """The cost of one run."""

    images: int
    gmacs: float
    """Of one image: all passes of the method, including encodings that other runs share."""
    new_gmacs: float
    """Of the whole run: without what earlier runs encode, and with matched zero-shot where it is new."""
    available: bool
    """Whether its data exist."""

    def seconds(self, pace: Throughput) -> float:
        """The time it takes at a machine's throughput."""
        return self.new_gmacs * pace.seconds_per_gmac + self.images * pace.answer


def estimate_costs(runs: Mapping[Hashable, RunSpec], vlm: VLM, datasets: DatasetCache) -> dict[Hashable, Cost]:
    """Costs of runs, in their order; what earlier runs encode costs later ones nothing.

    Args:
        runs: The runs, by identity.
        vlm: The model of all of them; its weights are not needed.
        datasets: Opens their data; a missing data set is estimated from its description.
    """
    encoded: set[Hashable] = set()
    counted: dict[Hashable, _Work] = {}
    return {key: _cost(spec, vlm, datasets(spec.dataset), encoded, counted) for key, spec in runs.items()}


class _Work(NamedTuple):
    """What a method does with one image, in GMACs."""

    total: float
    encoding: float
    plain: float
    """The encoding of matched zero-shot."""
    shares: bool
    """Whether runs share its encodings."""
    condensation: Condensation


def _cost(spec: RunSpec, vlm: VLM, data: Dataset | str, encoded: set[Hashable], counted: dict[Hashable, _Work]) -> Cost:
    images, classes = _size(spec, data)
    settings, own = spec.settings(vlm.vision.shape), spec.own_options()
    # A method is built to be counted, and a table asks for the same one on many streams and seeds.
    key = spec.method, settings, method_options(spec.method, own), classes
    if key not in counted:
        counted[key] = _work(spec.method, settings, own, vlm, classes)
    work = counted[key]
    seen = (spec.dataset, spec.corruption or CLEAN, spec.order if ":" in spec.order else "", spec.precision)
    # A run pays for its encodings unless an earlier run made them, and for matched zero-shot in the same way.
    new = work.total if not work.shares or (seen, work.condensation) not in encoded else work.total - work.encoding
    new += work.plain if (seen, PLAIN) not in encoded and (not work.shares or work.condensation != PLAIN) else 0.0
    encoded |= {(seen, PLAIN), (seen, work.condensation)} if work.shares else {(seen, PLAIN)}
    return Cost(images, work.total, images * new, not isinstance(data, str))


def _work(name: str, settings: Preset, own: Mapping[str, Any], vlm: VLM, classes: tuple[str, ...]) -> _Work:
    setup = Setup(vlm.vision, torch.zeros(len(classes), vlm.vision.shape.embed), 1.0, settings)
    plain = Setup(vlm.vision, setup.text, 1.0, settings._replace(condensation=PLAIN))
    method = blank_method(name, vlm, settings, classes, own)
    shares = isinstance(method, FromEncoded) and method.wants is not None
    total, encoding, bare = (macs / 1e9 for macs in (method.macs(), setup.image_macs(), plain.image_macs()))
    return _Work(total, encoding, bare, shares, canonical_condensation(settings.condensation))


def _size(spec: RunSpec, data: Dataset | str) -> tuple[int, tuple[str, ...]]:
    """Number of images, and the classes; for a missing data set, from its description."""
    if isinstance(data, str):
        known = spec_of(spec.dataset)
        share = spec.limit if isinstance(spec.limit, float) and spec.limit < 1 else None
        wanted = known.images if spec.limit is None else round(share * known.images) if share else int(spec.limit)
        return min(wanted, known.images), known.classes
    return len(make_stream(data, spec.order, spec.seed, spec.limit, spec.corruption)), data.classes


@torch.no_grad()
def measure_rates(tower: ViT, threads: int, classes: int = 100) -> Throughput:
    """Time a few real steps.

    Args:
        tower: The vision tower.
        threads: As many as a run will have.
        classes: C of the answer that is timed.
    """
    before, device = torch.get_num_threads(), tower.positions.device
    torch.set_num_threads(threads)
    try:
        side = tower.shape.image_size
        pixels = torch.zeros(1, 3, side, side).to(tower.positions)
        text = torch.nn.functional.normalize(torch.ones(classes, tower.shape.embed), dim=-1).to(tower.positions)
        setup = Setup(tower, text, 1.0, RunSpec("", "", R=1.0).settings())
        method = make_method("tca", setup)
        assert isinstance(method, FromEncoded)
        encoded = encode(tower, pixels, PLAIN)
        plain = _median(lambda: encode(tower, pixels, PLAIN), device)
        answer = _median(lambda: method.answer(encoded), device)
    finally:
        torch.set_num_threads(before)
    return Throughput(plain / (setup.image_macs() / 1e9), answer, 1e3 * plain)


def _median(step: Callable[[], object], device: torch.device) -> float:
    times = [seconds_of(step, device) for _ in range(_ROUNDS + 1)]
    return statistics.median(times[1:])
