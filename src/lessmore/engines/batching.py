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
    """The smallest size that holds n images, or the largest size if none does.

    Args:
        sizes: Ascending batch sizes.
        n: Number of images.
    """
    return next((size for size in sizes if size >= n), sizes[-1])


def padded(rows: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Rows filled up to the next batch size by repeating the last one.

    Args:
        rows: At least one row.
        sizes: Ascending batch sizes.
    """
    return [*rows, *[rows[-1]] * (fitting(sizes, len(rows)) - len(rows))]


def take_rows(begun: PrefixState, rows: Tensor) -> PrefixState:
    """Some images of a batch that has been encoded up to the first condensing block.

    Args:
        begun: The batch.
        rows: Which images, `[B]` int64.
    """
    return PrefixState(begun.x[rows], [token[rows] for token in begun.summaries])


def put_(whole: Sequence[Tensor], source: Tensor, part: Sequence[Tensor]) -> None:
    """Overwrite rows of tensors by rows of others, with shapes that do not depend on how many change.

    Args:
        whole: Tensors `[P, …]`, changed in place.
        source: For every row of theirs the row to take from `part`, −1 to keep it, `[P]` int64.
        part: Tensors `[B, …]`, one for each of `whole`.
    """
    new, rows = source >= 0, source.clamp_min(0)
    for old, other in zip(whole, part, strict=True):
        torch.where(new.view(-1, *[1] * (old.ndim - 1)), other[rows], old, out=old)


def tensors(encoded: Encoded) -> list[Tensor]:
    """All tensors of a batch of encodings, in a fixed order."""
    steps = [t for step in encoded.steps for t in (step.target, step.anchor) if t is not None]
    return [encoded.feature, encoded.tokens, *steps]


def logits_of(encoded: Encoded, setup: Setup) -> Tensor:
    """Zero-shot logits `[B, C]`.

    Args:
        encoded: A batch of B images.
        setup: The class embeddings and the logits' scale.
    """
    return zero_shot_logits(encoded, setup.text, setup.logit_scale)


def outcome(
    logits: Tensor, debiased: Tensor, corrected: Tensor, stored: Tensor, steps: list[Step], setup: Setup
) -> Outcome:
    """An `Outcome` whose tensors have the batch in front.

    Args:
        logits: Zero-shot logits, `[B, C]`.
        debiased: Before any stored sample votes, `[B, C]`.
        corrected: Corrected scores, `[B, C]`, in the domain of the preset.
        stored: Which images were stored, `[B]` bool.
        steps: What the condensing blocks did.
        setup: The settings.
    """
    scores = probabilities(corrected, setup.preset.adaptation.domain)
    return Outcome(logits, scores, logits.softmax(dim=-1), stored, steps, debiased)


class Answers(Sequence[Outcome]):
    """The first n answers of a batch; it is split only when one of them is asked for."""

    def __init__(self, batch: Outcome, n: int) -> None:
        """Keep the batch.

        Args:
            batch: An outcome with n or more images in front of its tensors.
            n: How many of them are real.
        """
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
        """All n answers."""
        return split(self.batch, self.n)


def split(batch: Outcome, n: int) -> list[Outcome]:
    """The first n answers of a batch, one by one.

    Args:
        batch: An outcome with n or more images in front of its tensors.
        n: How many to take.
    """
    logits, scores, zero_shot = (t[:n].unbind(0) for t in (batch.logits, batch.scores, batch.zero_shot))
    stored = [None] * n if batch.stored is None else batch.stored[:n].unbind(0)
    steps = [_each(step, n) for step in batch.steps]
    evidence = [None] * n if batch.evidence is None else batch.evidence[:n].unbind(0)
    return [
        Outcome(logits[i], scores[i], zero_shot[i], stored[i], [s[i] for s in steps], evidence[i]) for i in range(n)
    ]


def on_host(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Outcomes with everything but the logits on the CPU; one copy each for all of them."""
    scores, zero_shot = (
        torch.stack(rows).cpu() for rows in zip(*((o.scores, o.zero_shot) for o in outcomes), strict=True)
    )
    stored, evidence = _together([o.stored for o in outcomes]), _together([o.evidence for o in outcomes])
    return [
        o._replace(scores=own, zero_shot=plain, stored=was, evidence=judged)
        for o, own, plain, was, judged in zip(outcomes, scores, zero_shot, stored, evidence, strict=True)
    ]


def _together(each: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """Tensors on the CPU, copied at once; nothing where one has none."""
    there = [one for one in each if one is not None]
    return torch.stack(there).cpu().unbind(0) if len(there) == len(each) else [None] * len(each)


def _each(step: Step, n: int) -> list[Step]:
    """A batch's step, image by image, each a batch of one."""
    targets = step.target[:n].split(1)
    anchors = step.anchor[:n].split(1) if step.anchor is not None else [None] * n
    return [Step(step.block, step.stage, target, anchor) for target, anchor in zip(targets, anchors, strict=True)]


def copied(answer: Outcome) -> Outcome:
    """An independent copy, for answers in the memory of a graph that will be replayed."""
    steps = [Step(s.block, s.stage, s.target.clone(), _copy(s.anchor)) for s in answer.steps]
    logits, scores, zero_shot = answer.logits.clone(), answer.scores.clone(), answer.zero_shot.clone()
    return Outcome(logits, scores, zero_shot, _copy(answer.stored), steps, _copy(answer.evidence))


def _copy(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.clone()
