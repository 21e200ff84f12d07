"""A store behind any fsspec URL, such as S3, where nothing can be appended and nobody can be locked out.

Every server that starts takes the next epoch. What it knows of a stream lies under that epoch: a base, which holds a
snapshot and the journal since then in one object, and one object for each record after it. A server that meets a
stream for the first time copies all of it into a base of its own. From then on the highest epoch with a base is the
stream, and whatever an older server still writes is ignored. The older server sees the newer epoch, and refuses to go
on.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import fsspec

from lessmore.errors import ConfigError, LessmoreError, StateError
from lessmore.serve.errors import UnavailableError
from lessmore.serve.settings import without_password

_HEAD = struct.Struct("<Q")
_TRIES = 20


class ObjectStore:
    """A `StateStore`. Of several servers on one URL, the one that started last has it."""

    def __init__(self, url: str) -> None:
        try:
            self._fs, self._root = fsspec.core.url_to_fs(url, use_listings_cache=False, skip_instance_cache=True)
            self._epoch = self._next_epoch()
        except Exception as error:  # each file system raises its own
            raise ConfigError(
                f"the store {without_password(url)} cannot be used ({_short(error)}); check the address and what "
                "credentials its file system needs"
            ) from error
        self._local = tempfile.TemporaryDirectory(prefix="lessmore-store-")
        self._next: dict[str, int] = {}

    def snapshot(self, stream: str) -> Path | None:
        """A local copy of the last snapshot."""
        with self._reached():
            snapshot = self._base(stream)[0]
        path = Path(self._local.name) / f"{stream}.safetensors"
        path.write_bytes(snapshot)
        return path if snapshot else None

    def journal(self, stream: str) -> bytes:
        """The journal of the base, and all records after it."""
        with self._reached():
            journal = self._base(stream)[1]
            return journal + b"".join(self._fs.cat_file(path) for path in self._records(stream, self._epoch))

    def append(self, stream: str, data: bytes) -> None:
        """Put a new object.

        Args:
            stream: Its id.
            data: Whole records.
        """
        with self._reached():
            self._check_epoch()
            if stream not in self._next:
                self._base(stream)
            number = self._next[stream]
            self._fs.pipe_file(f"{self._folder(stream, self._epoch)}/{number:012}", data)
            self._next[stream] = number + 1

    def cut(self, stream: str, length: int) -> None:
        """Remove the records after the base, where nothing of the journal is wanted; an object is never torn.

        Args:
            stream: Its id.
            length: How many bytes stay; more than 0 leaves all of them.
        """
        if length == 0:
            with self._reached():
                for path in reversed(self._records(stream, self._epoch)):  # what a failure leaves is a beginning
                    self._fs.rm_file(path)

    def replace(self, stream: str, write: Callable[[Path], None]) -> None:
        """Put a base with the new snapshot; only then are the records before it removed.

        Args:
            stream: Its id.
            write: Makes the file.
        """
        path = Path(self._local.name) / f"{stream}.safetensors"
        write(path)
        with self._reached():
            self._check_epoch()
            self._put_base(stream, path.read_bytes(), b"")
        self.cut(stream, 0)

    def delete(self, stream: str) -> None:
        """Remove all objects of a stream."""
        self._next.pop(stream, None)
        with self._reached():
            self._check_epoch()
            if self._fs.exists(f"{self._root}/streams/{stream}"):
                self._fs.rm(f"{self._root}/streams/{stream}", recursive=True)

    def close(self) -> None:
        """Remove the local copies."""
        self._local.cleanup()

    def _next_epoch(self) -> int:
        """Take an epoch that nobody had; the file system says if somebody was faster."""
        for _ in range(_TRIES):
            epoch = max(self._numbers(f"{self._root}/epochs"), default=0) + 1
            self._fs.makedirs(f"{self._root}/epochs", exist_ok=True)
            try:
                self._fs.pipe_file(f"{self._root}/epochs/{epoch:010}", b"lessmore", mode="create")
                return epoch
            except FileExistsError:
                continue
        raise OSError("too many servers start at the same time")

    def _check_epoch(self) -> None:
        if self._fs.exists(f"{self._root}/epochs/{self._epoch + 1:010}"):
            raise UnavailableError("a newer server has taken over this store", "send the image to that one")

    def _base(self, stream: str) -> tuple[bytes, bytes]:
        """Snapshot and journal of the base of this epoch, which is made of what older ones left."""
        bases = [
            epoch
            for epoch in self._numbers(f"{self._root}/streams/{stream}")
            if epoch <= self._epoch and self._fs.exists(f"{self._folder(stream, epoch)}/base")
        ]
        newest = max(bases, default=0)
        if newest == 0:
            self._put_base(stream, b"", b"")
            return b"", b""
        data = self._fs.cat_file(f"{self._folder(stream, newest)}/base")
        if len(data) < _HEAD.size or len(data) < _HEAD.size + _HEAD.unpack_from(data)[0]:
            raise StateError(
                f"the base of stream {stream} is damaged; put back a copy of the store, or reset or delete the stream"
            )
        middle = _HEAD.size + _HEAD.unpack_from(data)[0]
        snapshot, journal = data[_HEAD.size : middle], data[middle:]
        if newest < self._epoch:
            journal += b"".join(self._fs.cat_file(path) for path in self._records(stream, newest))
            self._put_base(stream, snapshot, journal)
        self._next.setdefault(stream, 1 + max(self._numbers(self._folder(stream, self._epoch)), default=-1))
        return snapshot, journal

    def _put_base(self, stream: str, snapshot: bytes, journal: bytes) -> None:
        folder = self._folder(stream, self._epoch)
        self._fs.makedirs(folder, exist_ok=True)
        self._fs.pipe_file(f"{folder}/base", _HEAD.pack(len(snapshot)) + snapshot + journal)
        self._next.setdefault(stream, 0)

    def _folder(self, stream: str, epoch: int) -> str:
        return f"{self._root}/streams/{stream}/{epoch:010}"

    def _records(self, stream: str, epoch: int) -> list[str]:
        folder = self._folder(stream, epoch)
        return [f"{folder}/{number:012}" for number in sorted(self._numbers(folder))]

    def _numbers(self, folder: str) -> list[int]:
        """Entries of a folder that are numbers."""
        try:
            names = [str(path).rstrip("/").rpartition("/")[2] for path in self._fs.ls(folder, detail=False)]
        except FileNotFoundError:
            return []
        return [int(name) for name in names if name.isdecimal() and name.isascii()]

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except LessmoreError:
            raise
        except Exception as error:  # each file system raises its own
            remedy = "bring it back, then send the image again"
            raise UnavailableError(f"the store cannot be used ({_short(error)})", remedy, 5) from error


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
