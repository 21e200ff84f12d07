"""A store behind any fsspec URL, such as S3, where nothing can be appended and nobody can be locked out.

Several servers may use one URL. A server that needs a stream takes the next epoch of that stream, and copies what the
epoch before holds into a base of its own: a snapshot and the journal since then in one object. Every record after it is
an object. The highest epoch is the stream; whatever an older one still writes is ignored.

After every write a server looks for a higher epoch, and refuses to go on if there is one. So an answer that leaves is
never lost: a server that takes a stream first writes down its epoch, and only then reads what the one before wrote. A
write that the older server believed in was therefore done before that, and was read.
"""

from __future__ import annotations

import re
import struct
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import fsspec
from fsspec.implementations.local import LocalFileSystem

from lessmore.errors import ConfigError, LessmoreError, StateError
from lessmore.serve.errors import TakenOverError, UnavailableError
from lessmore.serve.settings import without_password
from lessmore.storage.files import replacing

_HEAD = struct.Struct("<Q")
_TRIES = 20
_EPOCH = re.compile(r"[0-9]{10}-[0-9a-f]{12}")
"""A number and the server that took it, so that no two servers ever have the same epoch."""


class ObjectStore:
    """A `StateStore`. Of several servers on one URL, the one that took a stream last has it."""

    exclusive = False

    def __init__(self, url: str) -> None:
        try:
            self._fs, self._root = fsspec.core.url_to_fs(url, use_listings_cache=False, skip_instance_cache=True)
            self._fs.makedirs(f"{self._root}/streams", exist_ok=True)
        except Exception as error:  # each file system raises its own
            raise ConfigError(
                f"the store {without_password(url)} cannot be used ({_short(error)}); check the address and what "
                "credentials its file system needs"
            ) from error
        self._local = tempfile.TemporaryDirectory(prefix="lessmore-store-")
        self._owner = uuid.uuid4().hex[:12]
        self._epochs: dict[str, str] = {}
        """Our epoch of each stream that we took."""
        self._next: dict[str, int] = {}
        """The number of each one's next record."""

    def holds(self, stream: str) -> bool:
        """Whether the stream is ours, so that what we have of it in memory is how it stands."""
        with self._reached():
            return self._ours(stream)

    def streams(self) -> list[str]:
        """The names below the root."""
        with self._reached():
            return sorted(self._names(f"{self._root}/streams"))

    def has(self, stream: str) -> bool:
        """Whether any server ever took the stream."""
        with self._reached():
            return bool(self._all_epochs(stream))

    def snapshot(self, stream: str) -> Path | None:
        """A local copy of the last snapshot; the stream is taken if it is not ours."""
        with self._reached():
            snapshot = self._base(stream)[0]
        path = Path(self._local.name) / f"{stream}.safetensors"
        path.write_bytes(snapshot)
        return path if snapshot else None

    def journal(self, stream: str) -> bytes:
        """The journal of the base, and all records after it."""
        with self._reached():
            journal = self._base(stream)[1]
            return journal + b"".join(map(self._fs.cat_file, self._records(self._folder(stream))))

    def append(self, stream: str, data: bytes) -> None:
        """Put a new object.

        Args:
            stream: Its id.
            data: Whole records.
        """
        with self._reached():
            if stream not in self._epochs:
                self._base(stream)
            number = self._next[stream]
            self._put(f"{self._folder(stream)}/{number:012}", data)
            self._check(stream)
            self._next[stream] = number + 1

    def cut(self, stream: str, length: int) -> None:
        """Drop the journal, where nothing of it is wanted; an object is never torn.

        Args:
            stream: Its id.
            length: How many bytes stay; more than 0 leaves all of them.
        """
        if length > 0 or stream not in self._epochs:
            return
        with self._reached():
            snapshot, journal = _parts(self._fs.cat_file(f"{self._folder(stream)}/base"), stream)
            if journal:
                self._put_base(stream, snapshot, b"")
            for path in reversed(self._records(self._folder(stream))):  # what a failure leaves is a beginning
                self._fs.rm_file(path)

    def replace(self, stream: str, write: Callable[[Path], None]) -> None:
        """Put a base with the new snapshot; only then are the records before it removed, and older epochs.

        Args:
            stream: Its id.
            write: Makes the file.
        """
        path = Path(self._local.name) / f"{stream}.safetensors"
        write(path)
        with self._reached():
            if stream not in self._epochs:
                self._base(stream)
            self._put_base(stream, path.read_bytes(), b"")
            self._check(stream)
            for epoch in self._all_epochs(stream):
                if epoch < self._epochs[stream]:
                    self._fs.rm(f"{self._root}/streams/{stream}/{epoch}", recursive=True)
        self.cut(stream, 0)

    def delete(self, stream: str) -> None:
        """Remove all objects of a stream."""
        self._epochs.pop(stream, None)
        with self._reached():
            if self._fs.exists(f"{self._root}/streams/{stream}"):
                self._fs.rm(f"{self._root}/streams/{stream}", recursive=True)

    def close(self) -> None:
        """Remove the local copies."""
        self._local.cleanup()

    def _ours(self, stream: str) -> bool:
        epochs = self._all_epochs(stream)
        return stream in self._epochs and epochs != [] and epochs[-1] == self._epochs[stream]

    def _check(self, stream: str) -> None:
        if not self._ours(stream):
            raise TakenOverError("another server has taken over this stream", "send the image again", 1)

    def _base(self, stream: str) -> tuple[bytes, bytes]:
        """Snapshot and journal of our base; a stream that is not ours is taken first."""
        if not self._ours(stream):
            self._epochs.pop(stream, None)
            self._take(stream)
        self._next[stream] = 1 + max(self._numbers(self._folder(stream)), default=-1)
        return _parts(self._fs.cat_file(f"{self._folder(stream)}/base"), stream)

    def _take(self, stream: str) -> None:
        """Make an epoch of ours the highest, and copy what is there into it. It is ours if it still is the highest."""
        epochs = self._all_epochs(stream)
        number = 1 + (int(epochs[-1].partition("-")[0]) if epochs else 0)
        epoch = f"{number:010}-{self._owner}"
        folder = f"{self._root}/streams/{stream}/{epoch}"
        self._fs.makedirs(folder, exist_ok=True)
        self._put(f"{folder}/taken", b"")
        try:
            snapshot, journal = self._left(stream, epoch)
        except LessmoreError:  # it is damaged, and another try would leave another epoch
            self._fs.rm(folder, recursive=True)
            raise
        self._put(f"{folder}/base", _HEAD.pack(len(snapshot)) + snapshot + journal)
        self._epochs[stream] = epoch
        if not self._ours(stream):
            del self._epochs[stream]
            raise TakenOverError("several servers take this stream at the same time", "send the image again", 1)

    def _left(self, stream: str, epoch: str) -> tuple[bytes, bytes]:
        """Snapshot and journal of the highest epoch before one; read again if its server has put another base."""
        place = f"{self._root}/streams/{stream}"
        older = [one for one in self._all_epochs(stream) if one < epoch and self._fs.exists(f"{place}/{one}/base")]
        if not older:
            return b"", b""
        folder = f"{place}/{older[-1]}"
        for _ in range(_TRIES):
            base = self._fs.cat_file(f"{folder}/base")
            try:
                records = b"".join(map(self._fs.cat_file, self._records(folder)))
            except FileNotFoundError:
                continue
            if self._fs.cat_file(f"{folder}/base") == base:
                snapshot, journal = _parts(base, stream)
                return snapshot, journal + records
        raise OSError("another server writes one snapshot after another")

    def _put_base(self, stream: str, snapshot: bytes, journal: bytes) -> None:
        self._put(f"{self._folder(stream)}/base", _HEAD.pack(len(snapshot)) + snapshot + journal)

    def _put(self, path: str, data: bytes) -> None:
        """Write an object, all of it or nothing."""
        if not isinstance(self._fs, LocalFileSystem):
            self._fs.pipe_file(path, data)
            return
        with replacing(Path(path)) as new:
            new.write_bytes(data)

    def _folder(self, stream: str) -> str:
        return f"{self._root}/streams/{stream}/{self._epochs[stream]}"

    def _records(self, folder: str) -> list[str]:
        return [f"{folder}/{number:012}" for number in sorted(self._numbers(folder))]

    def _all_epochs(self, stream: str) -> list[str]:
        """Names of the epochs of a stream, the highest last."""
        return sorted(filter(_EPOCH.fullmatch, self._names(f"{self._root}/streams/{stream}")))

    def _numbers(self, folder: str) -> list[int]:
        """Entries of a folder that are numbers."""
        return [int(name) for name in self._names(folder) if name.isdecimal() and name.isascii()]

    def _names(self, folder: str) -> list[str]:
        try:
            return [str(path).rstrip("/").rpartition("/")[2] for path in self._fs.ls(folder, detail=False)]
        except FileNotFoundError:
            return []

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except LessmoreError:
            raise
        except Exception as error:  # each file system raises its own
            remedy = "bring it back, then send the image again"
            raise UnavailableError(f"the store cannot be used ({_short(error)})", remedy, 5) from error


def _parts(base: bytes, stream: str) -> tuple[bytes, bytes]:
    """Snapshot and journal of a base."""
    if len(base) < _HEAD.size or len(base) < _HEAD.size + _HEAD.unpack_from(base)[0]:
        raise StateError(
            f"the base of stream {stream} is damaged; put back a copy of the store, or reset or delete the stream"
        )
    middle = _HEAD.size + _HEAD.unpack_from(base)[0]
    return base[_HEAD.size : middle], base[middle:]


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
