"""The images of a run: its model and data are opened again, and what the run saw is encoded once more.

Rows record what was answered, but not which patches were pruned or which images are in the reservoir. For TCA the
stream is therefore replayed, from cached encodings where there are any, so that both are as they were when an image
came. Other methods have no reservoir of images; their pictures show the model before it adapted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lessmore.core.condense.source import GONE, PRUNED, source_map
from lessmore.core.encoder import encode
from lessmore.core.reservoir import ready_anchors
from lessmore.data.dataset import Dataset
from lessmore.data.registry import open_dataset
from lessmore.engines import encoder_on
from lessmore.errors import ConfigError, LessmoreError, StateError
from lessmore.lab.cache import CachedEncoder, Shards, canonical_condensation, encodings_folder
from lessmore.lab.job import Job, open_model, prepare_job
from lessmore.lab.journal import SampleRow
from lessmore.lab.report.runs import Finished
from lessmore.lab.report.tokens import PALETTE, as_seen, cluster_colours, jpeg_uri
from lessmore.lab.spec import RunSpec
from lessmore.methods import make_method
from lessmore.methods.tca import TCA
from lessmore.models.to_pixels import to_pixels
from lessmore.models.vlm import VLM

PICTURE, THUMBNAIL = 224, 72
"""Sides of the browser's and the reservoir's pictures, in pixels."""
ENTRIES = 300
"""How many images of the reservoir are shown at most."""

AlbumTick = Callable[[], object]


class Tokens(NamedTuple):
    """The fate of an image's patches."""

    blocks: tuple[int, ...]
    maps: tuple[str, ...]
    """One letter per patch after each block: `.` unchanged, `#` pruned, else the colour of its token, from `a` on."""
    left: tuple[int, ...]
    """Patch tokens that left each block."""


class AlbumEntry(NamedTuple):
    """An image in the reservoir at the end of the stream."""

    label: int
    """The class whose slot it is in."""
    row: SampleRow
    key: float
    """Its entropy, or another key that the preset uses."""
    uri: str


@dataclass(frozen=True)
class Album:
    """What can be shown of a run; notes say what cannot, and why."""

    classes: tuple[str, ...] = ()
    """Empty if the run does not record them."""
    uris: dict[int, str] = field(default_factory=dict)
    """Pictures by number of the sample."""
    tokens: dict[int, Tokens] = field(default_factory=dict)
    reservoir: tuple[AlbumEntry, ...] = ()
    entries: int = 0
    """Images in the reservoir, shown or not."""
    notes: tuple[str, ...] = ()


class Library:
    """Models and data sets by name, each opened once for all runs of a page."""

    def __init__(self, root: str | None, cache: bool | str | Path, network: bool = False) -> None:
        """Open nothing yet.

        Args:
            root: Where the data sets are now, if they have moved.
            cache: Where the runs kept their encodings.
            network: Whether names may be looked up on the network. Whoever made the runs chose the names.
        """
        self.root = root
        self.cache = cache
        self.network = network
        self._datasets: dict[tuple[str, str | None], Dataset] = {}
        self._models: dict[tuple[str, str], VLM] = {}

    def spec(self, run: Finished) -> RunSpec:
        """The request of a run, on the device there is now, with the data where they are now."""
        try:
            asked = RunSpec(**run.header["spec"])
        except (KeyError, TypeError) as error:
            raise StateError(f"{run.folder}/spec.json is of another version ({error}); do this run again") from error
        return replace(asked, device="auto", workers=0, root=self.root or asked.root)

    def dataset(self, spec: RunSpec) -> Dataset:
        """The data set that a run names."""
        name = spec.dataset, spec.root
        if name not in self._datasets:
            self._datasets[name] = open_dataset(
                spec.dataset, None if spec.root is None else Path(spec.root), self.network
            )
        return self._datasets[name]

    def job(self, run: Finished) -> Job:
        """The run with all its parts; refused if model or images are not those that it saw."""
        spec = self.spec(run)
        dataset, name = self.dataset(spec), (spec.model, spec.precision)
        if name not in self._models:
            self._models[name] = open_model(spec, self.network)
        job, then = prepare_job(spec, self._models[name], dataset), run.header["identity"]
        for part, now in (("stream", job.stream.fingerprint()), *((p, job.sight[p]) for p in ("pixels", "model"))):
            if now != then.get(part):
                raise ConfigError(f"{_WHAT[part]} not those of the run any more; {_REMEDY}")
        return job


_WHAT = {"stream": "the images of this data set are", "pixels": "the pixels of this data set are"}
_WHAT["model"] = "the weights under this model's name are"
_REMEDY = "put back what the run saw (--root says where data sets are), or do the run again"


def replay_run(run: Finished, library: Library, count: int, tick: AlbumTick = lambda: None) -> Album:
    """Class names of a run, and pictures of some images and of the reservoir.

    Args:
        run: The run.
        library: Opens its model and data.
        count: Images to picture; 0 for none, and then nothing is opened.
        tick: Called after each image that is replayed.
    """
    classes = tuple(run.header.get("classes", ()))
    if not count:
        return Album(classes, notes=("This page was made without pictures.",))
    try:
        return _Replay(library.job(run), run.rows, library.cache, tick).album(choose_pictured(run.rows, count), classes)
    except LessmoreError as error:
        return Album(classes, notes=(f"There are no pictures: {error}.",))


def choose_pictured(rows: Sequence[SampleRow], count: int) -> list[int]:
    """Numbers of the samples to picture: those that adaptation fixed or broke, alternating, then the others.

    Args:
        rows: Of the run.
        count: How many at most.
    """
    kinds: dict[tuple[bool, bool], list[int]] = {}
    for row in rows:
        if "error" not in row:
            kinds.setdefault((row["zero_shot"] == row["label"], row["prediction"] == row["label"]), []).append(row["i"])
    changed = _in_turn(kinds.get((False, True), []), kinds.get((True, False), []))
    same = _in_turn(kinds.get((False, False), []), kinds.get((True, True), []))
    return [*changed, *same][:count]


def _in_turn(*lists: Iterable[int]) -> list[int]:
    return [i for i in chain.from_iterable(zip_longest(*lists)) if i is not None]


class _Replay:
    """One run, replayed."""

    def __init__(self, job: Job, rows: Sequence[SampleRow], cache: bool | str | Path, tick: AlbumTick) -> None:
        self.job = job
        self.rows = [row for row in rows if "error" not in row]
        self.tick = tick
        setup = job.setup(cache)
        self.method = make_method("tca", setup) if job.spec.method == "tca" else None
        config = canonical_condensation(job.settings.condensation)
        shards = Shards(encodings_folder(cache, job.sight, config), tokens=True, vision=job.vlm.vision)
        self.encoder = CachedEncoder(encoder_on(job.engine, setup, config), job.vlm.vision, shards)

    @torch.no_grad()
    def album(self, chosen: Sequence[int], classes: tuple[str, ...]) -> Album:
        """Pictures of the chosen samples, and of the reservoir at the end."""
        tokens: dict[int, Tokens] = {}
        wanted, differ = set(chosen), 0
        for row in self.rows if self.method else [row for row in self.rows if row["i"] in wanted]:
            if row["i"] in wanted:
                tokens |= self._tokens(row["i"])
            if self.method is not None:
                differ += self._answer(row) != row["prediction"]
            self.tick()
        self.encoder.shards.flush()
        pictures = {i: jpeg_uri(as_seen(self.job.stream.image(i), self.job.vlm), PICTURE) for i in chosen}
        entries = self._entries()
        shown = tuple(AlbumEntry(c, row, key, self._thumbnail(row)) for c, row, key in entries[:ENTRIES])
        return Album(classes, pictures, tokens, shown, len(entries), tuple(self._notes(differ)))

    def _pixels(self, i: int) -> Tensor:
        return to_pixels(self.job.stream.image(i), self.job.vlm)

    def _tokens(self, i: int) -> dict[int, Tokens]:
        """By sample: its tokens, with the anchors of the time; empty where nothing is condensed."""
        settings, anchors = self.job.settings, None
        if isinstance(self.method, TCA):
            anchors = ready_anchors(self.method.stream.reservoir, settings.adaptation.ready)
        steps = encode(self.job.vlm.vision, self._pixels(i), settings.condensation, anchors).steps
        if not steps:
            return {}
        trace = source_map(steps)
        maps = (_letters(*stage) for stage in zip(trace.fate[0].tolist(), cluster_colours(trace), strict=True))
        return {i: Tokens(trace.blocks, tuple(maps), tuple(trace.left[0].tolist()))}

    def _answer(self, row: SampleRow) -> int:
        """Let the method answer once more, so that its reservoir develops as it did in the run."""
        assert isinstance(self.method, TCA)
        i, self.method.floor = row["i"], math.inf if row.get("unknown") else None
        if self.method.wants is None:
            return int(self.method.predict(self._pixels(i)).scores.argmax())
        entry, _ = self.encoder(self.job.stream.id(i), lambda: self._pixels(i))
        return int(self.method.answer(entry.encoded).scores.argmax())

    def _entries(self) -> list[tuple[int, SampleRow, float]]:
        """Class, row and key of every image in the reservoir, class by class, the most certain first."""
        if not isinstance(self.method, TCA):
            return []
        held = self.method.stream.reservoir
        places = (held.ids >= 0).nonzero().tolist()
        # An id counts the images that the method was asked about, and those that failed are not among them.
        found = [(c, self.rows[int(held.ids[c, m])], float(held.keys[c, m])) for c, m in places]
        return sorted(found, key=lambda entry: (entry[0], entry[2]))

    def _thumbnail(self, row: SampleRow) -> str:
        return jpeg_uri(as_seen(self.job.stream.image(row["i"]), self.job.vlm), THUMBNAIL)

    def _notes(self, differ: int) -> Iterable[str]:
        if differ:
            yield (
                f"Gone through again on this machine, {differ:,} of {len(self.rows):,} answers differ from the run's "
                "(another device, thread count or version): pictures and reservoir may differ in as much."
            )
        if self.method is None and self.job.settings.condensation.active:
            yield "Tokens are shown as the model condenses them before it adapts."


def _letters(fates: Sequence[int], colours: Sequence[Any]) -> str:
    pairs = zip(fates, colours, strict=True)
    return "".join(
        "#" if fate in (PRUNED, GONE) else "." if c < 0 else chr(ord("a") + int(c) % len(PALETTE)) for fate, c in pairs
    )
