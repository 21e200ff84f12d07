"""The answer to a frame, as rows, messages and pictures show it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone

from PIL import Image


@dataclass(frozen=True)
class CameraAnswer:
    """A frame that was answered; of one that could not be, only the first six and the last two are set."""

    source: str
    number: int
    """Answers of this source so far, this one included, in earlier runs that were resumed too."""
    time: str
    """When it was answered, by the wall clock, in UTC. Nothing is decided by it."""
    frame: int
    """The frame's number in the source; of a live one since it was opened."""
    seconds: float | None
    """The frame's time in a video file."""
    file: str | None
    """The image's name in a folder."""
    label: str | None = None
    index: int | None = None
    score: float | None = None
    zero_shot_label: str | None = None
    changed: bool | None = None
    entropy: float | None = None
    refused: bool | None = None
    """The adapted answer was not finite; this is the plain model's."""
    frames: int | None = None
    """Frames of the static scene that the answer is made of, with --track."""
    unknown: bool | None = None
    """The frame is unlike all classes, with --unknown."""
    domain_changes: int | None = None
    """Changes of domain noticed so far, such as from day to night."""
    ms: float | None = None
    """From the decoded frame to its answer."""
    error: str | None = None


class Sink:
    """Where answers go. An `OSError` that it lets through ends the watch."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        """What went wrong without ending the watch, for people."""

    def put(self, answer: CameraAnswer, image: Image.Image | None) -> None:
        """Take an answer.

        Args:
            answer: The answer.
            image: The frame; None where it could not be read.
        """

    def told(self, source: str, condition: str, why: str) -> None:
        """Take note of how a source is.

        Args:
            source: Its name.
            condition: `live`, `lost`, `ended` or `failed`.
            why: A reason, for people.
        """

    def sync(self) -> None:
        """Put what was taken on the disk; called before a state that counts it is written."""

    def close(self) -> None:
        """Nothing more comes."""


def now() -> str:
    """The time in UTC as ISO 8601, to the millisecond."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
