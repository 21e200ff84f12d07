"""Several sources, one model: whoever has a frame is answered, together where the engine can, each by its own stream.

A reader in a thread of its own decodes each source. This thread takes the next frame of every source that has one, at
most `max_batch` of them, encodes them as one batch, settles each with its stream and hands the answers to the sinks.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image
from torch import Tensor

from lessmore.adapter import Adapter
from lessmore.cameras.answer import CameraAnswer, Sink, now
from lessmore.cameras.frame import Frame
from lessmore.cameras.memory import Kept, Memory
from lessmore.cameras.overlay import Overlay, with_tokens
from lessmore.cameras.reader import Reader, ReadingOptions
from lessmore.cameras.source import FrameSource
from lessmore.core.condense.source import source_map
from lessmore.engines.answered import Answered
from lessmore.engines.together import NextImage, take_turn
from lessmore.errors import ConfigError, ImageError, NonFiniteError, StateError
from lessmore.methods import FollowsStream

IDLE = 0.2
"""Seconds after which a watch without frames looks whether it should stop."""
PREPARING = 4
"""Threads that turn frames into pixels."""


@dataclass(frozen=True)
class WatchOptions:
    """How a watch works."""

    reading: ReadingOptions = field(default_factory=ReadingOptions)
    max_batch: int = 8
    """Sources encoded together; 1 gives an `Adapter`'s answers byte for byte."""
    state: Path | None = None
    """Folder of the state files."""
    resume: bool = False
    save_every: float = 30.0
    """Seconds between two writes of the state files."""
    overlay: Overlay = "none"
    """What is painted over the frames that sinks get."""

    def __post_init__(self) -> None:
        if self.max_batch < 1:
            raise ConfigError(f"--max-batch must be 1 or more, not {self.max_batch}")
        if not self.save_every > 0:
            raise ConfigError(f"--save-every must be more than 0 seconds, not {self.save_every}")
        if self.resume and self.state is None:
            raise ConfigError("--resume goes on from saved states; say with --state where they are")


class WatchedSource:
    """A source, its stream, and what came of it."""

    def __init__(self, source: FrameSource, adapter: Adapter, kept: Kept, reader: Reader) -> None:
        """Use `Watch`.

        Args:
            source: The source.
            adapter: A stream of its own.
            kept: Where it stands.
            reader: Its reader, not started.
        """
        self.source, self.adapter, self.kept, self.reader = source, adapter, kept, reader
        self.counts: Counter[str] = Counter()
        """Of this run: answered, changed, refused, failed."""
        self.last: CameraAnswer | None = None
        self.latencies: deque[float] = deque(maxlen=1000)
        """Milliseconds from a decoded frame to its answer, of the last ones."""
        self.saved = kept.answers

    @property
    def finished(self) -> bool:
        """Whether nothing more will come of it."""
        return self.kept.ended or self.reader.done

    def pixels(self, frame: Frame) -> Tensor | ImageError:
        """What the method looks at, or why it cannot."""
        try:
            return self.adapter.pixels(frame.image)
        except ImageError as error:
            return error

    def settle(self, frame: Frame, answered: Answered | ImageError | NonFiniteError) -> CameraAnswer:
        """Count an answer, and say it.

        Args:
            frame: The frame.
            answered: Its answer, by which the stream was adapted, or why it has none.
        """
        if isinstance(answered, ImageError):
            self.adapter.answerer.refuse()
        ms = 1000 * (time.monotonic() - frame.arrived)
        self.kept.answers += 1
        self.kept.place = frame.place
        if frame.file is not None:
            self.kept.files.update((*frame.passed, frame.file))
        seconds = None if frame.seconds is None else round(frame.seconds, 6)
        about = (self.source.name, self.kept.answers, now(), frame.number, seconds, frame.file)
        if not isinstance(answered, Answered):
            self.counts["failed"] += 1
            self.last = CameraAnswer(*about, ms=round(ms, 1), error=" ".join(str(answered).split()))
            return self.last
        self.latencies.append(ms)
        self.counts.update(answered=1, changed=int(answered.changed), refused=int(answered.refused))
        self.last = self._answer(about, answered, ms)
        return self.last

    def _answer(
        self, about: tuple[str, int, str, int, float | None, str | None], answered: Answered, ms: float
    ) -> CameraAnswer:
        prediction, method = self.adapter.prediction(answered), self.adapter.answerer.method
        mean = method.stream_mean() if isinstance(method, FollowsStream) else None
        return CameraAnswer(
            *about,
            label=prediction.label,
            index=prediction.index,
            score=round(prediction.confidence, 6),
            zero_shot_label=prediction.classes[int(prediction.zero_shot_scores.argmax())],
            changed=prediction.changed,
            entropy=round(prediction.entropy, 6),
            refused=prediction.refused,
            frames=prediction.frames,
            unknown=None if prediction.unknown_score is None else prediction.unknown,
            domain_changes=0 if mean is None else int(mean.domain_changes),
            ms=round(ms, 1),
        )


class Watch:
    """Answers the frames of sources until they end or somebody says stop."""

    def __init__(
        self, adapter: Adapter, sources: Sequence[FrameSource], options: WatchOptions, sinks: Sequence[Sink]
    ) -> None:
        """Look for states to go on from; nothing is opened yet.

        Args:
            adapter: A stream that has seen nothing; every source gets a fork.
            sources: The sources.
            options: How to work.
            sinks: Where answers go, in this order. Whoever made them closes them.

        Raises:
            ConfigError: There are states, and nobody asked to go on from them; or they belong to other sources.
            StateError: A state is damaged or belongs to another model, class list or setting.
        """
        self._options, self._sinks = options, sinks
        self._memory = None if options.state is None else Memory(options.state)
        self._wake = threading.Event()
        self.streams = [self._stream(source, adapter.fork()) for source in sources]
        self._order = list(self.streams)
        self._due = time.monotonic() + options.save_every
        self._told: dict[str, tuple[str, str]] = {}
        self._pool = ThreadPoolExecutor(min(PREPARING, len(sources)), "prepare")
        self._problems: list[str] = []

    @property
    def problems(self) -> list[str]:
        """What went wrong without ending the watch."""
        return [*self._problems, *(problem for sink in self._sinks for problem in sink.problems)]

    def _stream(self, source: FrameSource, adapter: Adapter) -> WatchedSource:
        kept = Kept()
        if self._memory is not None:
            path = self._memory.path(source)
            if path.exists() and not self._options.resume:
                raise ConfigError(f"{path} is there already; add --resume to go on from it, or choose another --state")
            kept = self._memory.load(source, adapter)
        reader = Reader(source, self._options.reading, self._wake, kept.place, set(kept.files))
        return WatchedSource(source, adapter, kept, reader)

    def run(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Watch until every source has ended.

        Args:
            stopped: Asked between two batches; True ends the watch, with all states saved.

        Raises:
            OSError: Answers cannot be written. The states then stay as they were saved last, never ahead of the rows.
            StateError: The states cannot be written at the start, or at the end.
        """
        try:
            self._save()
            for stream in self.streams:
                if not stream.kept.ended:
                    stream.reader.start()
            while not stopped():
                self._wake.clear()
                worked = self.turn()
                self._tell()
                if not worked and all(stream.finished for stream in self.streams):
                    break
                if time.monotonic() >= self._due:
                    self._save_meanwhile()
                if not worked:
                    self._wake.wait(IDLE)
            self._tell()
            self._save()
        finally:
            self._close()

    def turn(self) -> bool:
        """Answer the next frame of every source that has one; whether there was any."""
        waiting = [stream for stream in self._order if stream.reader.waiting][: self._options.max_batch]
        if not waiting:
            return False
        frames = [stream.reader.take() for stream in waiting]
        pixels = list(self._pool.map(WatchedSource.pixels, waiting, frames))
        good = [(i, one) for i, one in enumerate(pixels) if isinstance(one, Tensor)]
        results: dict[int, Answered | ImageError | NonFiniteError] = {
            i: one for i, one in enumerate(pixels) if isinstance(one, ImageError)
        }
        images = [NextImage(waiting[i].adapter.answerer, one, self._track(frames[i])) for i, one in good]
        if images:
            answers = take_turn(images, together=self._options.max_batch > 1)
            results |= {i: answer for (i, _), answer in zip(good, answers, strict=True)}
        for i, (stream, frame) in enumerate(zip(waiting, frames, strict=True)):
            shown = self._shown(stream, frame, results[i]) if isinstance(pixels[i], Tensor) else None
            self._deliver(stream.settle(frame, results[i]), shown)
        # Whoever was answered goes to the end, so that more sources than fit into a batch take turns.
        self._order = [stream for stream in self._order if stream not in waiting] + waiting
        return True

    def _track(self, frame: Frame) -> str | None:
        return str(frame.scene) if self._options.reading.rules.track else None

    def _shown(self, stream: WatchedSource, frame: Frame, answered: object) -> Image.Image:
        """The frame as sinks get it."""
        if self._options.overlay == "none" or not isinstance(answered, Answered) or not answered.steps:
            return frame.image
        return with_tokens(frame.image, source_map(answered.steps), stream.adapter.vlm.preprocess)

    def _deliver(self, answer: CameraAnswer, image: Image.Image | None) -> None:
        for sink in self._sinks:
            sink.put(answer, image)

    def _tell(self) -> None:
        """Tell the sinks how sources are, where that has changed."""
        for stream in self.streams:
            reader = stream.reader
            if reader.condition == "ended" and reader.done and stream.source.kind == "file":
                stream.kept.ended = True
            state = (reader.condition, reader.why)
            if self._told.get(stream.source.name, ("opening", "")) != state and not (
                reader.condition in ("ended", "failed") and reader.waiting
            ):
                self._told[stream.source.name] = state
                for sink in self._sinks:
                    sink.told(stream.source.name, *state)

    def _save(self) -> None:
        """Write the states of sources that have gone on, after everything that they count."""
        self._due = time.monotonic() + self._options.save_every
        for sink in self._sinks:
            sink.sync()
        if self._memory is None:
            return
        for stream in self.streams:
            path = self._memory.path(stream.source)
            if stream.saved != stream.kept.answers or stream.kept.ended or not path.exists():
                self._memory.save(stream.source, stream.adapter, stream.kept)
                stream.saved = stream.kept.answers

    def _save_meanwhile(self) -> None:
        """Write the states; a disk that is full now may have room at the next time."""
        try:
            self._save()
        except StateError as error:
            if str(error) not in self._problems:
                self._problems.append(str(error))

    def _close(self) -> None:
        for stream in self.streams:
            stream.reader.close()
        self._pool.shutdown()
