"""Exact batched streaming: a stream at the speed of batches, every answer as if its image had come alone.

What an image does to the reservoir depends on its own encoding and on the reservoir at that moment. So a chunk of
images is encoded at once, and their effects are replayed in order. Where the reservoir's anchors guide the encoder, an
encoding is right only if the image used the anchors it would have found alone. The replay is therefore a forecast:
images that would find other anchors are encoded again, each against its own moment of the stream, until all agree. The
first misfit always sees the true past, so every round settles at least one image; usually a few rounds suffice.

On CUDA every part is a graph, and the host reads only which images have to be encoded again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor

from lessmore.core.condense.schedule import schedule
from lessmore.core.costs import Accounting
from lessmore.core.debias import StreamMean
from lessmore.core.encoder import Encoded, PrefixState
from lessmore.core.flexible import require_one_shape
from lessmore.core.reservoir import ready_anchors, reliability
from lessmore.engines import graph_unusable
from lessmore.engines.anchor_prediction import Forecast, used
from lessmore.engines.batching import Answers, copied, fitting, logits_of, outcome, padded, put_, take_rows, tensors
from lessmore.engines.capture import Record, Tape, capture
from lessmore.engines.chunk_debias import ChunkDebiased, followed, observed
from lessmore.engines.chunk_replay import Admissions, chunk_inputs, corrected, decide_all, forecast, store_all_
from lessmore.engines.packed_mean import pack
from lessmore.engines.split_encoder import Prefix, Rest, split_encoder
from lessmore.methods.registry import Outcome, Setup
from lessmore.methods.tca import TCA

SIZES = (1, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256)
"""Batch sizes in use; a batch between two of them is filled up."""
LEAST = 32
"""Chunks never shrink below this, however many images have to be encoded again."""

P = ParamSpec("P")
R = TypeVar("R")


@dataclass
class Work:
    """How much work was done."""

    images: int = 0
    again: int = 0
    """Encodings repeated from the first condensing block on."""
    walks: int = 0


class Survey(NamedTuple):
    """What follows from a chunk's encodings without changing the reservoir."""

    logits: Tensor
    """Zero-shot, [P, C]."""
    debiased: ChunkDebiased
    keys: Tensor
    """Reliabilities, [P]."""
    decisions: Admissions


class Opened(NamedTuple):
    """A chunk encoded against the present reservoir."""

    begun: PrefixState
    encoded: Encoded
    used: list[Tensor]
    """The anchors [P, D] that its condensing blocks took."""


class Checked(NamedTuple):
    """A chunk's encodings, compared with the anchors its images would find."""

    survey: Survey
    forecast: Forecast
    fit: Tensor
    """[P] bool"""


class Chunk:
    """TCA on chunks of images; state and answers are those of one image at a time."""

    facts = TCA.facts

    def __init__(
        self,
        setup: Setup,
        sizes: tuple[int, ...] = SIZES,
        prefix: Prefix | None = None,
        rest: Rest | None = None,
        record: Record | None = None,
    ) -> None:
        """Pick the encoder and record the parts.

        Args:
            setup: What the method is built from.
            sizes: Ascending batch sizes; the last is the largest chunk.
            prefix: Another encoder with the same results, up to the first condensing block; None takes the fastest.
            rest: The other half of that encoder.
            record: How parts are recorded; None records graphs on CUDA and nothing elsewhere.
        """
        self.setup, self.sizes = setup, sizes
        vision, condensation = setup.vision, setup.preset.condensation
        require_one_shape(vision.shape.flexible, "engine 'chunk'", "take engine='eager' or 'cpu'")
        plan = schedule(vision.shape.patches, len(vision.blocks), condensation)
        self.guided = condensation.uses_anchor and any(stage is not None for stage in plan[1:])
        fastest = split_encoder(vision, condensation)
        self.prefix, self.rest = prefix or fastest[0], rest or fastest[1]
        self.work = Work()
        self.size = sizes[-1]
        self._tca = TCA(setup)
        if record is None and prefix is None and rest is None and graph_unusable("tca", vision, condensation) is None:
            record = partial(capture, pool=torch.cuda.graph_pool_handle())
        self._tca.stream, self._packed = pack(self._tca.stream)
        self._tape = None if record is None else Tape(self._tca.stream.tensors(), record)
        self._open, self._check = self._recorded(self._opened), self._recorded(self._checked)
        self._again, self._close = self._recorded(self._repeated), self._recorded(self._closed)
        self._pass = self._recorded(self._passed)

    def _recorded(self, part: Callable[P, R]) -> Callable[P, R]:
        return part if self._tape is None else self._tape.recorded(part)

    def predict(self, pixels: Tensor) -> Outcome:
        """Answer one preprocessed image [1, 3, H, W] and adapt."""
        return self.predict_many(pixels)[0]

    def predict_many(self, pixels: Tensor) -> list[Outcome]:
        """Answer any number of images `[B, 3, H, W]` in their order."""
        return [answer for answers in self.predict_chunks([pixels]) for answer in answers]

    def predict_chunks(self, batches: Iterable[Tensor]) -> Iterator[Sequence[Outcome]]:
        """Answers to batches of images in order, at most `size` at a time; the state includes all images answered."""
        for pixels in batches:
            start = 0
            while start < len(pixels):
                size = self.size
                yield self._answer(pixels[start : start + size])
                start += size

    def reset(self) -> None:
        """Forget the stream."""
        self._tca.reset()

    def state(self) -> dict[str, Tensor]:
        """The state's tensors, copied."""
        return self._tca.state()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a `state()`; the tensors keep their places, which the recordings use."""
        self._tca.restore(state)

    def slots(self) -> Tensor:
        """Which slots of the reservoir are in use, [C, M] bool."""
        return self._tca.slots()

    def stream_mean(self) -> StreamMean:
        """What debiasing remembers; zeros where it is off."""
        return self._tca.stream_mean()

    def macs(self, accounting: Accounting = "matmul") -> int:
        """Multiply-accumulates of one image that is encoded once; `work` counts those encoded again."""
        return self._tca.macs(accounting)

    def _answer(self, pixels: Tensor) -> Answers:
        """A chunk of images [n, 3, H, W]."""
        n = len(pixels)
        if fitting(self.sizes, n) > n:
            pixels = pixels[padded(range(n), self.sizes)]
        images = torch.full((), n, device=pixels.device)
        self.work.images += n
        if self.guided:
            return Answers(copied(self._agree(pixels, n, images)), n)
        self.work.walks += 1
        return Answers(copied(self._pass(pixels, images)), n)

    def _agree(self, pixels: Tensor, n: int, images: Tensor) -> Outcome:
        """Encode until every image used the anchors it finds after the images before it."""
        opened = self._open(pixels)
        settled = again = 0
        while True:
            survey, forecast, fit = self._check(opened, images)
            self.work.walks += 1
            misfits = [i for i in self._misfits(fit) if settled <= i < n]
            if not misfits:
                break
            settled = misfits[0] + 1
            again += len(misfits)
            opened = self._repeat(opened, forecast, misfits)
        self.work.again += again
        self._adjust(again / n)
        return self._close(opened.encoded, survey, images)

    def _misfits(self, fit: Tensor) -> list[int]:
        """The only point at which the host waits for the device."""
        return [i for i, fits in enumerate(fit.tolist()) if not fits]

    def _repeat(self, opened: Opened, forecast: Forecast, images: list[int]) -> Opened:
        """Encode some images of a chunk again, in place."""
        rows, source = padded(images, self.sizes), [-1] * len(opened.begun.x)
        for k, image in enumerate(images):
            source[image] = k
        told = torch.tensor([*rows, *source]).to(opened.begun.x.device, non_blocking=True)
        return self._again(opened, forecast, *told.split([len(rows), len(source)]))

    def _adjust(self, share: float) -> None:
        """Halve the chunks if images are encoded again more than once on average, double them if few are."""
        if share > 1:
            self.size = max(self.size // 2, min(LEAST, self.sizes[-1]))
        elif share < 0.5:
            self.size = min(self.size * 2, self.sizes[-1])

    # The parts of a chunk, as functions of tensors alone.

    def _opened(self, pixels: Tensor) -> Opened:
        reservoir, ready = self._tca.stream.reservoir, self.setup.preset.adaptation.ready
        begun, anchors = self.prefix(pixels), ready_anchors(reservoir, ready)
        encoded = self.rest(begun, anchors)
        return Opened(begun, encoded, used(encoded, anchors))

    def _surveyed(self, encoded: Encoded, images: Tensor) -> Survey:
        state, config = self._tca.stream, self.setup.preset.adaptation
        logits = logits_of(encoded, self.setup)
        debiased = observed(state, encoded, logits, images, self.setup, self._packed)
        keys = reliability(debiased.logits, config.key).to(state.reservoir.keys.dtype)
        known = chunk_inputs(state.reservoir, encoded, debiased.logits, keys, images, config)
        return Survey(logits, debiased, keys, decide_all(state.reservoir, known, config))

    def _checked(self, opened: Opened, images: Tensor) -> Checked:
        survey = self._surveyed(opened.encoded, images)
        found = self._foreseen(opened.encoded, survey.decisions)
        return Checked(survey, found, found.fits(opened.encoded, opened.used))

    def _repeated(self, opened: Opened, forecast: Forecast, rows: Tensor, source: Tensor) -> Opened:
        """rows: the images to encode again, padded, [B]; source: the place of each image there, or −1, [P]."""
        found = forecast.to(rows, source)
        part = self.rest(take_rows(opened.begun, rows), found)
        put_([*tensors(opened.encoded), *opened.used], source, [*tensors(part), *used(part, found)])
        return opened

    def _foreseen(self, encoded: Encoded, decisions: Admissions) -> Forecast:
        return forecast(self._tca.stream.reservoir, decisions, encoded.tokens, self.setup.preset.adaptation.ready)

    def _closed(self, encoded: Encoded, survey: Survey, images: Tensor) -> Outcome:
        logits, debiased, keys, decisions = survey
        state, config = self._tca.stream, self.setup.preset.adaptation
        means = None if config.debias == "off" else followed(state, encoded, images)
        better = corrected(state.reservoir, decisions, encoded.tokens, debiased, means, self._tca.weights, config)
        store_all_(state.reservoir, decisions, encoded, keys, images)
        if means is not None:
            for ours, theirs in zip(state.stream_mean, debiased.stream_mean, strict=True):
                ours.copy_(theirs)
            state.token_mean.copy_(means[-1])
        return outcome(logits, debiased.logits, better, decisions.stored, encoded.steps, self.setup)

    def _passed(self, pixels: Tensor, images: Tensor) -> Outcome:
        encoded = self.rest(self.prefix(pixels), None)
        return self._closed(encoded, self._surveyed(encoded, images), images)
