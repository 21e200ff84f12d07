"""Images decoded in processes of their own, so that a broken decoder costs an image and not the program.

`load_image` refuses what would take too much before a decoder runs, by what the headers say. Where images come from
strangers that is not enough: a decoder is C code that may crash, hang or take more than it said. A `Decoder` lets the
operating system keep the limits.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from types import TracebackType
from typing import Any

from PIL import Image

from lessmore.data.decoder_process import STRIP
from lessmore.data.image_files import check_bytes, read_image_file
from lessmore.errors import ImageError, ImageSizeError, LessmoreError

SECONDS = 2.0
MEMORY = 300 * 10**6
_PATIENCE = 10
"""Times the seconds of a core that a process may take on the clock."""
_OVERTIME = -getattr(signal, "SIGPROF", 0) or None
"""Exit code of a process that took more of a core than it may."""
_START = 60.0
"""Seconds that a process may take to start."""
_CODE = (
    "import sys; sys.path[:] = sys.argv[2:]; from lessmore.data.decoder_process import serve_images; "
    "serve_images(int(sys.argv[1]))"
)


class Decoder:
    """Decodes images in processes with limits; threads may share it.

    A process that dies, hangs or takes too much memory is ended and replaced, and the image is an `ImageError`.
    Processes start when they are first needed. They end with `close`, with the `with` block, and with this process.

    Examples:
        >>> import io
        >>> stream = io.BytesIO()
        >>> Image.new("RGB", (4, 3), "red").save(stream, "PNG")
        >>> with Decoder() as decode:
        ...     decode(stream.getvalue()).size
        (4, 3)
    """

    def __init__(self, processes: int = 1, seconds: float = SECONDS, memory: int = MEMORY) -> None:
        """Set limits; nothing is started yet.

        Args:
            processes: Images decoded at a time; further ones wait.
            seconds: Seconds of a core that an image may take; on the clock, which others slow down, it is ten times as
                many.
            memory: Bytes that an image may take, beyond what an idle process holds. Kept on Linux only.
        """
        self._limits = (processes, seconds, memory)
        self._open()

    def _open(self) -> None:
        self._owner = os.getpid()
        self._idle: queue.LifoQueue[_Process | None] = queue.LifoQueue()
        for _ in range(self._limits[0]):
            self._idle.put(None)

    def __call__(self, source: str | os.PathLike[str] | bytes | bytearray) -> Image.Image:
        """An upright RGB image.

        Args:
            source: A path or encoded bytes; a file is read here, and only its bytes reach the other process.

        Returns:
            What `load_image` returns for the same source.

        Raises:
            ImageError: It cannot be read, or takes too much memory or time.
            DecoderError: No process can be started, which says nothing of the image.
        """
        if isinstance(source, (bytes, bytearray)):
            check_bytes(len(source), "the image")
            data, name = bytes(source), "the image bytes"
        else:
            name = os.fspath(source)
            data = read_image_file(name)
        if self._owner != os.getpid():  # after a fork the processes are the parent's
            self._open()
        return self._decode(data, name)

    def _decode(self, data: bytes, name: str) -> Image.Image:
        _, seconds, memory = self._limits
        process = self._idle.get()
        try:
            if process is None or not process.alive:
                process = _started(memory)
            return process.decode(data, name, seconds)
        except _LostProcess as error:
            raise ImageError(f"{name} {error}; convert the image with another program") from error
        finally:
            self._idle.put(process if process is not None and process.alive else None)

    def close(self) -> None:
        """End the processes; another image would start new ones."""
        idle = [self._idle.get() for _ in range(self._limits[0])]
        for process in idle:
            if process is not None and self._owner == os.getpid():
                process.end()
            self._idle.put(None)

    def __enter__(self) -> Decoder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __reduce__(self) -> tuple[type[Decoder], tuple[int, float, int]]:
        """Pickled as its limits; the copy has processes of its own."""
        return Decoder, self._limits


class DecoderError(LessmoreError, RuntimeError):
    """No process that decodes images can be started; the image may be good."""


class _LostProcess(Exception):
    """Why a process gave no answer."""


class _Process:
    """One process, and the pipes to it."""

    def __init__(self, memory: int) -> None:
        command = [sys.executable, "-c", _CODE, str(memory), *map(os.path.abspath, filter(None, sys.path)), os.getcwd()]
        quiet = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=quiet
        )
        self._broken = False
        self._within(_START, f"takes more than {_START:g} s to start", self._told)

    @property
    def alive(self) -> bool:
        """Whether it can take another image."""
        return not self._broken and self._process.poll() is None

    def decode(self, data: bytes, name: str, seconds: float) -> Image.Image:
        """Ask it for an image."""
        late = f"takes more than {seconds:g} s to decode"
        return self._within(_PATIENCE * seconds, late, lambda: self._ask(data, name, seconds))

    def end(self) -> None:
        """End it at once; it holds nothing that could be lost."""
        self._broken = True
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait()

    def _within(self, seconds: float, late: str, work: Any) -> Any:
        """Do something with the process, and end the process where it takes too long or anything goes wrong."""
        over = threading.Event()

        def ring() -> None:
            over.set()
            self._process.kill()

        alarm = threading.Timer(seconds, ring)
        alarm.daemon = True
        alarm.start()
        try:
            return work()
        except ImageError:
            raise
        except (OSError, EOFError, ValueError) as error:
            self._broken = True
            code = self._process.wait()
            raise _LostProcess(late if over.is_set() or code == _OVERTIME else _cause(code)) from error
        except BaseException:
            self._broken = True  # an answer may still be on its way
            raise
        finally:
            alarm.cancel()
            if self._broken:
                self.end()

    def _told(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        told: dict[str, Any] = json.loads(self._process.stdout.readline())
        return told

    def _ask(self, data: bytes, name: str, seconds: float) -> Image.Image:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"name": name, "bytes": len(data), "seconds": seconds}).encode() + b"\n")
        self._process.stdin.write(data)
        self._process.stdin.flush()
        told = self._told()
        if "error" in told:
            raise (ImageSizeError if told["large"] else ImageError)(told["error"])
        width, height = told["size"]
        image = Image.new("RGB", (width, height))
        for top in range(0, height, STRIP):
            rows = min(STRIP, height - top)
            image.paste(Image.frombytes("RGB", (width, rows), self._read(3 * width * rows)), (0, top))
        return image

    def _read(self, count: int) -> bytes:
        assert self._process.stdout is not None
        data = self._process.stdout.read(count)
        if len(data) < count:
            raise EOFError
        return data


def _started(memory: int) -> _Process:
    try:
        return _Process(memory)
    except (_LostProcess, OSError) as error:
        raise DecoderError(
            "no process that decodes images can be started; see whether memory and processes are left"
        ) from error


def _cause(code: int) -> str:
    if code == 1:
        return "takes more memory to decode than it may"
    return f"made its decoder fail (exit code {code})"
