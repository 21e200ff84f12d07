"""Which images are called unknown: a threshold on how unlike all classes an image is, given or set by the stream.

The score is 1 less the likeness of `lessmore.core.unknown`, divided by the logits' scale: the distance of an image
from its nearest class, half of it measured on debiased logits. An image whose score is above the threshold is unknown.
The step gets the threshold before the image, so that an unknown one is never stored.

`auto` finds the threshold without labels, from the scores of the last `PAST` images, known and unknown. Unknown images
are at the far end of them. So the near half says what is usual: the median, and the distance from there to the nearest
tenth, which is 1.28 standard deviations of a normal distribution. The threshold is `SPREADS` of these beyond the
median, which is meant to call `NOMINAL` of the known images unknown.

- It never calls more than a share `MOST` of the last images unknown: a long tail of hard images is not another kind.
- No image is unknown before `START` images are known.
- If the last `RECENT` images are farther off than usual, their median counts. A change of domain then looks unknown for
  a few images, not until half of the memory is new.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from functools import cached_property
from numbers import Real
from typing import Any, Literal

import numpy as np

from lessmore.core.class_list import OTHERWISE, ClassChange
from lessmore.core.unknown import likeness
from lessmore.engines.answered import Answered
from lessmore.errors import ConfigError
from lessmore.methods import KeepsOut, Method, Outcome

NOMINAL = 0.05
"""Share of the known images that `auto` is meant to call unknown."""
SPREADS, NEAREST = 2.5, 0.1
"""Where the threshold lies. Known images have a longer far tail than a normal distribution, of which 1.64 would do."""
MOST, PAST, START, RECENT = 0.2, 128, 32, 16
_NEAREST_SPREAD = 1.2816

UnknownRule = Literal["off", "auto"] | float
"""What `adapt(unknown=...)` takes."""


class UnknownGate:
    """How one stream tells unknown images, and what it has learned for that."""

    def __init__(self, rule: UnknownRule = "off") -> None:
        """Begin a stream.

        Args:
            rule: `off`, `auto`, or a threshold for the score.

        Raises:
            ConfigError: It is neither.
        """
        self.rule = checked_rule(rule)
        self.calibrated: float | None = None
        """A threshold from images that are known to be known; replaces the one of `auto`."""
        self._scores: deque[float] = deque(maxlen=PAST)

    @property
    def on(self) -> bool:
        """Whether any image can be unknown."""
        return self.rule != "off"

    def check(self, method: Method, name: str, engine: str) -> None:
        """Refuse what would store unknown images all the same.

        Args:
            method: What answers.
            name: Name of the method.
            engine: Name of its engine.

        Raises:
            ConfigError: The method or its engine cannot keep an image out of its memory.
        """
        if not self.on:
            return
        if engine in ("graph", "chunk"):
            raise ConfigError(f"engine {engine!r} cannot keep unknown images out of its memory; take engine='eager'")
        if not isinstance(method, KeepsOut) and method.facts.kind == "online":
            raise ConfigError(
                f"method {name!r} would learn from unknown images; unknown= goes with tca, and with methods that "
                "learn nothing, such as zeroshot"
            )

    def admit(self, method: Method, scale: float) -> None:
        """Tell a method what to store from now on.

        Args:
            method: What answers.
            scale: Of the logits.
        """
        if isinstance(method, KeepsOut):
            method.floor = self.floor(scale) if self.on else None

    def floor(self, scale: float) -> float:
        """The threshold as a likeness, in units of logits; exact in float32, so that no comparison rounds it.

        Args:
            scale: Of the logits.
        """
        return float(np.float32((1 - self.threshold) * scale))

    def judged(self, answered: Answered, outcome: Outcome, remember: bool) -> Answered:
        """An answer, with its score and whether the image is unknown.

        Args:
            answered: The answer; one that was refused stays as it is.
            outcome: What the method made of the image.
            remember: Whether the image is a draw of the stream.
        """
        if not self.on or answered.refused:
            return answered
        evidence = outcome.logits if outcome.evidence is None else outcome.evidence
        alike, scale = float(likeness(outcome.logits, evidence.to(outcome.logits.device))), answered.setup.logit_scale
        judged = replace(answered, unknown=alike < self.floor(scale), unknown_score=1 - alike / scale)
        if remember:
            self.see(1 - alike / scale)
        return judged

    def fused(self, answered: Answered) -> Answered:
        """The answer of a track, whose score is a mean of several."""
        score = answered.unknown_score
        return answered if score is None else replace(answered, unknown=score > self.threshold)

    def see(self, score: float) -> None:
        """Remember the score of an image."""
        self._scores.append(score)
        self.__dict__.pop("threshold", None)

    @cached_property
    def threshold(self) -> float:
        """Scores above it are unknown; infinite where none is."""
        if self.rule == "off":
            return math.inf
        if self.rule != "auto" or self.calibrated is not None:
            return float(self.rule) if self.calibrated is None else self.calibrated
        return threshold_of(list(self._scores))

    def calibrate(self, threshold: float) -> None:
        """Take a threshold from images that are known to be known.

        Args:
            threshold: The score above which images are unknown.
        """
        self.calibrated = threshold
        self.__dict__.pop("threshold", None)

    def follow(self, change: ClassChange) -> None:
        """Go on with another class list; scores over one that was twice or half as long are forgotten.

        Args:
            change: How the list changed.
        """
        lengths = change.before, len(change.source)
        if max(lengths) > OTHERWISE * min(lengths):
            self.forget()

    def forget(self) -> None:
        """Forget the stream; a calibrated threshold stays."""
        self._scores.clear()
        self.__dict__.pop("threshold", None)

    def copy(self) -> UnknownGate:
        """An independent gate that goes on from the same scores."""
        other = UnknownGate(self.rule)
        other.calibrated, other._scores = self.calibrated, self._scores.copy()
        return other

    def under(self, rule: UnknownRule) -> UnknownGate:
        """An independent gate of another rule that goes on from the same scores; it sets a new threshold.

        Args:
            rule: `off`, `auto` or a threshold.

        Raises:
            ConfigError: It is none of these.
        """
        other = UnknownGate(rule)
        other._scores.extend(self._scores if other.on else [])
        return other

    def saved(self) -> dict[str, Any]:
        """What a state file keeps."""
        return {"scores": list(self._scores), "calibrated": self.calibrated} if self.on else {}

    def restored(self, facts: Any) -> UnknownGate | None:
        """A gate of the same rule that goes on from what `saved` gave; None if that makes no sense.

        Args:
            facts: Of a state file; one without any begins with no scores. With a rule other than `auto` they do not
                matter.
        """
        facts = {} if facts is None else facts
        if not isinstance(facts, dict) or facts.keys() - {"scores", "calibrated"}:
            return None
        scores, calibrated = facts.get("scores", []), facts.get("calibrated")
        if not isinstance(scores, list) or len(scores) > PAST or not all(map(_is_score, scores)):
            return None
        if calibrated is not None and not _is_score(calibrated):
            return None
        other = UnknownGate(self.rule)
        if self.rule == "auto":
            other.calibrated = calibrated
        other._scores.extend(scores if self.on else [])
        return other


def threshold_of(scores: list[float]) -> float:
    """The threshold that a stream sets by itself; infinite while it is too short.

    Args:
        scores: Of its last images, the newest last.
    """
    if len(scores) < START:
        return math.inf
    past = np.array(scores[-PAST:])
    nearest, usual, farthest = np.quantile(past, (NEAREST, 0.5, 1 - MOST))
    spread = (usual - nearest) / _NEAREST_SPREAD
    centre = max(usual, float(np.median(past[-RECENT:])))
    return float(max(centre + SPREADS * spread, farthest))


def known_threshold(scores: list[float], false_alarms: float) -> float:
    """The threshold above which at most a share of known images lies, if they are drawn alike.

    Args:
        scores: Of known images, n of them.
        false_alarms: The share. Of n + 1 images that are drawn alike, each is as likely to be the last as any other.

    Raises:
        ConfigError: The share is not between 0 and 1, or there are too few images for it.
    """
    if not 0 < false_alarms < 1:
        raise ConfigError(f"false_alarms must lie between 0 and 1, not {false_alarms}")
    rank = math.ceil((len(scores) + 1) * (1 - false_alarms) - 1e-9)
    if rank > len(scores):
        least = math.ceil(1 / false_alarms - 1 - 1e-9)
        raise ConfigError(
            f"{len(scores)} known images are too few for false alarms of {false_alarms:g}; give at least {least}"
        )
    return sorted(scores)[rank - 1]


def checked_rule(rule: Any) -> UnknownRule:
    """What `adapt(unknown=...)` was given, if it can be used.

    Raises:
        ConfigError: It is neither `off` nor `auto` nor a finite number.
    """
    if isinstance(rule, str) and rule in ("off", "auto"):
        return "off" if rule == "off" else "auto"
    if isinstance(rule, Real) and not isinstance(rule, bool) and math.isfinite(rule):
        return float(rule)
    raise ConfigError(f"unknown={str(rule)[:60]!r} is neither 'off' nor 'auto' nor a number; see docs/decisions.md")


def _is_score(value: Any) -> bool:
    return isinstance(value, float) and math.isfinite(value)
