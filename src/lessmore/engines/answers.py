"""The one answer path: Adapter, runner, bench and server get their answers here.

It builds the engine, brings outcomes to the host, replaces answers that are not finite, counts, and keeps a batching
engine from running ahead of the answers that were given.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lessmore.core.class_list import ClassChange
from lessmore.core.encoder import Encoded
from lessmore.engines import Batching, build, resolve_engine
from lessmore.engines.answered import Answered, Failure, judged, plain_scores, read
from lessmore.engines.batching import on_host
from lessmore.engines.confidence import COLDEST, WARMEST
from lessmore.engines.tracks import Tracks
from lessmore.engines.turns import Turns
from lessmore.engines.unknown_gate import UnknownGate, UnknownRule
from lessmore.errors import ConfigError, ImageError, NonFiniteError, StateError
from lessmore.methods import FollowsStream, FromEncoded, Method, Outcome, Setup
from lessmore.methods.saved import follower_of
from lessmore.storage.state import LATER, REMEDY, read_counts

REFUSALS = 10
"""Refused answers in a row after which the state is set aside."""


@dataclass
class Health:
    """How the adaptation is doing; from `Adapter.health()`.

    Examples:
        >>> import lessmore
        >>> from PIL import Image
        >>> adapter = lessmore.adapt("tiny", ["red circle", "blue square"], cache=False)
        >>> prediction = adapter(Image.new("RGB", (32, 32), "red"))
        >>> health = adapter.health()
        >>> health.seen, health.stored, health.empty_classes, health.agreement
        (1, 1, 1, 1.0)
    """

    seen: int = 0
    """Images answered."""
    changed: int = 0
    """Answers that adaptation changed."""
    refused: int = 0
    """Images that could not be read, or whose adapted answer was not finite; never stored."""
    stored: int = 0
    """Images that entered the reservoir (some have left it since)."""
    fill: float = 0.0
    """Share of the reservoir's slots in use."""
    empty_classes: int = 0
    """Classes without an entry in the reservoir."""
    strength: float = 0.0
    """Share of the stream mean that is removed from the answers, 0 to 1."""
    domain_changes: int = 0
    """Changes of domain that were noticed."""
    mean_images: float = 0.0
    """Images that the stream mean rests on; with `stream="camera"` a frame counts by how new it is."""
    refused_in_a_row: int = 0
    """Answers refused since the last one that was not."""
    set_aside: int = 0
    """How often the state was set aside because answers were refused one after another."""
    frames: int = 0
    """Further frames of tracks among the images seen, from which nothing was learned."""
    temperature: float = 1.0
    """What the evidence for answers is divided by, so that they are as sure as zero-shot's on average."""
    unknown: int = field(default=0, metadata=LATER)
    """Images that were called unknown."""
    unknown_threshold: float = field(default=0.0, metadata=LATER)
    """The score above which the next image is unknown; 0 while there is none."""

    @property
    def unknown_rate(self) -> float:
        """Share of the images that were called unknown."""
        return self.unknown / self.seen if self.seen else 0.0

    @property
    def agreement(self) -> float:
        """Share of the answers that equal zero-shot's."""
        return 1 - self.changed / self.seen if self.seen else 1.0


def read_health(value: Any, path: str | Path) -> Health:
    """Counts from a file.

    Args:
        value: What `dataclasses.asdict` made of them.
        path: The file, for the error.

    Raises:
        StateError: They are no counts, or no stream reaches them.
    """
    health = read_counts(Health, value, path)
    if not COLDEST <= health.temperature <= WARMEST:
        raise StateError(f"{path} makes no sense: its temperature is out of range; {REMEDY}")
    return health


class Answerer:
    """Answers the images of one stream, one after another. Threads may share it; they wait for one another."""

    def __init__(
        self,
        method: str,
        setup: Setup,
        engine: str = "auto",
        health: Health | None = None,
        unknown: UnknownRule = "off",
    ) -> None:
        self.method_name, self.setup, self.gate = method, setup, UnknownGate(unknown)
        self.engine = resolve_engine(
            engine, method, setup.vision, setup.preset.condensation, setup.precision, self.gate.on
        )
        self.method: Method = build(self.engine, method, setup)
        self.gate.check(self.method, method, self.engine)
        self._health = health or Health()
        self.tracks = Tracks()
        self._ahead: _Ahead | None = None
        self.turns = Turns()
        """Held for every step; whoever needs several steps at one moment of the stream holds it around them."""

    @torch.no_grad()
    def predict(self, pixels: Tensor, track: str | None = None, plain: Callable[[], Tensor] | None = None) -> Answered:
        """Answer an image, and adapt.

        Args:
            pixels: What the method looks at, `[1, 3, H, W]` or views `[V, 3, H, W]`.
            track: The object that this is a frame of; see `lessmore.engines.tracks`.
            plain: As for `read`; None runs the plain model where its answer is needed.

        Raises:
            NonFiniteError: The model itself answers with NaN or infinity.
        """
        with self.turns:
            self._take_back()
            fallback = plain or (lambda: plain_scores(self.setup, pixels[:1]))
            return self._frame(track, lambda: self.method.predict(pixels), fallback)

    @torch.no_grad()
    def answer(self, encoded: Encoded, plain: Callable[[], Tensor], track: str | None = None) -> Answered:
        """Answer an image that is already encoded, and adapt; see `FromEncoded`.

        Args:
            encoded: The encoding, a batch of one.
            plain: Makes the plain model's probabilities of the image, `[C]`; called only if they are needed.
            track: The object that this is a frame of.

        Raises:
            ConfigError: The method needs pixels.
            NonFiniteError: The plain model's answer is not finite either.
        """
        with self.turns:
            self._take_back()
            method = self.method
            if not isinstance(method, FromEncoded):
                raise ConfigError(f"method {self.method_name!r} needs the pixels of an image, not its encoding")
            return self._frame(track, lambda: method.answer(encoded), plain)

    def _frame(self, track: str | None, answer: Callable[[], Outcome], plain: Callable[[], Tensor]) -> Answered:
        """Answer an image, which may be a frame of a track; only the first frame changes the state."""
        self.gate.admit(self.method, self.setup.logit_scale)
        if track is None:
            return self._counted(self._read(answer(), plain))
        again = track in self.tracks
        before = self.method.state() if again else {}
        outcome = answer()
        if again:
            self.method.restore(before)
        answered = self._read(outcome, plain, again)
        fused = self.tracks.fused(track, answered, self._health.temperature)
        return self._counted(self.gate.fused(fused) if again else fused)

    def _counted(self, answered: Answered) -> Answered:
        self._health.unknown += answered.unknown
        return answered

    def stream(self, inputs: Iterable[Tensor | ImageError]) -> Iterator[Answered | Failure]:
        """Answers in the order of the inputs; an error among them, or an image without an answer, keeps its place.

        A batching engine answers several images at a time. The state still holds exactly those whose answers were
        given: it is set back if the caller stops early, saves or asks in between. If `inputs` raises, the answers to
        all inputs before are given first.
        """
        size = self.method.size if isinstance(self.method, Batching) else 1
        waiting, failure = iter(inputs), None
        # What was read before the failure still gets its answers, so the caller loses no image but the one that failed.
        while failure is None:
            group: list[Tensor | ImageError] = []
            try:
                for one in islice(waiting, size):
                    group.append(one)
            except Exception as error:
                failure = error
            if not group:
                break
            yield from self._answers(group)
        if failure is not None:
            raise failure

    def refuse(self) -> None:
        """Count an image that could not be read."""
        with self.turns:
            self._health.refused += 1

    def counts(self) -> Health:
        """Counts since the start or the last reset alone."""
        with self.turns:
            return replace(self._health)

    @property
    def temperature(self) -> float:
        """What evidence is divided by as the stream stands, without the look at the memory that `health()` takes."""
        return self._health.temperature

    def health(self) -> Health:
        """Counts since the start or the last reset, and how the memory and the stream mean stand."""
        with self.turns:
            self._take_back()
            health, used = replace(self._health), self.method.slots()
            if used is not None:
                health.fill, health.empty_classes = float(used.float().mean()), int((~used.any(dim=1)).sum())
            mean = self.method.stream_mean() if isinstance(self.method, FollowsStream) else None
            if mean is not None:
                health.strength, health.domain_changes = float(mean.strength), int(mean.domain_changes)
                health.mean_images = float(mean.images)
            if math.isfinite(self.gate.threshold):
                health.unknown_threshold = self.gate.threshold
            return health

    def state(self) -> tuple[dict[str, Tensor], Health]:
        """What was learned from the images answered so far, and the counts; independent copies."""
        with self.turns:
            self._take_back()
            return self.method.state(), replace(self._health)

    def restore(self, state: Mapping[str, Tensor], health: Health) -> None:
        """Continue from a `state()`.

        Args:
            state: The tensors.
            health: The counts.
        """
        with self.turns:
            self._ahead = None
            self.method.restore(state)
            self._health = replace(health)

    def reset(self) -> None:
        """Forget the stream."""
        with self.turns:
            self._ahead = None
            self.method.reset()
            self.tracks = Tracks()
            self.gate.forget()
            self._health = Health()

    def change_classes(self, setup: Setup, change: ClassChange) -> None:
        """Go on with another class list; the engine is built again. If that fails, everything stays as it was.

        Args:
            setup: The same setup with the new list and its embeddings.
            change: How the list changed.

        Raises:
            ConfigError: The method cannot follow a class list.
        """
        follow = follower_of(self.method_name)
        with self.turns:
            self._take_back()
            method = build(self.engine, self.method_name, setup)
            method.restore(follow(self.method.state(), method.state(), change))
            self.method, self.setup = method, setup
            self.gate.follow(change)
            self.tracks = Tracks()  # their sums are over the classes of before

    def fork(self) -> Answerer:
        """An independent answerer that continues from the same state."""
        with self.turns:
            other = Answerer(self.method_name, self.setup, self.engine)
            other.restore(*self.state())
            other.tracks, other.gate = self.tracks.copy(), self.gate.copy()
        return other

    def _answers(self, group: list[Tensor | ImageError]) -> Iterator[Answered | Failure]:
        """Answers to a group of inputs, together where the engine can."""
        good = [pixels for pixels in group if isinstance(pixels, Tensor)]
        ahead = _Ahead(self._batching, good) if isinstance(self.method, Batching) and len(good) > 1 else None
        with self.turns:
            self._take_back()
            self._ahead = ahead
        try:
            for pixels in group:
                yield self._next(pixels, ahead)
        finally:
            with self.turns:
                if self._ahead is ahead:
                    self._take_back()
                    self._ahead = None

    @torch.no_grad()
    def _next(self, pixels: Tensor | ImageError, ahead: _Ahead | None) -> Answered | Failure:
        if isinstance(pixels, ImageError):
            self.refuse()
            return pixels
        try:
            if ahead is None:
                return self.predict(pixels)
            with self.turns:
                if self._ahead is not ahead:  # another stream over the same adapter was begun in between
                    self._take_back()
                    self._ahead = ahead
                return self._read(ahead.next(), lambda: plain_scores(self.setup, pixels[:1]))
        except NonFiniteError as error:
            return error

    def _batching(self) -> Batching:
        """The method as it is now: another class list brings another one."""
        assert isinstance(self.method, Batching)
        return self.method

    def _take_back(self) -> None:
        """Let the state hold exactly the images whose answers were given."""
        if self._ahead is not None:
            self._ahead.take_back()

    def _read(self, outcome: Outcome, plain: Callable[[], Tensor], again: bool = False) -> Answered:
        """Read an outcome and count it; again: it is a further frame of an object, from which nothing is learned."""
        health = self._health
        try:
            answered = read(outcome, self.setup, plain)
        except NonFiniteError:
            health.refused += 1
            raise
        # Further frames of an object are no further draws, so the temperature does not follow them.
        answered = judged(answered, health.temperature, None if again else health.seen - health.frames)
        answered = self.gate.judged(answered, outcome, remember=not again)
        answered = replace(answered, stored=answered.stored and not again)
        health.temperature = answered.temperature
        health.seen += 1
        health.frames += again
        health.changed += answered.changed
        health.stored += answered.stored
        health.refused += answered.refused
        health.refused_in_a_row = health.refused_in_a_row + 1 if answered.refused else 0
        if health.refused_in_a_row >= REFUSALS:
            self._set_aside()
        return answered

    def _set_aside(self) -> None:
        """Start again with an empty state: one that spoils every answer would otherwise do so for good."""
        warnings.warn(
            f"{REFUSALS} adapted answers in a row were not finite; the state is set aside and adaptation starts again",
            stacklevel=2,
        )
        if self._ahead is not None:
            self._ahead.take_back()
        self.method.reset()
        self.tracks = Tracks()
        self._health.refused_in_a_row = 0
        self._health.temperature = 1.0
        self._health.set_aside += 1


class _Ahead:
    """Images that a batching engine answers together, before their answers are asked for."""

    def __init__(self, method: Callable[[], Batching], images: list[Tensor]) -> None:
        self._method, self._waiting = method, images
        self._before: dict[str, Tensor] = {}
        self._outcomes: Sequence[Outcome] = []
        self._given = 0

    def next(self) -> Outcome:
        """The outcome of the next image."""
        if not self._outcomes:
            self._before = self._method().state()
            self._outcomes = on_host(self._method().predict_many(torch.cat(self._waiting)))
        self._given += 1
        return self._outcomes[self._given - 1]

    @torch.no_grad()
    def take_back(self) -> None:
        """Set the state back to the images whose outcomes were given; the others will be answered again."""
        given, outcomes = self._waiting[: self._given], self._outcomes
        self._waiting, self._outcomes, self._given = self._waiting[self._given :], [], 0
        if len(given) < len(outcomes):
            self._method().restore(self._before)
            if given:
                self._method().predict_many(torch.cat(given))
