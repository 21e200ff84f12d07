"""Several frames of one object as one answer, which gets surer with every frame.

Frames of one object are no independent images. So the first alone adapts the stream. Every further one is answered
against the stream as it stands, and the state is then set back: a track is one draw, however long it is looked at.

The answer of a track comes from the mean of its frames' log-probabilities, which averages out what changes from frame
to frame. What all frames have in common is not averaged out. Of the variance that makes answers wrong, a share
`CHANGING` is taken to change with the frames. With n frames the variance is then 1 − CHANGING·(1 − 1/n) of a single
frame's, and the evidence, a log-likelihood ratio, counts by its inverse.

Only sums are kept, and of the last `MOST` tracks. A track that was dropped begins again.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lessmore.core.stream_check import LARGEST
from lessmore.engines.answered import Answered
from lessmore.engines.confidence import confidence_in
from lessmore.storage.state import Form, Problem

CHANGING = 0.15
"""Share of the variance of evidence, as it bears on right and wrong, that changes from frame to frame."""
MOST = 256
"""Tracks remembered."""
TENSOR = "tracks.sums"
"""The name of their sums in a state file."""
_LEAST = 1e-30


@dataclass
class FrameSums:
    """What is remembered of an object."""

    frames: int
    sums: Tensor
    """Of adapted log-probabilities, evidence, and zero-shot log-probabilities, `[3, C]` float64."""
    unlike: float | None = None
    """Of their scores of being unknown; None where these are not asked for."""


class Tracks:
    """The tracks of one stream, the one longest out of sight first."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, FrameSums] = OrderedDict()

    def __contains__(self, name: str) -> bool:
        return name in self._known

    @property
    def memory(self) -> int:
        """Bytes that they take."""
        return sum(track.sums.nbytes for track in self._known.values())

    def copy(self) -> Tracks:
        """Independent tracks that continue from the same frames."""
        other = Tracks()
        other._known = OrderedDict((name, replace(track)) for name, track in self._known.items())
        return other

    def fused(self, name: str, answered: Answered, temperature: float) -> Answered:
        """The answer of a track with one more frame.

        Args:
            name: The track.
            answered: The answer to the frame by itself; one that was refused is returned as it is.
            temperature: What evidence is divided by.
        """
        if answered.refused:
            return answered
        frame = (answered.raw_scores, answered.evidence, answered.zero_shot)
        logs = [row.double() if row is answered.evidence else row.double().clamp_min(_LEAST).log() for row in frame]
        before = self._known.get(name) or FrameSums(0, torch.zeros(3, len(logs[0]), dtype=torch.float64), 0.0)
        score = answered.unknown_score
        unlike = None if score is None or before.unlike is None else before.unlike + score
        self.put(name, before.frames + 1, before.sums + torch.stack(logs), unlike)
        track = self._known[name]
        return answered if track.frames == 1 else _answer_of(track, answered, temperature)

    def newest(self) -> tuple[str, FrameSums]:
        """The name of the track that was seen last, and what is remembered of it; there must be one."""
        return next(reversed(self._known.items()))

    def put(self, name: str, frames: int, sums: Tensor, unlike: float | None) -> None:
        """Take over what `newest` told of a track.

        Args:
            name: The track.
            frames: Its frames so far.
            sums: Their sums, `[3, C]` float64.
            unlike: The sum of their scores of being unknown; None without.

        Raises:
            ValueError: So many frames cannot have these sums.
        """
        if not _possible(sums[None], torch.tensor([frames])):
            raise ValueError("the sums of a track are none")
        self._known[name] = FrameSums(frames, sums, unlike)
        self._known.move_to_end(name)
        if len(self._known) > MOST:
            self._known.popitem(last=False)

    def saved(self) -> tuple[dict[str, Tensor], list[list[Any]]]:
        """Tensors and facts for a state file; none where there are no tracks."""
        if not self._known:
            return {}, []
        sums = torch.stack([track.sums for track in self._known.values()])
        return {TENSOR: sums}, [
            [name, track.frames] if track.unlike is None else [name, track.frames, track.unlike]
            for name, track in self._known.items()
        ]

    def restored(self, tensors: Mapping[str, Tensor], facts: Any) -> bool:
        """Take over what `saved` gave.

        Args:
            tensors: Those of the file; others among them are left alone.
            facts: Names, numbers of frames and sums of scores.

        Returns:
            False if they do not belong together; nothing has changed then.
        """
        sums = tensors.get(TENSOR, torch.empty(0))
        if not isinstance(facts, list) or len(facts) != len(sums) or not all(_is_track(fact) for fact in facts):
            return False
        frames = torch.tensor([n for _, n, *_ in facts], dtype=torch.float64)
        if facts and not _possible(sums.cpu(), frames):
            return False
        self._known = OrderedDict(
            (name, FrameSums(n, row.cpu().clone(), *unlike))
            for (name, n, *unlike), row in zip(facts, sums, strict=True)
        )
        return len(self._known) == len(facts)


def track_forms(C: int) -> dict[str, Form]:
    """What the tensors of tracks over C classes look like."""
    return {TENSOR: Form(torch.float64, (range(1, MOST + 1), 3, C), required=False)}


def beside_tracks(problem: Problem) -> Problem:
    """What says why the other tensors of a state file make no sense."""
    return lambda state: problem({name: tensor for name, tensor in state.items() if name != TENSOR})


def surer(frames: int) -> float:
    """How many times the mean evidence of so many frames counts."""
    return 1 / (1 - CHANGING * (1 - 1 / frames))


def _answer_of(track: FrameSums, last: Answered, temperature: float) -> Answered:
    adapted, evidence, plain = track.sums / track.frames
    raw, evidence = adapted.softmax(dim=-1), evidence * surer(track.frames)
    return replace(
        last,
        raw_scores=raw.float(),
        zero_shot=plain.softmax(dim=-1).float(),
        stored=False,
        evidence=evidence.float(),
        confidence=confidence_in(int(raw.argmax()), evidence, temperature),
        frames=track.frames,
        unknown_score=last.unknown_score if track.unlike is None else track.unlike / track.frames,
    )


def _possible(sums: Tensor, frames: Tensor) -> bool:
    """Whether sums `[n, 3, C]` can be of so many frames `[n]`: logarithms of probabilities, and evidence in bounds.

    NaN fits no bound.
    """
    logs, least = sums[:, [0, 2]], frames[:, None, None] * math.log(_LEAST)
    fits = (logs <= 1e-3 * frames[:, None, None]).all() & (logs >= least * (1 + 1e-3)).all()
    return bool(fits & (sums[:, 1].abs() <= LARGEST).all())


def _is_track(fact: Any) -> bool:
    if not isinstance(fact, list) or len(fact) not in (2, 3):
        return False
    name, frames, *unlike = fact
    counted = isinstance(name, str) and type(frames) is int and 0 < frames < LARGEST
    return counted and all(isinstance(one, float) and abs(one) <= LARGEST for one in unlike)
