"""Where journals and snapshots lie: a folder for each stream.

A snapshot is replaced as a whole; a journal grows at its end and starts again after a snapshot. Records that a snapshot
holds already may still stand in the journal after a crash; readers skip them by their number.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Protocol

from lessmore.errors import ConfigError
from lessmore.serve.errors import StreamExistsError, UnavailableError

_READY = "store.lock"


class StateStore(Protocol):
    """Keeps the journal and the snapshot of every stream. Whatever fails is an `UnavailableError`."""

    exclusive: bool
    """Whether no other server can use it at the same time."""

    def holds(self, stream: str) -> bool:
        """Whether what this server has of the stream in memory is how it stands."""

    def streams(self) -> list[str]:
        """The ids of all streams that have left a snapshot or a journal."""

    def has(self, stream: str) -> bool:
        """Whether anything is kept of the stream."""

    def snapshot(self, stream: str) -> Path | None:
        """A file with the stream's last snapshot; None where there is none."""

    def journal(self, stream: str) -> bytes:
        """The stream's journal; empty where there is none."""

    def append(self, stream: str, data: bytes) -> None:
        """Put data at the end of the journal, all of it or nothing.

        Args:
            stream: Its id.
            data: Whole records.
        """

    def cut(self, stream: str, length: int) -> None:
        """Keep the beginning of the journal.

        Args:
            stream: Its id.
            length: How many bytes stay.
        """

    def replace(self, stream: str, write: Callable[[Path], None]) -> None:
        """Put a new snapshot in place of the old one and of the journal.

        Args:
            stream: Its id.
            write: Makes the file, atomically.
        """

    def delete(self, stream: str) -> None:
        """Remove all of a stream."""

    def close(self) -> None:
        """Give the store back."""


def check_unused(store: StateStore, stream: str) -> None:
    """Refuse an id under which the store has files that no registry lists: they belong to somebody else.

    Args:
        store: Where streams are kept.
        stream: The id of a new stream.

    Raises:
        StreamExistsError: There are such files.
    """
    if store.has(stream):
        raise StreamExistsError(
            f"the store holds a stream {stream} that the registry does not list",
            "take another id, put back the registry, or remove it from the store",
        )


class FolderStore:
    """A store in a folder of this machine, for one server at a time."""

    exclusive = True

    def __init__(self, root: Path, fsync: bool) -> None:
        self.root, self._fsync = root, fsync
        self._lock = _locked(root)

    def holds(self, stream: str) -> bool:
        """Always, for nobody else has the folder."""
        return True

    def streams(self) -> list[str]:
        """The folders' names."""
        with self._reached():
            return sorted(os.listdir(self.root / "streams"))

    def has(self, stream: str) -> bool:
        """Whether there is a folder."""
        with self._reached():
            return self._folder(stream).exists()

    def snapshot(self, stream: str) -> Path | None:
        """The file itself."""
        path = self._folder(stream) / "snapshot.safetensors"
        with self._reached():
            return path if path.exists() else None

    def journal(self, stream: str) -> bytes:
        """All of it."""
        path = self._folder(stream) / "journal"
        with self._reached():
            return path.read_bytes() if path.exists() else b""

    def append(self, stream: str, data: bytes) -> None:
        """Append; if the disk is full, what was written of the data is taken back.

        Args:
            stream: Its id.
            data: Whole records.
        """
        folder = self._folder(stream)
        with self._reached():
            folder.mkdir(exist_ok=True)
            with open(folder / "journal", "ab", buffering=0) as file:
                size = file.tell()
                try:
                    _write_all(file, data)
                except OSError:
                    file.truncate(size)
                    raise
                if self._fsync:
                    os.fsync(file.fileno())
                    if size == 0:
                        _sync_folders(folder, folder.parent)

    def cut(self, stream: str, length: int) -> None:
        """Cut the file.

        Args:
            stream: Its id.
            length: How many bytes stay.
        """
        path = self._folder(stream) / "journal"
        with self._reached():
            if path.exists() and path.stat().st_size > length:
                os.truncate(path, length)

    def replace(self, stream: str, write: Callable[[Path], None]) -> None:
        """The snapshot takes its place atomically; only then is the journal emptied.

        Args:
            stream: Its id.
            write: Makes the file, atomically.
        """
        folder = self._folder(stream)
        with self._reached():
            folder.mkdir(exist_ok=True)
        write(folder / "snapshot.safetensors")
        self.cut(stream, 0)

    def delete(self, stream: str) -> None:
        """Remove the folder."""
        with self._reached():
            shutil.rmtree(self._folder(stream), ignore_errors=False) if self._folder(stream).exists() else None

    def close(self) -> None:
        """Let another server have the folder."""
        self._lock.close()

    def _folder(self, stream: str) -> Path:
        return self.root / "streams" / stream

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UnavailableError(
                f"the store cannot be used ({error.strerror or error})",
                "make room there or bring it back, then send the image again",
                retry_after=5,
            ) from error


def _locked(root: Path) -> IO[bytes]:
    """The folder made ready, and its lock, which the system gives back if this process dies."""
    if sys.platform == "win32":
        raise ConfigError("a store is locked as Linux and macOS lock files; run the server there, or in a container")
    import fcntl

    try:
        (root / "streams").mkdir(parents=True, exist_ok=True)
        root.chmod(0o700)
        file = open(root / _READY, "ab")  # noqa: SIM115  (held for as long as the server runs)
    except OSError as error:
        raise ConfigError(f"the store {root} cannot be made ({error.strerror}); choose another --store") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise ConfigError(f"another server uses the store {root}; stop it, or choose another --store") from error
    return file


def _write_all(file: IO[bytes], data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _sync_folders(*folders: Path) -> None:
    for folder in folders:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
