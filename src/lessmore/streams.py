"""Many streams on one model: images in with the name of their source, predictions out, and one adapter per source."""

from __future__ import annotations

import hashlib
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from shutil import copyfile

from lessmore.adapter import Adapter
from lessmore.engines.answered import Answered, Failure
from lessmore.engines.answers import Health
from lessmore.engines.stream_file import write_stream
from lessmore.engines.together import NextImage, take_turn
from lessmore.errors import ConfigError, ImageError, StateError
from lessmore.models.to_pixels import Image
from lessmore.prediction import Prediction
from lessmore.storage.sealed import read_facts, read_json, write_sealed_json
from lessmore.storage.state import SCHEMA as STATE_SCHEMA

_INDEX = "streams.json"
_SCHEMA = "lessmore.streams/1"


@dataclass
class _Resident:
    """A stream in memory."""

    adapter: Adapter
    users: int = 0
    """Threads that are at it; it stays in memory as long."""


class Streams:
    """One adapter per source, such as a camera; each learns from its own images alone.

    Threads may share it: images of one source are answered one after another, those of different sources at the same
    time. At most `resident` streams stay in memory, besides those in use; the others wait in files of a temporary
    folder and return with their next image. What is to outlive the process is written by `save`.

    Examples:
        >>> import lessmore
        >>> from PIL import Image
        >>> adapter = lessmore.adapt("tiny", ["red circle", "blue square"], cache=False)
        >>> streams = lessmore.Streams(adapter, resident=2)
        >>> streams("door", Image.new("RGB", (32, 32), "red")).label
        'red circle'
        >>> turn = streams.turn({name: Image.new("RGB", (32, 32), "blue") for name in ("door", "yard", "roof")})
        >>> turn["roof"].label, streams.names, streams.health("door").seen
        ('blue square', ['door', 'roof', 'yard'], 2)
        >>> streams.save("states")
        >>> again = lessmore.Streams(adapter)
        >>> again.restore("states")
        >>> again.health("door").seen
        2
    """

    def __init__(self, adapter: Adapter, resident: int = 64) -> None:
        """Begin without streams.

        Args:
            adapter: What every stream starts as a fork of, with whatever it has learned.
            resident: How many streams stay in memory, at least 1.

        Raises:
            ConfigError: `resident` is less than 1.
        """
        if resident < 1:
            raise ConfigError(f"resident must be at least 1, not {resident}")
        self._start, self._most = adapter.fork(), resident
        self._lock = threading.RLock()
        self._resident: OrderedDict[str, _Resident] = OrderedDict()
        self._away: dict[str, Path] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="lessmore-streams-")

    def __call__(self, source: str, image: Image, *, track: str | None = None, bgr: bool = False) -> Prediction:
        """Answer the next image of a source; a name that is new begins a stream.

        Args:
            source: Its name.
            image: As `Adapter` takes it.
            track: A name for the object that this is a frame of, within this source.
            bgr: Whether the colours of arrays and uint8 tensors come as blue, green, red.

        Raises:
            ImageError: The image cannot be read.
            NonFiniteError: The model itself answers with NaN or infinity.
        """
        with self._using([source]) as (adapter,):
            return adapter(image, track=track, bgr=bgr)

    def turn(self, images: Mapping[str, Image], *, bgr: bool = False) -> dict[str, Prediction | Failure]:
        """Answer one image of each of several sources; those that can share a pass of the tower do.

        Args:
            images: An image for each source.
            bgr: As for a single image.

        Returns:
            The predictions, in the order of `images`; an image without an answer has its error in its place.
        """
        answers: dict[str, Prediction | Failure] = {}
        waiting = iter(images.items())
        while group := list(islice(waiting, self._most)):
            names = [name for name, _ in group]
            with self._using(names) as adapters:
                found = _answered(adapters, [image for _, image in group], bgr)
            answers |= zip(names, found, strict=True)
        return answers

    @property
    def names(self) -> list[str]:
        """Sources that have a stream, sorted."""
        with self._lock:
            return sorted({*self._resident, *self._away})

    def health(self, source: str) -> Health:
        """How a source's adaptation is doing; see `Adapter.health`."""
        self._known(source)
        with self._using([source]) as (adapter,):
            return adapter.health()

    def remove(self, source: str) -> None:
        """Forget a source; its next image would begin a new stream."""
        self._known(source)
        with self._lock:
            self._resident.pop(source, None)
            left = self._away.pop(source, None)
        if left is not None:
            left.unlink(missing_ok=True)

    def save(self, folder: str | Path) -> None:
        """Write the state of every stream: one file each, and last an index that names them.

        Args:
            folder: Where; made if it does not exist.

        Raises:
            StateError: A file cannot be written.
        """
        place = Path(folder)
        with self._lock:
            try:
                place.mkdir(parents=True, exist_ok=True)
                for name in self.names:
                    self._write(name, place / _file(name))
                write_sealed_json(place / _INDEX, {"schema": _SCHEMA, "streams": {n: _file(n) for n in self.names}})
            except OSError as error:
                raise StateError(
                    f"{place} cannot be written ({error}); choose a folder with room of your own"
                ) from error

    def restore(self, folder: str | Path) -> None:
        """Continue all streams from a folder written by `save`; those of before are forgotten.

        Args:
            folder: The folder. If anything in it is refused, everything stays as it is.

        Raises:
            StateError: A file is missing or damaged, or belongs to another model, class list, method or setting.
        """
        place = Path(folder)
        found = Streams(self._start, self._most)
        for name, file in _index(place).items():
            adapter = self._start.fork()
            adapter.restore(place / file)
            _check_name(place / file, name)
            found._resident[name] = _Resident(adapter)
            found._trim()
        with self._lock:
            self._resident, self._away, self._folder = found._resident, found._away, found._folder

    def _write(self, name: str, file: Path) -> None:
        if name in self._resident:
            self._save(name, file)
        else:
            copyfile(self._away[name], file)

    def _save(self, name: str, file: Path) -> None:
        """The state of a stream, with its name: two streams with the same settings differ in nothing else."""
        adapter = self._resident[name].adapter
        write_stream(file, adapter.answerer, adapter.identity, {"source": name})

    def _known(self, source: str) -> None:
        if source not in self.names:
            raise ConfigError(f"there is no stream {source!r}; the first image of a source begins one")

    @contextmanager
    def _using(self, names: Sequence[str]) -> Iterator[list[Adapter]]:
        """Adapters that stay in memory while they are used."""
        with self._lock:
            taken = [self._take(name) for name in names]
            for one in taken:
                one.users += 1
        try:
            yield [one.adapter for one in taken]
        finally:
            with self._lock:
                for one in taken:
                    one.users -= 1
                self._trim()

    def _take(self, name: str) -> _Resident:
        """A stream in memory: it was there, comes back from its file, or begins."""
        if not isinstance(name, str) or not name:
            raise ConfigError(f"a source needs a name, not {name!r}")
        if name not in self._resident:
            adapter = self._start.fork()
            if name in self._away:
                adapter.restore(self._away[name])
                self._away.pop(name).unlink()
            self._resident[name] = _Resident(adapter)
        self._resident.move_to_end(name)
        return self._resident[name]

    def _trim(self) -> None:
        """Write streams to files, those first that were not used for longest."""
        spare = len(self._resident) - self._most
        idle = [name for name, one in self._resident.items() if not one.users]
        for name in idle[: max(0, spare)]:
            file = Path(self._folder.name) / _file(name)
            self._save(name, file)
            self._away[name] = file
            del self._resident[name]


def _answered(adapters: Sequence[Adapter], images: Sequence[Image], bgr: bool) -> list[Prediction | Failure]:
    """One answer per stream, or why there is none."""
    pixels = [adapter.try_pixels(image, bgr) for adapter, image in zip(adapters, images, strict=True)]
    good = [i for i, one in enumerate(pixels) if not isinstance(one, ImageError)]
    turn = take_turn([NextImage(adapters[i].answerer, pixels[i]) for i in good])  # type: ignore[arg-type]
    answers: dict[int, Answered | Failure] = dict(zip(good, turn, strict=True))
    for i, one in enumerate(pixels):
        if isinstance(one, ImageError):
            adapters[i].answerer.refuse()
            answers[i] = one
    found = (answers[i] for i in range(len(pixels)))
    return [a.prediction(one) if isinstance(one, Answered) else one for a, one in zip(adapters, found, strict=True)]


def _file(name: str) -> str:
    """A file name for any source name."""
    return f"{hashlib.sha256(name.encode(errors='surrogatepass')).hexdigest()[:32]}.safetensors"


def _check_name(file: Path, name: str) -> None:
    facts = read_facts(file, STATE_SCHEMA).get("facts")
    if not isinstance(facts, dict) or facts.get("note") != {"source": name}:
        raise StateError(f"{file} is not the state of {name!r}; put the files back as save() wrote them")


def _index(folder: Path) -> dict[str, str]:
    try:
        content = read_json(folder / _INDEX, _SCHEMA, "write it again with save()")
    except FileNotFoundError as error:
        raise StateError(f"{folder} holds no streams; give a folder written by save()") from error
    streams = content.get("streams")
    if not isinstance(streams, dict) or any(file != _file(name) for name, file in streams.items()):
        raise StateError(f"{folder / _INDEX} makes no sense; give a folder written by save()")
    return streams
