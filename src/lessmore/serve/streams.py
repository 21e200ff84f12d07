"""The streams of one server: those in memory, the least recently used of which leave it, and those that come back."""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from lessmore.adapter import Adapter, adapt
from lessmore.engines.answered import Answered
from lessmore.engines.together import NextImage, take_turn
from lessmore.engines.unknown_gate import UnknownRule
from lessmore.errors import ConfigError, ImageError, LessmoreError, NonFiniteError, StateError
from lessmore.models.class_list import ClassNames
from lessmore.models.vlm import VLM
from lessmore.prediction import Prediction
from lessmore.serve.answer import Answer, Asked, answer_body, classes_of
from lessmore.serve.errors import (
    DamagedStreamError,
    RequestError,
    StreamExistsError,
    UnavailableError,
    UnknownStreamError,
)
from lessmore.serve.metrics import Metrics
from lessmore.serve.registry import StreamRegistry, StreamRow
from lessmore.serve.resident import Resident, stored_config
from lessmore.serve.settings import ServerSettings
from lessmore.serve.store import StateStore, check_unused
from lessmore.serve.stored import StoredConfig, check_stored

_LOG = logging.getLogger("lessmore.serve")
TEMPLATES = 32
"""Class lists whose embeddings are kept in memory."""


@dataclass(frozen=True)
class Look:
    """An image of a stream, or why there are no pixels of it."""

    stream: str
    pixels: Tensor | LessmoreError
    asked: Asked = field(default_factory=Asked)
    explained: list[Prediction] = field(default_factory=list)
    """Where the prediction is put if it is to be explained."""


class ServedStreams:
    """Only one thread may use it, the one that computes."""

    def __init__(
        self, vlm: VLM, settings: ServerSettings, registry: StreamRegistry, store: StateStore, metrics: Metrics
    ) -> None:
        self.vlm, self.settings, self.registry, self.store, self.metrics = vlm, settings, registry, store, metrics
        self.resident: OrderedDict[str, Resident] = OrderedDict()
        self._templates: OrderedDict[str, Adapter] = OrderedDict()

    def template(self, config: Mapping[str, Any]) -> Adapter:
        """An adapter with these settings that has seen nothing; streams are forks of it.

        Raises:
            ConfigError: The settings cannot be used.
            StateError: They are no settings: what is stored of them is damaged.
        """
        key = json.dumps(config, sort_keys=True)
        if key not in self._templates:
            check_stored(StoredConfig, config, "what is stored of the stream's settings")
            self._templates[key] = adapt(self.vlm, engine=self.settings.engine, **config)
        self._templates.move_to_end(key)
        while len(self._templates) > TEMPLATES:
            self._templates.popitem(last=False)
        return self._templates[key]

    def get(self, stream: str) -> Resident:
        """A stream, brought into memory if need be.

        Raises:
            UnknownStreamError: There is none.
            DamagedStreamError: What is stored of it cannot be used.
        """
        if stream in self.resident and not self.store.holds(stream):  # another server has had it since
            del self.resident[stream]
        if stream in self.resident:
            self.resident.move_to_end(stream)
            return self.resident[stream]
        with self.metrics.load.time():
            try:
                found = self._empty(stream)
                found.load()
            except (StateError, ConfigError) as error:
                message, _, remedy = str(error).rpartition("; ")
                raise DamagedStreamError(message, remedy) from error
        self.resident[stream] = found
        return found

    def _empty(self, stream: str) -> Resident:
        row = self.registry.find(stream)
        if row is None:
            raise UnknownStreamError(f"there is no stream {stream}", "create one with POST /v1/streams")
        config = stored_config(self.store.snapshot(stream)) or row.config
        return self.begun(stream, config, self.template(config).fork())

    def begun(self, stream: str, config: Mapping[str, Any], adapter: Adapter) -> Resident:
        """A stream of which nothing is written yet.

        Args:
            stream: Its id.
            config: Arguments of `lessmore.adapt`.
            adapter: One of its own, made with them.
        """
        resident = Resident(stream, config, adapter, self.store, self.settings.durability == "journal")
        resident.glance.keep = self.settings.thumbnails
        return resident

    def answer(self, looks: Sequence[Look]) -> list[Answer | LessmoreError]:
        """Answer one image of each of several streams; what was learned is written down before this returns."""
        try:
            return self._answer(looks)
        except Exception:  # of torch, say, that has no memory left; states may be half changed
            _LOG.exception("a batch failed")
            for look in looks:
                self.resident.pop(look.stream, None)
            return [UnavailableError("the model failed", "send the image again; see the server's log", 5)] * len(looks)

    def _answer(self, looks: Sequence[Look]) -> list[Answer | LessmoreError]:
        answers: list[Answer | LessmoreError | None] = [None] * len(looks)
        turn: list[tuple[int, Resident, Tensor]] = []
        for i, look in enumerate(looks):
            try:
                resident = self.get(look.stream)
                if look.asked.key is not None and look.asked.key in resident.place.keys:
                    answers[i] = resident.place.keys[look.asked.key]
                elif isinstance(look.pixels, ImageError):
                    resident.adapter.answerer.refuse()
                    answers[i] = self._keep(resident, look.pixels, look.asked.key, adapted=False)
                elif isinstance(look.pixels, LessmoreError):  # not the image's fault: it does not count
                    answers[i] = look.pixels
                else:
                    turn.append((i, resident, look.pixels))
            except LessmoreError as error:
                answers[i] = error
        with self.metrics.compute.time():
            images = [NextImage(one.adapter.answerer, pixels, looks[i].asked.track) for i, one, pixels in turn]
            again = [one.track is not None and one.track in one.answerer.tracks for one in images]
            answered = take_turn(images, together=self.settings.max_batch > 1) if turn else []
        for (i, resident, _), one, seen in zip(turn, answered, again, strict=True):
            answers[i] = self._settle(resident, one, looks[i], adapted=not seen)
        self.trim()
        return [one if one is not None else UnavailableError("no answer", "send it again") for one in answers]

    def _settle(
        self, resident: Resident, answered: Answered | NonFiniteError, look: Look, adapted: bool
    ) -> Answer | LessmoreError:
        """Make the body of an answer, count it and write it down; adapted: it is no further frame of a track."""
        if isinstance(answered, NonFiniteError):
            return self._keep(resident, answered, look.asked.key, adapted)
        prediction = resident.adapter.prediction(answered, look.asked.explain)
        if look.asked.explain:
            look.explained.append(prediction)
        before, resident.domains = resident.domains, resident.noticed()
        answer = answer_body(
            resident.stream, resident.place.seq + 1, prediction, (before, resident.domains), look.asked
        )
        if isinstance(look.pixels, Tensor):
            resident.glance.take(resident.adapter, answered, look.pixels, answer["seq"])
        self.metrics.images.inc()
        self.metrics.changed.inc(answered.changed)
        self.metrics.refused.inc(answered.refused)
        self.metrics.domain_changes.inc(answer["domain_changed"])
        return self._keep(resident, answer, look.asked.key, adapted)

    def _keep(
        self, resident: Resident, answer: Answer | LessmoreError, key: str | None, adapted: bool = True
    ) -> Answer | LessmoreError:
        """Write an image down; if that fails, the stream goes back to what is stored."""
        try:
            with self.metrics.journal.time():
                record = resident.record(answer if isinstance(answer, dict) else None, key, adapted)
                if record:
                    self.store.append(resident.stream, record)
            self.metrics.journal_bytes.inc(len(record))
            if resident.waiting >= self.settings.snapshot_every and self.settings.durability != "none":
                self._snapshot(resident)
        except LessmoreError as error:
            self.resident.pop(resident.stream, None)
            return error
        return answer

    def _snapshot(self, resident: Resident) -> None:
        """Write a snapshot; if a journal holds all of it anyway, it may fail."""
        try:
            resident.save()
            self.metrics.snapshots.inc()
        except LessmoreError:
            if self.settings.durability != "journal":
                raise

    def change(self, stream: str, change: Callable[[Resident], Any]) -> Any:
        """Change a stream in another way than by an image, and write it down.

        Args:
            stream: Its id.
            change: Changes it.

        Returns:
            What `change` returns.
        """
        resident = self.get(stream)
        try:
            result = change(resident)
            resident.changed()
        except LessmoreError:
            self.resident.pop(stream, None)
            raise
        return result

    def relist(
        self,
        stream: str,
        rename: Mapping[str, str],
        remove: Sequence[str],
        add: ClassNames,
        unknown: UnknownRule | None = None,
    ) -> None:
        """Change the class list of a stream, or how it tells unknown images; what was learned is kept.

        Args:
            stream: Its id.
            rename: New names by present ones; done first.
            remove: Names that go; done second.
            add: Names that come, in groups where the list has groups; done last.
            unknown: The new rule; None keeps the one there is.

        Raises:
            ConfigError: A name or rule cannot be used, or the method cannot follow it; nothing has changed.
            RequestError: There would be too many classes; nothing has changed.
        """

        def change(resident: Resident) -> None:
            adapter = resident.adapter
            if rename:
                adapter.rename(rename)
            if remove:
                adapter.remove_classes(remove)
            if add:
                adapter.add_classes(add)
            check_classes(adapter.classes, self.settings.max_classes)
            resident.config["classes"] = classes_of(adapter)
            if unknown is not None:
                gate = adapter.answerer.gate.under(unknown)
                gate.check(resident.method, adapter.method_name, adapter.answerer.engine)
                adapter.answerer.gate = gate
                resident.config["unknown"] = unknown

        self.change(stream, change)
        # It comes back with embeddings of the whole list, as after a restart; those of single names round differently.
        self.registry.configure(stream, self.resident.pop(stream).config)

    def fork(self, stream: str, new: StreamRow) -> None:
        """Make another stream that goes on from where one stands.

        Args:
            stream: Id of the one that is there.
            new: The other one; its settings are those of the one that is there.

        Raises:
            StreamExistsError: There is one of its id.
        """
        if self.registry.find(new.id) is not None:
            raise StreamExistsError(f"there is a stream {new.id} already", "take another id, or none")
        check_unused(self.store, new.id)
        old = self.get(stream)
        other = self.begun(new.id, old.config, old.adapter.fork())
        try:
            other.changed()
            self.registry.add(replace(new, config=old.config))
        except LessmoreError:
            self.store.delete(new.id)
            raise
        self.resident[new.id] = other
        self.trim()

    def forget(self, stream: str) -> None:
        """Reset a stream, even one whose store is damaged."""
        try:
            self.change(stream, lambda resident: resident.adapter.reset())
        except DamagedStreamError:
            self.store.delete(stream)
            self.get(stream).changed()

    def trim(self) -> None:
        """Let streams leave memory until there is room; the least recently used go first."""
        limit = self.settings.memory_limit_mb * 2**20
        total = sum(one.memory for one in self.resident.values())
        while len(self.resident) > 1 and (len(self.resident) > self.settings.max_resident or total > limit):
            stream, resident = next(iter(self.resident.items()))
            if self.settings.durability != "journal" and resident.waiting:
                try:
                    resident.save()
                except LessmoreError:  # it stays, for nobody else has what it learned
                    _LOG.exception("stream %s cannot leave memory", stream)
                    return
            total -= resident.memory
            del self.resident[stream]
            self.metrics.evictions.inc()

    def close(self) -> None:
        """Write a snapshot of every stream that has changed."""
        for resident in self.resident.values():
            if resident.waiting and self.settings.durability != "none":
                self._snapshot(resident)
        self.resident.clear()


def check_classes(classes: Sequence[str], most: int) -> None:
    """Refuse more classes than a stream may have.

    Args:
        classes: The class list.
        most: How many there may be.

    Raises:
        RequestError: There are more.
    """
    if len(classes) > most:
        raise RequestError(
            f"{len(classes)} classes are more than {most}",
            "give fewer, or start the server with a larger --max-classes",
        )
