"""Exact batched streaming: a stream at the speed of batches, every answer as if its image had come alone.

What an image does to the reservoir follows from its own encoding and the reservoir as it then stands, so a chunk of
images is encoded at once, and their effects are walked through in order on the host. Where the reservoir's anchors
guide the encoder, an encoding is right only if its image took the anchors it would have found. So the walk is a
forecast: images that do not fit what they would find by it are encoded again, each against its own moment of the
stream, until all fit. The first misfit always finds the true past, so every round settles at least one image for good;
usually a few rounds settle the chunk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lessmore.condense.schedule import schedule
from lessmore.encoder import Begun, Encoded
from lessmore.engine.batch import fitting, logits_of, outcome, padded, put_, split, take
from lessmore.engine.forecast import Forecast
from lessmore.engine.halves import Prefix, Rest, halves
from lessmore.engine.moments import Moments, figures, newcomers, shelves, store_
from lessmore.engine.walk import Ledger, Walk
from lessmore.eval.flops import Accounting
from lessmore.methods.registry import Outcome, Setup
from lessmore.methods.tca import TCA
from lessmore.reservoir import reliability

SIZES = (1, 4, 16, 64, 256)
"""Batch sizes that occur; smaller batches are filled up."""
LEAST = 32
"""Chunks do not shrink below this, however much is encoded again."""


@dataclass
class Work:
    """How much was done."""

    images: int = 0
    again: int = 0
    """Encodings repeated from the first condensing block on."""
    walks: int = 0


class Ahead(NamedTuple):
    """A chunk of n images as far as it can be taken before the one in front of it is finished."""

    n: int
    begun: Begun
    encoded: Encoded | None
    """None where anchors guide the encoder."""


class Figures(NamedTuple):
    """What decisions need of an encoded chunk, on its way to the host."""

    host: Tensor
    logits: Tensor
    keys: Tensor
    arrival: torch.cuda.Event | None
    moment: int
    """The state they were taken against."""


class Settled(NamedTuple):
    """A chunk whose encodings and effects are final, the reservoir not yet changed."""

    encoded: Encoded
    figures: Figures
    walk: Walk


class Chunk:
    """TCA on chunks of images; state and answers are those of one image at a time."""

    facts = TCA.facts

    def __init__(
        self, setup: Setup, sizes: tuple[int, ...] = SIZES, prefix: Prefix | None = None, rest: Rest | None = None
    ) -> None:
        """sizes: ascending; the largest is the largest chunk. prefix, rest: other encoders with the same results."""
        self.setup, self.sizes = setup, sizes
        vision, condensation = setup.vision, setup.preset.condensation
        plan = schedule(vision.shape.patches, len(vision.blocks), condensation)
        self.guided = condensation.uses_anchor and any(stage is not None for stage in plan[1:])
        fastest = halves(vision, condensation)
        self.prefix, self.rest = prefix or fastest[0], rest or fastest[1]
        self.work = Work()
        self.size = sizes[-1]
        self._tca = TCA(setup)
        self._moment = 0
        self._ledger = self._mirror()

    def predict(self, pixels: Tensor) -> Outcome:
        """Answer one preprocessed image [1, 3, H, W] and adapt."""
        return self.predict_many(pixels)[0]

    def predict_many(self, pixels: Tensor) -> list[Outcome]:
        """Answer images [B, 3, H, W] in their order, as many as there are."""
        return [answer for answers in self.predict_chunks([pixels]) for answer in answers]

    def predict_chunks(self, batches: Iterable[Tensor]) -> Iterator[list[Outcome]]:
        """Answers to batches of images, in order, in lists of at most `size`.

        One chunk is always ahead: the device encodes it while the host decides about the one before. When answers
        come, the state is the one after their images.
        """
        ahead: tuple[Ahead, Figures | None] | None = None
        for pixels in self._cut(batches):
            coming = self._start(pixels)
            answers = None if ahead is None else self._finish(*ahead)
            ahead = coming, None if coming.encoded is None else self._figures(coming.encoded)
            if answers is not None:
                yield answers
        if ahead is not None:
            yield self._finish(*ahead)

    def reset(self) -> None:
        """Empty the reservoir."""
        self._tca.reset()
        self._ledger = self._mirror()

    def state(self) -> dict[str, Tensor]:
        """The reservoir's tensors, copied."""
        return self._tca.state()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a `state()`."""
        self._tca.restore(state)
        self._ledger = self._mirror()

    def slots(self) -> Tensor:
        """Which slots of the reservoir are in use, [C, M] bool."""
        return self._tca.slots()

    def macs(self, accounting: Accounting = "matmul") -> int:
        """Of one image that is encoded once; `work` says how many were encoded again."""
        return self._tca.macs(accounting)

    def _mirror(self) -> Ledger:
        """The ledger of the reservoir as it stands."""
        self._moment += 1
        state, config = self._tca.reservoir, self.setup.preset.adaptation
        return Ledger(shelves(state), config.M, config.strategy, int(state.step))

    def _cut(self, batches: Iterable[Tensor]) -> Iterator[Tensor]:
        for pixels in batches:
            start = 0
            while start < len(pixels):
                size = self.size
                yield pixels[start : start + size]
                start += size

    def _start(self, pixels: Tensor) -> Ahead:
        """What does not depend on the reservoir."""
        n = len(pixels)
        if fitting(self.sizes, n) > n:
            pixels = pixels[padded(range(n), self.sizes)]
        begun = self.prefix(pixels)
        return Ahead(n, begun, None if self.guided else self.rest(begun, None))

    def _figures(self, encoded: Encoded) -> Figures:
        """Take the figures of a chunk and send them to the host."""
        config, state = self.setup.preset.adaptation, self._tca.reservoir
        logits = logits_of(encoded, self.setup)
        keys = reliability(logits, config.key).to(state.keys.dtype)
        table = figures(state, encoded, logits, keys, config)
        host = table.to("cpu", non_blocking=table.is_cuda)
        arrival = None
        if table.is_cuda:
            arrival = torch.cuda.Event()
            arrival.record()
        return Figures(host, logits, keys, arrival, self._moment)

    def _walk(self, figures: Figures, n: int) -> Walk:
        """Decide about n images."""
        if figures.arrival is not None:
            figures.arrival.synchronize()
        self.work.walks += 1
        return self._ledger.walk(newcomers(figures.host, n))

    def _finish(self, ahead: Ahead, figures: Figures | None) -> list[Outcome]:
        """Settle a chunk, answer it, and let the reservoir follow."""
        n, again = ahead.n, self.work.again
        if ahead.encoded is None:
            settled = self._agree(ahead)
        else:
            if figures is None or figures.moment != self._moment:
                figures = self._figures(ahead.encoded)
            settled = Settled(ahead.encoded, figures, self._walk(figures, n))
        answers = self._answers(settled, n)
        self._commit(settled, n)
        self.work.images += n
        self._adjust((self.work.again - again) / n)
        return answers

    def _agree(self, ahead: Ahead) -> Settled:
        """Encode until every image took the anchors that it finds when the images before it have done their part."""
        n, begun = ahead.n, ahead.begun
        state, ready = self._tca.reservoir, self.setup.preset.adaptation.ready
        P = len(begun.x)
        nothing = state.anchors.new_zeros(P, *state.means.shape[1:])
        forecast = Moments(self._ledger.standstill(), state, P).forecast(nothing, ready)
        encoded = self.rest(begun, forecast)
        used = forecast.used(encoded)
        settled = 0
        while True:
            figures = self._figures(encoded)
            walk = self._walk(figures, n)
            moments = Moments(walk, state, P)
            forecast = moments.forecast(encoded.tokens, ready)
            fit = forecast.fits(encoded, used)[:n].tolist()
            misfits = [i for i in range(settled, n) if not fit[i]]
            if not misfits:
                return Settled(encoded, figures, walk)
            settled = misfits[0] + 1
            self.work.again += len(misfits)
            self._repeat(begun, encoded, misfits, forecast)
            rows = torch.tensor(misfits, device=state.ids.device)
            for old, new in zip(used, moments.forecast(encoded.tokens, ready).used(encoded), strict=True):
                old[rows] = new[rows]

    def _repeat(self, begun: Begun, encoded: Encoded, images: list[int], forecast: Forecast) -> None:
        """Encode some images of a chunk again, in place."""
        rows = torch.tensor(padded(images, self.sizes), device=begun.x.device)
        part = self.rest(take(begun, rows), forecast.to(images, len(rows)))
        put_(encoded, rows[: len(images)], part)

    def _answers(self, settled: Settled, n: int) -> list[Outcome]:
        encoded, figures, walk = settled
        state, config = self._tca.reservoir, self.setup.preset.adaptation
        moments = Moments(walk, state, len(encoded.tokens))
        corrected = moments.corrected(encoded.tokens, figures.logits, self._tca.weights, config)
        stored = torch.zeros(n, dtype=torch.bool)
        stored[[entry.image for entry in walk.stored]] = True
        return split(outcome(figures.logits, corrected, stored, encoded.steps, self.setup), n)

    def _commit(self, settled: Settled, n: int) -> None:
        store_(self._tca.reservoir, settled.walk, settled.encoded, settled.figures.keys, n)
        self._ledger.commit(settled.walk, n)
        self._moment += 1

    def _adjust(self, share: float) -> None:
        """Smaller chunks where more than every image is encoded again on average, larger ones where few are."""
        if share > 1:
            self.size = max(self.size // 2, min(LEAST, self.sizes[-1]))
        elif share < 0.5:
            self.size = min(self.size * 2, self.sizes[-1])
