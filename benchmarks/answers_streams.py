"""Streams of encodings that `answers_encode.py` made, answered by an adapter as it is, for the benchmarks beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor

import lessmore
from lessmore.core.class_texts import class_logits
from lessmore.core.encoder import Encoded
from lessmore.engines.answered import Answered
from lessmore.engines.answers import Answerer
from lessmore.methods.registry import Setup
from lessmore.methods.resolve import resolve

BINS = 15
THRESHOLDS = (0.5, 0.7, 0.9)
Floats = NDArray[np.float64]
Hits = NDArray[np.bool_]


@dataclass(frozen=True)
class Encodings:
    """Images of one data set under one condition, seen by one model."""

    model: str
    dataset: str
    condition: str
    text: Tensor
    scale: float
    labels: NDArray[np.int64]
    track: NDArray[np.int64]
    tokens: Tensor
    feature: Tensor
    plain: Tensor
    """Features of the whole model, for matched zero-shot."""

    def zero_shot(self, rows: NDArray[np.int64]) -> Tensor:
        """Matched zero-shot's logits of some images, `[n, C]`."""
        return class_logits(self.plain[torch.from_numpy(rows)], self.text, self.scale)

    def encoded(self, row: int, whole: bool = False) -> Encoded:
        """One image as a method takes it; whole: by the model without condensation, where tokens are not needed."""
        feature = self.plain if whole else self.feature
        return Encoded(feature[row : row + 1], self.tokens[row : row + 1], [])


def read_encodings(file: Path) -> Encodings:
    """What `answers_encode.py` wrote."""
    found, (model, dataset, condition, *_) = np.load(file), file.name.split(".")
    tensors = {name: torch.from_numpy(found[name]) for name in ("tokens", "feature", "plain")}
    if "text" not in found:  # pictures of noise belong to no class
        nobody = np.full(len(found["plain"]), -1)
        return Encodings(model, dataset, condition, torch.empty(0), 1.0, nobody, nobody, **tensors)
    text, scale = torch.from_numpy(found["text"]), float(found["scale"])
    return Encodings(model, dataset, condition, text, scale, found["labels"], found["track"], **tensors)


def answerer(one: Encodings, method: str, models: Path, **options: Any) -> Answerer:
    """What answers a stream of the encodings, with the method's defaults."""
    known = models / one.model
    vlm = lessmore.load(str(known) if known.exists() else one.model)
    chosen = resolve(method, "default", None, "auto", options, vlm.vision.shape)
    names = tuple(str(i) for i in range(len(one.text)))
    setup = Setup(vlm.vision, one.text, one.scale, chosen.preset, vlm, names, options=chosen.options)
    return Answerer(method, setup, "eager")


def over_classes(made: Answerer, one: Encodings) -> Answerer:
    """The same over another data set or class list of the same model, without loading it again."""
    names = tuple(str(i) for i in range(len(one.text)))
    setup = replace(made.setup, text=one.text, logit_scale=one.scale, classes=names)
    return Answerer(made.method_name, setup, made.engine)


def plain_of(one: Encodings, row: int) -> Tensor:
    """Matched zero-shot's probabilities of an image, `[C]`."""
    return one.zero_shot(np.array([row]))[0].softmax(dim=-1)


def order_of(labels: NDArray[np.int64], kind: str, seed: int) -> NDArray[np.int64]:
    """Images in the order of a stream, `i.i.d.` or `sorted` by class."""
    dice = np.random.default_rng(seed)
    if kind == "i.i.d.":
        return dice.permutation(len(labels))
    classes = dice.permutation(labels.max() + 1)
    return np.concatenate([dice.permutation(np.flatnonzero(labels == k)) for k in classes])


def answered(made: Answerer, one: Encodings, rows: Sequence[int]) -> list[Answered]:
    """Answers to a stream from its beginning."""
    made.reset()
    whole = made.method_name != "tca"
    return [made.answer(one.encoded(int(row), whole), lambda row=row: plain_of(one, int(row))) for row in rows]


def ece(confidence: Floats, right: Hits) -> float:
    """Expected calibration error over 15 bins of equal width."""
    bins = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    gaps = [abs(confidence[bins == b].sum() - right[bins == b].sum()) for b in range(BINS)]
    return float(sum(gaps) / len(right))


def auroc(score: Floats, positive: Hits) -> float:
    """Chance that a positive has a higher score than a negative; NaN without either."""
    ones, zeros = int(positive.sum()), int((~positive).sum())
    if not ones or not zeros:
        return float("nan")
    return float((rankdata(score)[positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def quality(probabilities: Tensor, labels: NDArray[np.int64]) -> dict[str, float]:
    """What reported probabilities are worth.

    Accuracy, calibration error, Brier score over all classes, negative log-likelihood, AUROC of right against wrong;
    and for some thresholds the share of answers at least so sure, and the accuracy of these.

    Args:
        probabilities: `[n, C]`.
        labels: `[n]`.
    """
    wide, y = probabilities.double(), torch.from_numpy(labels)
    confidence, answers = wide.max(dim=1)
    right = (answers == y).numpy()
    of_truth = wide.gather(1, y[:, None])[:, 0]
    brier = (wide.square().sum(dim=1) - 2 * of_truth + 1).mean()
    sure = {f"taken {t}": float((confidence >= t).double().mean()) for t in THRESHOLDS}
    hits = {
        f"right {t}": float(right[(confidence >= t).numpy()].mean() if sure[f"taken {t}"] else np.nan)
        for t in THRESHOLDS
    }
    return (
        sure
        | hits
        | {
            "accuracy": float(right.mean()),
            "confidence": float(confidence.mean()),
            "ece": ece(confidence.numpy(), right),
            "brier": float(brier),
            "nll": float(-of_truth.clamp_min(1e-12).log().mean()),
            "auroc": auroc(confidence.numpy(), right),
        }
    )
