"""Batches of a few fixed sizes, and answers for many images at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import overload

import torch
from torch import Tensor

from lessmore.core.condense.source import Step
from lessmore.core.correction import probabilities
from lessmore.core.encoder import Encoded, PrefixState
from lessmore.methods.registry import Outcome, Setup
from lessmore.methods.zeroshot import zero_shot_logits


def fitting(sizes: Sequence[int], n: int) -> int:
    """The smallest of the ascending sizes that holds n; the largest where none does."""
    return next((size for size in sizes if size >= n), sizes[-1])


def padded(rows: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """The rows, the last one repeated up to the next of the sizes."""
    return [*rows, *[rows[-1]] * (fitting(sizes, len(rows)) - len(rows))]


def take_rows(begun: PrefixState, rows: Tensor) -> PrefixState:
    """Some images of a batch that has been begun."""
    return PrefixState(begun.x[rows], [token[rows] for token in begun.summaries])


def put_(whole: Sequence[Tensor], source: Tensor, part: Sequence[Tensor]) -> None:
    """Overwrite rows of tensors by rows of others; source: which one for each, −1 where it stays, [P] int64."""
    new, rows = source >= 0, source.clamp_min(0)
    for old, other in zip(whole, part, strict=True):
        torch.where(new.view(-1, *[1] * (old.ndim - 1)), other[rows], old, out=old)


def tensors(encoded: Encoded) -> list[Tensor]:
    """All of a batch's."""
    steps = [t for step in encoded.steps for t in (step.target, step.anchor) if t is not None]
    return [encoded.feature, encoded.tokens, *steps]


def logits_of(encoded: Encoded, setup: Setup) -> Tensor:
    """Zero-shot logits, [B, C]."""
    return zero_shot_logits(encoded, setup.text, setup.logit_scale)


def outcome(logits: Tensor, corrected: Tensor, stored: Tensor, steps: list[Step], setup: Setup) -> Outcome:
    """An `Outcome` whose tensors have the batch in front, from logits and corrected scores [B, C], stored [B]."""
    scores = probabilities(corrected, setup.preset.adaptation.domain)
    return Outcome(logits, scores, logits.softmax(dim=-1), stored, steps)


class Answers(Sequence[Outcome]):
    """The first n answers of a batch, which stay together until one is asked for."""

    def __init__(self, batch: Outcome, n: int) -> None:
        """batch: its tensors have the batch in front, which may be filled up beyond n."""
        self.batch, self.n = batch, n

    def __len__(self) -> int:
        return self.n

    @overload
    def __getitem__(self, i: int) -> Outcome: ...
    @overload
    def __getitem__(self, i: slice) -> Sequence[Outcome]: ...
    def __getitem__(self, i: int | slice) -> Outcome | Sequence[Outcome]:
        return self.each[i]

    @cached_property
    def each(self) -> list[Outcome]:
        """One by one."""
        return split(self.batch, self.n)


def split(batch: Outcome, n: int) -> list[Outcome]:
    """The first n answers of a batch, one by one."""
    logits, scores, zero_shot = (t[:n].unbind(0) for t in (batch.logits, batch.scores, batch.zero_shot))
    stored = [None] * n if batch.stored is None else batch.stored[:n].unbind(0)
    steps = [_each(step, n) for step in batch.steps]
    return [Outcome(logits[i], scores[i], zero_shot[i], stored[i], [s[i] for s in steps]) for i in range(n)]


def on_host(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Outcomes with scores, zero-shot probabilities and `stored` on the CPU; one copy each for all of them."""
    scores, zero_shot = (
        torch.stack(rows).cpu() for rows in zip(*((o.scores, o.zero_shot) for o in outcomes), strict=True)
    )
    kept = [o.stored for o in outcomes if o.stored is not None]
    stored = torch.stack(kept).cpu() if len(kept) == len(outcomes) else [None] * len(outcomes)
    return [
        o._replace(scores=own, zero_shot=plain, stored=was)
        for o, own, plain, was in zip(outcomes, scores, zero_shot, stored, strict=True)
    ]


def _each(step: Step, n: int) -> list[Step]:
    """A batch's step, image by image, each a batch of one."""
    targets = step.target[:n].split(1)
    anchors = step.anchor[:n].split(1) if step.anchor is not None else [None] * n
    return [Step(step.block, step.stage, target, anchor) for target, anchor in zip(targets, anchors, strict=True)]


def copied(answer: Outcome) -> Outcome:
    """An independent copy, for answers that lie in a graph's memory."""
    steps = [Step(s.block, s.stage, s.target.clone(), _copy(s.anchor)) for s in answer.steps]
    logits, scores, zero_shot = answer.logits.clone(), answer.scores.clone(), answer.zero_shot.clone()
    return Outcome(logits, scores, zero_shot, _copy(answer.stored), steps)


def _copy(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.clone()
