"""Numbers from the rows of samples.jsonl; the same rows always give the same numbers."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lessmore.engines.answers import REFUSALS
from lessmore.errors import ConfigError

MetricRow = Mapping[str, Any]
Hits = NDArray[np.bool_]
Array = NDArray[np.float64]

DRAWS = 10_000
BINS = 15
WINDOWS = 20


def metrics(rows: Sequence[MetricRow]) -> dict[str, Any]:
    """Everything a summary says about a run's answers; `None` where no image was answered."""
    answered = [row for row in rows if "error" not in row]
    right = np.array([row["prediction"] == row["label"] for row in answered], dtype=bool)
    plain = np.array([row["zero_shot"] == row["label"] for row in answered], dtype=bool)
    n = len(answered)
    return {
        "n": n,
        "failed": len(rows) - n,
        **accuracies(right, plain),
        "mcnemar_p": mcnemar(right, plain) if n else None,
        "ece": calibration_error([row["probability"] for row in answered], right) if n else None,
        "zero_shot_ece": calibration_error([row["zero_shot_probability"] for row in answered], plain) if n else None,
        **confidences(answered, right, plain),
        **_unknown(answered),
        "changed": sum(row["changed"] for row in answered),
        "refused": sum(row["refused"] for row in answered),
        "set_aside": refused_streak(answered)[0],
        "over_time": over_time(right, plain),
        "domains": _domains(answered, right, plain),
        "tokens_kept": float(np.mean([row["tokens"] for row in answered])) if n else None,
    }


def refused_streak(rows: Iterable[MetricRow]) -> tuple[int, int]:
    """How often answers were refused so many times in a row that the state was set aside, and how many were since."""
    set_aside = streak = 0
    for row in rows:
        if "error" not in row:
            streak = streak + 1 if row["refused"] else 0
            set_aside, streak = (set_aside + 1, 0) if streak >= REFUSALS else (set_aside, streak)
    return set_aside, streak


def trouble(found: MetricRow) -> str:
    """What a run's metrics say of images that have no adapted answer; empty where all is well."""
    failed, refused, aside = found["failed"], found["refused"], found["set_aside"]
    parts = [f"{failed:,} images could not be read"] if failed else []
    parts += [f"{refused:,} adapted answers were not finite and zero-shot's were taken"] if refused else []
    parts += [f"the state was set aside {aside:,} times"] if aside else []
    return ", ".join(parts)


def resampled(kinds: Array, counts: NDArray[Any], generator: np.random.Generator) -> Array:
    """Means of bootstrap samples, each of as many images, drawn with replacement.

    To draw images is to draw how often each kind of image occurs, so a multinomial distribution gives the exact samples
    at a cost that does not grow with the number of images.

    Args:
        kinds: Values that occur, `[k, v]`.
        counts: How many images have each of them, `[k]`.
        generator: Where the draws come from.

    Returns:
        Means of the values in each of `DRAWS` samples, `[DRAWS, v]`.
    """
    n = counts.sum()
    means: Array = (generator.multinomial(n, counts / n, size=DRAWS) @ kinds) / n
    return means


def interval(draws: Array) -> Array:
    """The 95 % interval of draws `[d, ...]`, as `[2, ...]`: low and high."""
    bounds: Array = np.quantile(draws, (0.025, 0.975), axis=0)
    return bounds


def accuracies(right: Hits, plain: Hits) -> dict[str, Any]:
    """Accuracy of the method and of matched zero-shot, and the paired gain, as fractions with 95 % bootstrap intervals.

    Args:
        right: Whether the method was right, `[n]`.
        plain: Whether matched zero-shot was, on the same images, `[n]`.
    """
    names = ("accuracy", "zero_shot_accuracy", "gain")
    intervals = ("accuracy_ci", "zero_shot_ci", "gain_ci")
    n = len(right)
    if not n:
        return dict.fromkeys((*names, *intervals))
    counts = np.array([(right & plain).sum(), (right & ~plain).sum(), (~right & plain).sum(), (~right & ~plain).sum()])
    # Columns: right, plain, gain; a row for each way the two can answer an image.
    kinds = np.array([[1, 1, 0], [1, 0, 1], [0, 1, -1], [0, 0, 0]])
    bounds = interval(resampled(kinds, counts, np.random.default_rng(0))).T
    return dict(zip((*names, *intervals), [*map(float, counts @ kinds / n), *bounds.tolist()], strict=True))


def mcnemar(right: Hits, plain: Hits) -> float:
    """McNemar's exact two-sided p-value: are wins and losses among the images where the two differ equally likely?

    Args:
        right: Whether the method was right, `[n]`.
        plain: Whether matched zero-shot was, on the same images, `[n]`.
    """
    from scipy.stats import binomtest

    wins, losses = int((right & ~plain).sum()), int((~right & plain).sum())
    return float(binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0


def calibration_error(confidence: Sequence[float], right: Hits) -> float:
    """Expected calibration error over 15 bins: the mean distance of confidence and accuracy.

    Args:
        confidence: Probability of each answer, `[n]`.
        right: Whether the answer was right, `[n]`.
    """
    from torchmetrics.functional.classification import multiclass_calibration_error

    # Of the probabilities only the answer's own counts: class 0 is the answer, the label is 0 where it was right.
    pairs = torch.tensor([[p, 0.0] for p in confidence], dtype=torch.float64)
    target = torch.from_numpy((~right).astype(np.int64))
    return float(multiclass_calibration_error(pairs, target, num_classes=2, n_bins=BINS, norm="l1"))


def confidences(rows: Sequence[MetricRow], right: Hits, plain: Hits) -> dict[str, float | None]:
    """What the reported confidence is worth, beside matched zero-shot's; `ece` is that of raw probabilities.

    Args:
        rows: Answered images.
        right: Whether the method is right, `[n]`.
        plain: Whether zero-shot is, `[n]`.
    """
    ours = np.array([row["confidence"] for row in rows])
    theirs = np.array([row["zero_shot_probability"] for row in rows])
    return {
        "confidence_ece": calibration_error(ours.tolist(), right) if rows else None,
        "brier": float(np.mean((ours - right) ** 2)) if rows else None,
        "zero_shot_brier": float(np.mean((theirs - plain) ** 2)) if rows else None,
        "auroc": separation(ours, right),
        "zero_shot_auroc": separation(theirs, plain),
    }


def _unknown(rows: Sequence[MetricRow]) -> dict[str, Any]:
    """How many images were called unknown, where that was asked for."""
    told = [row["unknown"] for row in rows if "unknown" in row]
    return {"unknown": sum(told), "unknown_rate": float(np.mean(told))} if told else {}


def unknown_note(found: MetricRow) -> str:
    """What a run's metrics say of unknown images; empty where nobody asked."""
    return f"{found['unknown']:,} called unknown ({100 * found['unknown_rate']:.1f} %)" if "unknown" in found else ""


def separation(score: Array, positive: Hits) -> float | None:
    """Chance that a positive has a higher score than a negative (AUROC); None without either.

    Args:
        score: `[n]`.
        positive: `[n]`.
    """
    ones, zeros = int(positive.sum()), int((~positive).sum())
    if not ones or not zeros:
        return None
    from scipy.stats import rankdata

    return float((rankdata(score)[positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def over_time(right: Hits, plain: Hits) -> list[dict[str, float]]:
    """Accuracy within up to 20 equal parts of the stream; `seen` counts images up to the end of the part.

    Args:
        right: Whether the method was right, in the order of the stream, `[n]`.
        plain: Whether matched zero-shot was, `[n]`.
    """
    ends = np.linspace(0, len(right), min(WINDOWS, len(right)) + 1).round().astype(int)
    return [{"seen": int(end), **_plain_accuracy(right[start:end], plain[start:end])} for start, end in pairwise(ends)]


def _domains(rows: Sequence[MetricRow], right: Hits, plain: Hits) -> dict[str, dict[str, float]]:
    """Accuracy by domain, for streams of more than one."""
    domain = np.array([row["domain"] for row in rows], dtype=object)
    names = list(dict.fromkeys(domain.tolist()))
    if len(names) < 2:
        return {}
    at = {name: domain == name for name in names}
    return {name: {"n": int(here.sum()), **_plain_accuracy(right[here], plain[here])} for name, here in at.items()}


def _plain_accuracy(right: Hits, plain: Hits) -> dict[str, float]:
    return {"accuracy": float(right.mean()), "zero_shot_accuracy": float(plain.mean())}


def require() -> None:
    """Refuse a run whose summary could not be written in the end. Nothing is imported, because that takes seconds."""
    for package in ("scipy", "torchmetrics"):
        if importlib.util.find_spec(package) is None:
            raise ConfigError(f"a run needs {package}; install it with: pip install 'lessmore[metrics]'")
