"""One sample of a run: encode it or take it from the cache, let the method answer, and record the answer."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from lessmore.config import Condensation
from lessmore.core.encoder import PLAIN
from lessmore.engines import encoder_on
from lessmore.engines.answered import Answered, checked
from lessmore.engines.answers import Answerer, Health
from lessmore.errors import ImageError, NonFiniteError
from lessmore.lab.cache import CachedEncoder, Shards, canonical_condensation, encodings_folder, tokens_left
from lessmore.lab.job import Job
from lessmore.lab.journal import SampleRow
from lessmore.lab.loader import Loaded, load_one
from lessmore.lab.metrics import refused_streak
from lessmore.methods import FromEncoded, FromViews, Method
from lessmore.methods.zeroshot import zero_shot_logits
from lessmore.models.to_pixels import to_pixels, to_views

_TOP = 5


class Sampler:
    """Answers the samples of a job one by one; holds the method, and the encoders with their cache."""

    def __init__(self, job: Job, cache: bool | str | Path) -> None:
        self.job = job
        self._setup = job.setup(cache)
        self._answerer = Answerer(job.spec.method, self._setup, job.engine, unknown=job.spec.unknown)
        self._vision = self._setup.vision
        wants = self.method.wants if isinstance(self.method, FromEncoded) else None
        condensation = canonical_condensation(job.settings.condensation)
        shared = wants is not None and condensation == PLAIN

        def encoder(config: Condensation, tokens: bool) -> CachedEncoder:
            shards = Shards(encodings_folder(cache, job.sight, config), tokens, self._vision)
            made = functools.cache(lambda: encoder_on(job.engine, self._setup, config))  # compiled if it is needed
            return CachedEncoder(lambda pixels: made()(pixels), self._vision, shards)

        self._plain = encoder(PLAIN, tokens=shared and wants == "tokens")
        self._own = self._plain if shared else encoder(condensation, wants == "tokens") if wants else None

    @property
    def method(self) -> Method:
        """The method on its engine."""
        return self._answerer.method

    def resume(self, state: Mapping[str, Tensor], rows: Sequence[SampleRow]) -> None:
        """Continue a run that was cut off.

        Args:
            state: The method's state at the checkpoint.
            rows: The rows up to the checkpoint.
        """
        health = Health(refused_in_a_row=refused_streak(rows)[1])  # as far as answers depend on it
        for row in (row for row in rows if "error" not in row):
            health.seen, health.temperature = health.seen + 1, row["temperature"]
            if row.get("unknown_score") is not None:
                self._answerer.gate.see(row["unknown_score"])
        self._answerer.restore(state, health)

    def cached(self, i: int) -> bool:
        """Whether sample i can be answered without its pixels."""
        name = self.job.stream.id(i)
        return self._own is not None and name in self._own.shards and name in self._plain.shards

    def flush(self) -> None:
        """Write every new encoding to the cache."""
        self._plain.shards.flush()
        if self._own is not None:
            self._own.shards.flush()

    @torch.no_grad()
    def __call__(self, loaded: Loaded) -> tuple[SampleRow, SampleRow]:
        """The sample's row and its timing; one that cannot be answered gets a row with the reason."""
        i, stream = loaded.i, self.job.stream
        about = {"i": i, "id": stream.id(i), "label": stream.label(i), "domain": stream.visits[i].domain}
        try:
            if loaded.error is not None:
                raise ImageError(loaded.error)
            answer, timing = self._answer(i, functools.cache(lambda: self._pixels(loaded)))
        except (ImageError, NonFiniteError) as error:
            return {**about, "error": " ".join(str(error).split())}, {"i": i, "encoded": False}
        return {**about, **answer}, {"i": i, **timing}

    def _answer(self, i: int, pixels: Callable[[], Tensor]) -> tuple[SampleRow, SampleRow]:
        """Matched zero-shot answers first: the method must not learn from an image that the model cannot read."""
        name, begun = self.job.stream.id(i), self._clock()
        entry, fresh = (None, True) if self._own is None else self._own(name, pixels)
        encoded = self._clock()
        zero_shot = self._zero_shot(name, pixels)
        seen = None if entry is not None else self._seen(i, pixels)
        compared = self._clock()
        if entry is not None:
            answered, tokens = self._answerer.answer(entry.encoded, lambda: zero_shot), entry.kept
        else:
            assert seen is not None
            answered = self._answerer.predict(seen, plain=lambda: zero_shot)
            tokens = tokens_left(self._vision, answered.steps)
        answer = _answer_row(answered, zero_shot, tokens)
        seconds = (encoded - begun) + (self._clock() - compared)
        timing = {"ms": _round(1e3 * seconds), "encoded": fresh, "zero_shot_ms": _round(1e3 * (compared - encoded))}
        answer["temperature"] = self._answerer.temperature  # unrounded: a resumed run goes on from it
        if self._answerer.gate.on:
            answer |= {"unknown": answered.unknown, "unknown_score": answered.unknown_score}  # unrounded, too
        return answer, timing

    def _zero_shot(self, name: str, pixels: Callable[[], Tensor]) -> Tensor:
        """Probabilities of matched zero-shot (same prompts, R = 1), [C] float32 on the CPU."""
        entry, _ = self._plain(name, pixels)
        logits = zero_shot_logits(entry.encoded, self._setup.text, self._setup.logit_scale)[0]
        return checked(logits.softmax(dim=-1), self.job.vlm.dtype)

    def _seen(self, i: int, pixels: Callable[[], Tensor]) -> Tensor:
        """What the method looks at: `[1, 3, H, W]`, or views `[V, 3, H, W]` of the image before preprocessing."""
        if isinstance(self.method, FromViews):
            return to_views(self.job.stream.image(i), self.job.vlm, self.method.views, self.job.spec.seed)
        return pixels()

    def _pixels(self, loaded: Loaded) -> Tensor:
        """`[1, 3, H, W]` on the device. Loaded here only if a cached encoding could not be read."""
        if loaded.pixels is None:
            loaded = load_one(self.job.stream, self.job.vlm.preprocess, loaded.i)
        if loaded.pixels is None:
            raise ImageError(loaded.error)
        return to_pixels(torch.from_numpy(loaded.pixels), self.job.vlm)

    def _clock(self) -> float:
        if self.job.vlm.device.type == "cuda":
            torch.cuda.synchronize(self.job.vlm.device)
        return time.perf_counter()


def _answer_row(answered: Answered, zero_shot: Tensor, tokens: int) -> SampleRow:
    """The answer as JSON, beside matched zero-shot's probabilities `[C]`."""
    scores, before = answered.raw_scores, answered.zero_shot
    top = scores.sort(descending=True, stable=True)  # stable: among equals the first class leads
    unadapted, plain = int(before.argmax()), int(zero_shot.argmax())
    return {
        "prediction": int(top.indices[0]),
        "probability": _round(top.values[0]),
        "temperature": answered.temperature,  # unrounded: a resumed run goes on from it
        "confidence": _round(answered.scores[answered.index]),
        "top5": top.indices[:_TOP].tolist(),
        "top5_probabilities": [_round(value) for value in top.values[:_TOP]],
        "unadapted": unadapted,
        "unadapted_probability": _round(before[unadapted]),
        "zero_shot": plain,
        "zero_shot_probability": _round(zero_shot[plain]),
        "entropy": _round(torch.special.entr(before).sum()),
        "changed": int(top.indices[0]) != unadapted,
        "refused": answered.refused,
        "tokens": tokens,
    }


def _round(value: Tensor | float) -> float:
    return round(float(value), 6)
