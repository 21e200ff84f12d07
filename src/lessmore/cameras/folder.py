"""The images of a folder, and those that come into it later. It is looked through again and again.

Polling sees what notifications of the system miss: images that a camera puts on a network share.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from functools import partial

from lessmore.cameras.frame import Frame
from lessmore.cameras.source import FrameSource
from lessmore.cameras.video import SourceError
from lessmore.data.formats import ENDINGS
from lessmore.data.images import load_image

POLL = 0.5
"""Seconds between two looks into a folder."""
SETTLED = 2.0
"""Seconds since its last change after which a file counts as complete at the first look."""


class Folder:
    """Gives every image once, by name among those that are there, then in the order in which they are complete.

    A file that is being written is left alone until it has the same size and time at two looks.
    """

    finite = False
    remark = ""

    def __init__(self, source: FrameSource, known: set[str], once: bool, closed: threading.Event) -> None:
        """Nothing is read yet.

        Args:
            source: The folder.
            known: Names of images that were answered before; added to.
            once: Whether to end when every image there is has been given.
            closed: Set when nobody wants more.
        """
        self.source, self._known, self._once, self._closed = source, known, once, closed
        self._before: dict[str, tuple[int, int]] = {}

    def frames(self, after: tuple[int, int | None] | None = None) -> Iterator[Frame]:
        """Its images as they come.

        Args:
            after: How many were given before.

        Raises:
            SourceError: The folder cannot be read.
        """
        number = (after or (0, None))[0]
        while not self._closed.is_set():
            for name in self._complete():
                number += 1
                self._known.add(name)
                yield Frame(number, partial(load_image, os.path.join(self.source.address, name)), file=name)
            if self._once and not self._before:
                return
            self._closed.wait(POLL)

    def _complete(self) -> list[str]:
        """Names that are new and no longer written, in order; the others are remembered."""
        found, self._before, before = [], {}, self._before
        try:
            with os.scandir(self.source.address) as entries:
                new = [e for e in entries if e.name not in self._known and e.name.lower().endswith(ENDINGS)]
        except OSError as error:
            raise SourceError(f"{self.source.address}: {error.strerror}") from error
        for entry in new:
            if entry.name.startswith("."):
                continue
            try:
                about = entry.stat()
            except OSError:  # gone again
                continue
            seen = (about.st_size, about.st_mtime_ns)
            if before.get(entry.name) == seen or about.st_mtime < time.time() - SETTLED:
                found.append(entry.name)
            else:
                self._before[entry.name] = seen
        return sorted(found)

    def close(self) -> None:
        """Nothing is open."""
