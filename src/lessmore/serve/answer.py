"""What a client asks for with an image, and the answer as it gets it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from PIL.Image import Image

from lessmore.adapter import Adapter
from lessmore.prediction import Prediction

Answer = dict[str, Any]
"""The body of an answer, as JSON."""
RawImage = bytes | Callable[[], Image]
"""An image as it came, or what makes a camera's frame an image."""


@dataclass(frozen=True)
class Asked:
    """What a request wants beside the answer itself."""

    key: str | None = None
    """Its `Idempotency-Key`."""
    top: int = 5
    """How many classes the answer names."""
    track: str | None = None
    """The object that the image is a frame of."""
    explain: bool = False
    """Whether to keep where every patch went."""


def answer_body(stream: str, seq: int, prediction: Prediction, domains: tuple[int, int], asked: Asked) -> Answer:
    """An answer as clients get it.

    Args:
        stream: Id of the stream.
        seq: The image's number in the stream.
        prediction: The answer.
        domains: Changes of domain that the stream had noticed before the image, and after it.
        asked: What was asked for.
    """
    scores, plain, classes = prediction.scores, prediction.zero_shot_scores, prediction.classes
    best = scores.argsort(descending=True, stable=True)[: asked.top].tolist()
    groups = sorted(prediction.group_scores.items(), key=lambda pair: -pair[1])[: asked.top]
    return {
        "stream": stream,
        "seq": seq,
        "label": prediction.label,
        "index": prediction.index,
        "score": float(scores[prediction.index]),
        "zero_shot_label": classes[int(plain.argmax())],
        "changed": prediction.changed,
        "refused": prediction.refused,
        "entropy": prediction.entropy,
        "unknown": prediction.unknown,
        "unknown_score": prediction.unknown_score,
        "domain_changes": domains[1],
        "domain_changed": domains[1] > domains[0],
        "track": asked.track,
        "frames": prediction.frames,
        "group": prediction.group,
        "groups": [{"label": name, "score": score} for name, score in groups],
        "top": [{"label": classes[i], "score": float(scores[i]), "zero_shot_score": float(plain[i])} for i in best],
    }


def listed(classes: Sequence[str] | Mapping[str, Sequence[str]]) -> list[Any]:
    """A class list as settings hold it: names, or pairs of a group and its names, whose order no file format changes.

    Args:
        classes: As a request gives them: names, or groups of names.
    """
    return [[group, list(names)] for group, names in classes.items()] if isinstance(classes, Mapping) else list(classes)


def flat_names(classes: Sequence[Any]) -> list[str]:
    """The names of a class list as settings hold it."""
    return [name for one in classes for name in ([one] if isinstance(one, str) else one[1])]


def classes_of(adapter: Adapter) -> list[Any]:
    """The class list of an adapter as settings hold it."""
    if not adapter.groups:
        return adapter.classes
    runs = itertools.groupby(zip(adapter.groups, adapter.classes, strict=True), key=lambda pair: pair[0])
    return [[group, [name for _, name in run]] for group, run in runs]
