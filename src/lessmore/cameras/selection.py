"""Which frames are answered: one in so many seconds, those in which something moved, and none without a picture.

All rules look at glances. Two glances differ where a cell differs by more than `LEVELS` from what all cells differ by,
so that a light that dims everywhere is no motion; they are different scenes if a share of `MOVED` of the cells differs.
"""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from lessmore.cameras.frame import GLANCE, Frame, Glance
from lessmore.errors import ConfigError

LEVELS = 20
"""Grey levels, of 256, by which a cell must change."""
MOVED = 0.01
"""Share of the cells that must change."""
BLANK = 8
"""A glance whose grey levels all lie within this range shows nothing."""

Reason = Literal["newer", "every", "still", "blank", "corrupt"]
"""Why a frame was not answered: a newer one came first, `--every`, `--when motion`, it shows nothing, it is damaged."""


@dataclass(frozen=True)
class SelectionRules:
    """What is asked of frames."""

    every: float = 0.0
    """Seconds between two frames that are answered."""
    motion: bool = False
    """Only frames that differ from the one answered last."""
    track: bool = False
    """Frames of a scene that does not change are one object with one answer, and adapt the stream once."""

    def __post_init__(self) -> None:
        if not 0 <= self.every < float("inf"):
            raise ConfigError(f"--every must be 0 or more seconds, not {self.every}")
        if self.motion and self.track:
            raise ConfigError("--track and --when motion exclude each other: frames without motion would be dropped")


class Past(NamedTuple):
    """What the choice of the next frame depends on."""

    chosen: float | None = None
    """Time of the frame chosen last, by the source's clock."""
    scene: int = 0
    reference: bytes | None = None
    """The glance that the next one is compared with."""

    def as_facts(self) -> dict[str, Any]:
        """What JSON can hold."""
        kept = None if self.reference is None else base64.b64encode(self.reference).decode()
        return {"chosen": self.chosen, "scene": self.scene, "reference": kept}


def past_of(facts: Any, live: bool) -> Past:
    """The past that `Past.as_facts` wrote.

    Args:
        facts: What it gave.
        live: Whether the source is live. Its clock has started again since, and is left out.

    Raises:
        ValueError: It makes no sense.
    """
    try:
        chosen, scene, kept = facts["chosen"], facts["scene"], facts["reference"]
        reference = None if kept is None else base64.b64decode(kept, validate=True)
    except (KeyError, TypeError, binascii.Error) as error:
        raise ValueError("the selection of frames is missing") from error
    if type(scene) is not int or not isinstance(chosen, (int, float, type(None))):
        raise ValueError("the selection of frames has another form")
    if reference is not None and len(reference) != GLANCE[0] * GLANCE[1]:
        raise ValueError("the glance has another size")
    return Past(None if live or chosen is None else float(chosen), scene, reference)


@dataclass
class Selection:
    """Chooses frames, one after another, and counts those left out."""

    rules: SelectionRules
    past: Past
    dropped: Counter[Reason] = field(default_factory=Counter)

    def chooses(self, frame: Frame, clock: float | None) -> bool:
        """Whether a frame is to be answered; it is then told its scene.

        Args:
            frame: The frame.
            clock: Its time by the source's clock, in seconds; None where every frame counts.

        Raises:
            ImageError: It cannot be read.
        """
        reason = self._reason(frame, clock)
        if reason is not None:
            self.dropped[reason] += 1
            return False
        frame.scene = self.past.scene
        return True

    def _reason(self, frame: Frame, clock: float | None) -> Reason | None:
        chosen, scene, reference = self.past
        if frame.corrupt:
            return "corrupt"
        # A clock that jumps back, as in joined videos, starts again.
        if clock is not None and chosen is not None and 0 <= clock - chosen < self.rules.every:
            return "every"
        if frame.file is None and is_blank(frame.glance):
            return "blank"
        if self.rules.motion or self.rules.track:
            glance = np.ascontiguousarray(frame.glance)
            moved = reference is None or differ(np.frombuffer(reference, np.uint8).reshape(glance.shape), glance)
            if self.rules.motion and not moved:
                return "still"
            scene, reference = (scene + 1, glance.tobytes()) if moved else (scene, reference)
        self.past = Past(clock, scene, reference)
        return None


def is_blank(glance: Glance) -> bool:
    """Whether a frame shows nothing: a covered lens, a grey screen, a camera without a signal."""
    return int(glance.max()) - int(glance.min()) < BLANK


def differ(one: Glance, other: Glance) -> bool:
    """Whether something moved between two frames; see the module.

    Args:
        one: A glance, `[36, 64]` uint8.
        other: A glance of the same size.
    """
    change = other.astype(np.int16) - one
    return bool((np.abs(change - np.median(change)) > LEVELS).mean() >= MOVED)
