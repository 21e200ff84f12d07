"""The answer for one image, as people get it: numbers to act on, and a look at them."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lessmore.core.condense.source import SourceMap, source_map
from lessmore.engines.answered import Answered

_BAR = "display:inline-block;height:.8em;border-radius:2px;background:#4477aa;width:{:.1f}em"
_MARK = "display:inline-block;height:.8em;border-left:2px solid #cc6677;margin-left:{:.1f}em"
_WIDTH = 12.0  # of a full bar, in em


@dataclass(frozen=True, repr=False)
class Prediction:
    """The answer for one image. Score tensors are float32 on the CPU and sum to one.

    Examples:
        >>> import lessmore
        >>> from PIL import Image
        >>> adapter = lessmore.adapt("tiny", ["red circle", "blue square"], cache=False)
        >>> prediction = adapter(Image.new("RGB", (32, 32), "red"), trace=True)
        >>> prediction.label, prediction.index, prediction.changed, prediction.refused
        ('red circle', 0, False, False)
        >>> [label for label, probability in prediction.top(2)]
        ['red circle', 'blue square']
        >>> len(prediction.trace.blocks)
        5
    """

    label: str
    """The class answered, as it stands in the class list."""
    index: int
    """Its place in the class list."""
    scores: Tensor
    """Probability of every class after adaptation, calibrated without labels, `[C]`."""
    raw_scores: Tensor
    """The same as the method makes them, in the same order but far surer than right, `[C]`."""
    zero_shot_scores: Tensor
    """The same before adaptation, from the same forward pass, `[C]`."""
    entropy: float
    """Entropy of `zero_shot_scores`, in nats."""
    refused: bool = False
    """The adapted answer was not finite: this is the plain model's, and nothing was stored."""
    trace: SourceMap | None = None
    """Where every patch went, block by block; only on request."""
    classes: tuple[str, ...] = ()
    """The class list at the time of the answer."""
    frames: int = 1
    """Frames of the track that the answer is made of."""
    groups: tuple[str, ...] = ()
    """The group of every class; empty where the class list has none."""

    unknown: bool = False
    """The image is unlike all classes, see `adapt(unknown=...)`: `label` is the nearest, and nothing was stored."""
    unknown_score: float | None = None
    """How unlike all classes the image is; None with `unknown="off"` and for refused answers."""

    @property
    def confidence(self) -> float:
        """Probability of the class answered: about how often such answers are right."""
        return float(self.scores[self.index])

    @property
    def changed(self) -> bool:
        """Whether adaptation changed the answer."""
        return self.index != int(self.zero_shot_scores.argmax())

    @property
    def group_scores(self) -> dict[str, float]:
        """Probability of every group: the sum of its classes. Empty where the class list has no groups."""
        sums = dict.fromkeys(self.groups, 0.0)
        for group, score in zip(self.groups, self.scores.tolist(), strict=False):
            sums[group] += score
        return sums

    @property
    def group(self) -> str | None:
        """The most probable group; None without groups. `label` may belong to another, whose classes share less."""
        sums = self.group_scores
        return max(sums, key=sums.__getitem__) if sums else None

    def top(self, k: int = 5) -> list[tuple[str, float]]:
        """The k most probable classes with their probabilities, the first of equal ones first."""
        found = self.scores.sort(descending=True, stable=True)
        return [
            (self.classes[i], score)
            for i, score in zip(found.indices[:k].tolist(), found.values[:k].tolist(), strict=True)
        ]

    def to_dict(self, k: int = 5) -> dict[str, Any]:
        """What `json.dumps` can write: the answer, its k most probable classes, and zero-shot's answer."""
        before = int(self.zero_shot_scores.argmax())
        found: dict[str, Any] = {
            "label": self.label,
            "index": self.index,
            "confidence": self.confidence,
            "top": [{"label": name, "score": score} for name, score in self.top(k)],
            "zero_shot": {"label": self.classes[before], "score": float(self.zero_shot_scores[before])},
            "changed": self.changed,
            "entropy": self.entropy,
            "refused": self.refused,
            "frames": self.frames,
            "unknown": self.unknown,
            "unknown_score": self.unknown_score,
        }
        return found | ({"group": self.group, "group_scores": self.group_scores} if self.groups else {})

    def __repr__(self) -> str:
        ranked = ", ".join(f"{name!r} {score:.3f}" for name, score in self.top(3))
        before = int(self.zero_shot_scores.argmax())
        parts = [ranked, f"zero-shot {self.classes[before]!r} {float(self.zero_shot_scores[before]):.3f}"]
        if self.groups:
            parts.append(f"group {self.group!r} {self.group_scores[self.group or '']:.3f}")
        return f"Prediction({'; '.join([*parts, *self._remarks()])})"

    def _repr_html_(self) -> str:
        """A table of the most probable classes for notebooks; a red mark shows what zero-shot gave each."""
        found = self.scores.sort(descending=True, stable=True).indices[:5].tolist()
        rows = "".join(self._row(i) for i in found)
        remarks = html.escape("; ".join(self._remarks()))
        note = f"<caption style='caption-side:bottom'>{remarks}</caption>" if remarks else ""
        return f"<table>{note}<tr><th>class</th><th>probability</th><th></th></tr>{rows}</table>"

    def _row(self, i: int) -> str:
        after, before = float(self.scores[i]), float(self.zero_shot_scores[i])
        name = f"<b>{html.escape(self.classes[i])}</b>" if i == self.index else html.escape(self.classes[i])
        bar, mark = _BAR.format(_WIDTH * after), _MARK.format(_WIDTH * before)
        bars = f"<div><span style='{bar}'></span></div>"
        marks = f"<div title='zero-shot {before:.3f}'><span style='{mark}'></span></div>"
        return f"<tr><td>{name}</td><td>{after:.3f}</td><td style='text-align:left'>{bars}{marks}</td></tr>"

    def _remarks(self) -> list[str]:
        """What else is worth knowing."""
        remarks = {
            f"of {self.frames} frames": self.frames > 1,
            "unknown: like none of the classes": self.unknown,
            "changed by adaptation": self.changed,
            "refused: zero-shot's answer": self.refused,
        }
        return [text for text, holds in remarks.items() if holds]


def entropy_of(scores: Tensor) -> float:
    """Entropy of probabilities `[C]`, in nats."""
    return float(torch.special.entr(scores).sum())


def prediction_of(answered: Answered, trace: bool = False) -> Prediction:
    """An answer as people get it.

    Args:
        answered: The answer.
        trace: Whether to say where every patch went.
    """
    return Prediction(
        label=answered.setup.classes[answered.index],
        index=answered.index,
        scores=answered.scores,
        raw_scores=answered.raw_scores,
        zero_shot_scores=answered.zero_shot,
        entropy=entropy_of(answered.zero_shot),
        refused=answered.refused,
        frames=answered.frames,
        unknown=answered.unknown,
        unknown_score=answered.unknown_score,
        trace=source_map(answered.steps) if trace and answered.steps else None,
        classes=answered.setup.classes,
        groups=answered.setup.groups,
    )
