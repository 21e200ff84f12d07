"""One stream in memory: its adapter, its place in the sequence, and how both are written down and brought back.

Every change of a stream has a number. An answered or refused image is a record of the journal with what it did to the
state. Everything else, such as a reset, is a snapshot under the next number.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lessmore.adapter import Adapter
from lessmore.engines.answers import read_health
from lessmore.engines.tracks import TENSOR, Tracks, beside_tracks, track_forms
from lessmore.errors import StateError
from lessmore.methods import FollowsStream, Method, Replayable
from lessmore.methods.saved import forms_of, problem_of
from lessmore.serve.answer import Answer
from lessmore.serve.journal import Record, pack_record, read_records
from lessmore.serve.page.glance import Glance
from lessmore.serve.store import StateStore
from lessmore.serve.stored import StoredChange, StoredPlace, check_stored
from lessmore.storage.sealed import read_facts
from lessmore.storage.state import SCHEMA as STATE_SCHEMA
from lessmore.storage.state import Form, form_problem, read_state, write_state

SCHEMA = "lessmore.journal/1"
REMEMBERED = 1000
"""Images whose `Idempotency-Key` is remembered."""
FILES = "camera-file /"
"""Begins the key of an image of a watched folder; names follow, which are remembered for good."""
NAME_BYTES = 150
"""Bytes that a name takes in memory, roughly."""


@dataclass
class Place:
    """Where a stream stands; a snapshot holds it beside the state."""

    number: int = 0
    """Changes of the stream so far."""
    seq: int = 0
    """Images answered since the stream was made; a reset does not set it back."""
    last: Answer | None = None
    """The last answer."""
    keys: OrderedDict[str, Answer] = field(default_factory=OrderedDict)
    """Answers by the keys of their requests."""
    files: set[str] = field(default_factory=set)
    """Images of a watched folder that were answered, refused or left out, as their keys name them."""

    def pass_by(self, key: str | None) -> None:
        """Remember the names in a key, where it is that of a folder's image.

        Args:
            key: The key of an image, answered or refused.
        """
        if key is not None and key.startswith(FILES):
            self.files.update(key.removeprefix(FILES).split("/"))

    def remember(self, key: str | None, answer: Answer) -> None:
        """Take over an answer; keys of images that are long past are dropped.

        Args:
            key: The key of its request, where it has one.
            answer: The answer.
        """
        self.seq, self.last = answer["seq"], answer
        if key is not None:
            self.keys[key] = answer
        while self.keys and next(iter(self.keys.values()))["seq"] <= self.seq - REMEMBERED:
            self.keys.popitem(last=False)


class Resident:
    """A stream in memory; only one thread may use it."""

    def __init__(
        self, stream: str, config: Mapping[str, Any], adapter: Adapter, store: StateStore, durable: bool
    ) -> None:
        """config: arguments of `lessmore.adapt`. durable: whether every image is written to the journal."""
        self.stream, self.adapter = stream, adapter
        self.config = dict(config)
        self.place = Place()
        self.waiting = 0
        """Records in the journal that no snapshot holds; without a journal, images that none does."""
        self.domains = 0
        """Changes of domain noticed so far."""
        self.glance = Glance()
        """What the live page shows of it."""
        self._store, self._durable = store, durable
        self._before: dict[str, Tensor] = {}
        self._begun = False
        self._own = 2 * sum(tensor.nbytes for tensor in self.method.state().values())

    @property
    def method(self) -> Method:
        """What adapts."""
        return self.adapter.answerer.method

    @property
    def tracks(self) -> Tracks:
        """Objects of which frames were sent."""
        return self.adapter.answerer.tracks

    @property
    def memory(self) -> int:
        """Bytes that the stream takes, by our estimate: the state, again for what is derived, tracks, pictures."""
        return self._own + self.tracks.memory + self.glance.memory + NAME_BYTES * len(self.place.files)

    def noticed(self) -> int:
        """Changes of domain that the stream has noticed, asked of the method."""
        mean = self.method.stream_mean() if isinstance(self.method, FollowsStream) else None
        return 0 if mean is None else int(mean.domain_changes)

    def identity(self) -> str:
        """A digest of what a journal must share with this stream."""
        return hashlib.sha256(json.dumps(self.adapter.identity(), sort_keys=True).encode()).hexdigest()

    def record(self, answer: Answer | None, key: str | None = None, adapted: bool = True) -> bytes:
        """Take over an image, and say what the journal has to hold of it.

        Args:
            answer: The answer; None where there is none because the image was refused.
            key: The request's `Idempotency-Key`.
            adapted: Whether the image changed the method's state.

        Returns:
            The record, or nothing where no journal is kept.
        """
        self.place.number += 1
        self.place.pass_by(key)
        self.waiting += 1
        if answer is not None:
            self.place.remember(key, answer)
        if not self._durable:
            return b""
        counts = self.adapter.answerer.counts()
        tensors = self._changes() if adapted else {}
        facts: dict[str, Any] = {
            "number": self.place.number,
            "answer": answer,
            "key": key,
            "health": asdict(counts),
            "track": None,
        }
        if answer is not None and answer["track"] in self.tracks and not answer["refused"]:
            name, track = self.tracks.newest()
            facts["track"], tensors = [name, track.frames, track.unlike], {**tensors, TENSOR: track.sums}
        head = b"" if self._begun else pack_record(self._head(), {})
        self._begun = True
        return head + pack_record(facts, tensors)

    def _changes(self) -> dict[str, Tensor]:
        """What the last image did to the state: the method's delta, or else the tensors that changed."""
        if isinstance(self.method, Replayable):
            return self.method.delta()
        now = self.method.state()
        changed = {name: tensor for name, tensor in now.items() if not _same(tensor, self._before.get(name))}
        self._before = now
        return changed

    def save(self) -> None:
        """Write a snapshot; the journal starts again after it."""
        self._store.replace(self.stream, self._write)
        self.waiting, self._begun = 0, False

    def changed(self) -> None:
        """Count a change that no record tells of, and write it down as a snapshot."""
        self.place.number += 1
        self.domains = self.noticed()
        self._before = {} if isinstance(self.method, Replayable) else self.method.state()
        self.save()

    def _write(self, path: Path) -> None:
        tensors, health = self.adapter.answerer.state()
        sums, tracks = self.tracks.saved()
        place = {**asdict(self.place), "keys": list(self.place.keys.items()), "files": sorted(self.place.files)}
        facts = {"health": asdict(health), "place": place, "config": self.config, "tracks": tracks}
        facts |= {"unknown": self.adapter.answerer.gate.saved(), "stream": self.stream}
        write_state(path, tensors | sums, self.adapter.identity(), facts)

    def load(self) -> None:
        """Bring back what is stored: the snapshot, then the journal after it.

        Raises:
            StateError: Either is damaged, or belongs to another model or other settings.
        """
        if (path := self._store.snapshot(self.stream)) is not None:
            self._load_snapshot(path)
        data = self._store.journal(self.stream)
        records, length = read_records(data, f"the journal of stream {self.stream}")
        where = f"the journal of stream {self.stream}"
        numbers = [check_stored(StoredChange, one.facts, where).number for one in records[1:]]
        new = [one for one, number in zip(records[1:], numbers, strict=True) if number > self.place.number]
        if records and new:
            self._check_stream(records[0].facts.get("stream"), where)
        if records and new and records[0].facts != self._head():
            raise StateError(
                f"the journal of stream {self.stream} was written with another model, class list, setting or version; "
                "start the server as it was, or reset the stream"
            )
        for record in new:
            self._redo(record)
        if new and (reason := self._problem()):
            raise StateError(f"{where} makes no sense: {reason}; put back a copy of the store, or reset the stream")
        self._before = {} if isinstance(self.method, Replayable) else self.method.state()
        self.domains = self.noticed()
        self._begun, self.waiting = bool(new), len(new)
        self._store.cut(self.stream, length if new else 0)

    def _load_snapshot(self, path: Path) -> None:
        forms = forms_of(self.method) | track_forms(len(self.adapter.classes))
        problem = beside_tracks(problem_of(self.adapter.method_name))
        tensors, facts = read_state(path, self.adapter.identity(), forms, problem)
        self._check_stream(facts.get("stream"), str(path))
        health, tracks = read_health(facts.get("health"), path), Tracks()
        check_stored(StoredPlace, facts.get("place"), str(path))
        place = facts["place"]
        if not place["seq"] == (place["last"] or {"seq": 0})["seq"] <= place["number"]:
            raise StateError(f"{path} does not say where the stream stands; reset the stream")
        gate = self.adapter.answerer.gate.restored(facts.get("unknown"))
        if not tracks.restored(tensors, facts.get("tracks")):
            raise StateError(f"{path} makes no sense: its tracks do not fit together; reset the stream")
        if gate is None:
            raise StateError(f"{path} makes no sense: its scores of unknown images are none; reset the stream")
        tensors.pop(TENSOR, None)
        self.adapter.answerer.restore(tensors, health)
        self.adapter.answerer.tracks, self.adapter.answerer.gate = tracks, gate
        self.place = Place(**{**place, "keys": OrderedDict(place["keys"]), "files": set(place["files"])})

    def _head(self) -> dict[str, Any]:
        """The first record of a journal."""
        return {"schema": SCHEMA, "identity": self.identity(), "stream": self.stream}

    def _check_stream(self, stream: Any, where: str) -> None:
        """Two streams with the same settings differ in nothing else."""
        if stream != self.stream:
            raise StateError(f"{where} belongs to another stream; put back a copy of the store, or reset the stream")

    def _redo(self, record: Record) -> None:
        """Let an image of the journal in again."""
        facts, answerer = record.facts, self.adapter.answerer
        if facts["number"] != self.place.number + 1:
            raise StateError(
                f"the journal of stream {self.stream} lacks change {self.place.number + 1}; "
                "put back a copy of the store, or reset the stream"
            )
        before = answerer.counts()
        try:
            counts, tensors = read_health(facts["health"], "the journal"), dict(record.tensors)
            if facts["track"] is not None:
                name, frames, unlike = facts["track"]
                self._redo_track(name, frames, tensors.pop(TENSOR), unlike)
            self._apply({name: tensor.to(self.adapter.vlm.device) for name, tensor in tensors.items()})
            if counts.set_aside > before.set_aside:
                self.method.reset()
                answerer.tracks = Tracks()
            answerer.restore(self.method.state(), counts)
            self.place.number += 1
            self.place.pass_by(facts["key"])
            if facts["answer"] is not None:
                self.place.remember(facts["key"], facts["answer"])
                score = facts["answer"].get("unknown_score")
                if score is not None and counts.frames == before.frames:
                    answerer.gate.see(score)
        except (KeyError, TypeError, ValueError, RuntimeError, IndexError) as error:
            raise StateError(
                f"the journal of stream {self.stream} makes no sense at change {facts['number']} ({error}); "
                "put back a copy of the store, or reset the stream"
            ) from error

    def _redo_track(self, name: str, frames: int, sums: Tensor, unlike: float | None) -> None:
        form = Form(torch.float64, (3, len(self.adapter.classes)))
        if not form.fits(sums):
            raise ValueError("the sums of a track are none")
        self.tracks.put(name, frames, sums, unlike)

    def _apply(self, tensors: Mapping[str, Tensor]) -> None:
        if isinstance(self.method, Replayable):
            if tensors:
                self.method.redo(tensors)
        else:
            after = {**self.method.state(), **tensors}
            if reason := form_problem(after, forms_of(self.method)):
                raise ValueError(reason)
            self.method.restore(after)

    def _problem(self) -> str | None:
        """Why the state cannot be one."""
        state = {name: tensor.cpu() for name, tensor in self.method.state().items()}
        return problem_of(self.adapter.method_name)(state)


def stored_config(path: Path | None) -> dict[str, Any] | None:
    """The settings that a snapshot was written with, which may be newer than the registry's; not yet checked."""
    facts = {} if path is None else read_facts(path, STATE_SCHEMA).get("facts")
    config = facts.get("config") if isinstance(facts, dict) else None
    return config if isinstance(config, dict) else None


def _same(new: Tensor, old: Tensor | None) -> bool:
    """Whether two tensors have the same bytes, NaN included."""
    if old is None or new.shape != old.shape:
        return False
    return torch.equal(new.reshape(-1).view(torch.uint8), old.reshape(-1).view(torch.uint8))
