"""What the files of a run can hold. A checksum says that a file is whole; these say that it makes sense.

A form is a predicate, a mapping of forms by field, or a list of one form for all entries. Fields that no form names are
left alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lessmore.engines.confidence import COLDEST, WARMEST
from lessmore.errors import StateError
from lessmore.lab.journal import REMEDY, SampleRow

Shape = Callable[[Any], bool] | Mapping[str, Any] | list[Any]


_LARGEST = 1e15
"""No cost, time or limit of a run is near it."""


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**53


def _whole(value: Any) -> bool:
    return type(value) is int and abs(value) < 2**53


def _whole_or_fraction(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= _LARGEST


def _amount(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= _LARGEST


def _between(low: float, high: float) -> Callable[[Any], bool]:
    """Figures are rounded to six digits, so the bounds leave room for that."""
    return lambda value: type(value) in (int, float) and low - 1e-6 <= value <= high + 1e-6


def _maybe(form: Shape) -> Callable[[Any], bool]:
    return lambda value: value is None or _misfit(value, form) is None


def _each(form: Shape) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(_misfit(one, form) is None for one in value.values())


def _interval(low: float, high: float) -> Callable[[Any], bool]:
    ends = _between(low, high)
    return lambda value: isinstance(value, list) and len(value) == 2 and all(map(ends, value)) and value[0] <= value[1]


def _some(form: Shape) -> Callable[[Any], bool]:
    return lambda value: value != [] and _misfit(value, [form]) is None


_share, _signed = _between(0, 1), _between(-1, 1)
_PAIR = {"accuracy": _share, "zero_shot_accuracy": _share}
_SPEC = {
    **dict.fromkeys(("model", "dataset", "method", "reducer", "preset", "order"), _text),
    "options": _each(lambda value: value is None or isinstance(value, (bool, int, float, str, list, dict))),
    **dict.fromkeys(("corruption", "templates", "root", "calibrate"), _maybe(_text)),
    **dict.fromkeys(("device", "engine", "precision"), _text),
    "unknown": lambda value: value in ("off", "auto") or _whole_or_fraction(value),
    "workers": _count,
    "limit": _maybe(_amount),
    "seed": _whole,
}
_METRICS = {
    **dict.fromkeys(("n", "failed", "changed", "refused", "set_aside"), _count),
    **_PAIR,
    "gain": _signed,
    "accuracy_ci": _interval(0, 1),
    "zero_shot_ci": _interval(0, 1),
    "gain_ci": _interval(-1, 1),
    "mcnemar_p": _share,
    **dict.fromkeys(("ece", "zero_shot_ece", "confidence_ece", "brier", "zero_shot_brier"), _share),
    **dict.fromkeys(("auroc", "zero_shot_auroc"), _maybe(_share)),
    "over_time": _some({"seen": _count, **_PAIR}),
    "domains": _each({"n": _count, **_PAIR}),
    "tokens_kept": _amount,
}
_COST = {
    **dict.fromkeys(("gmacs_paper", "gmacs_matmul", "plain_gmacs_paper", "plain_gmacs_matmul"), _amount),
    **dict.fromkeys(("ms_p50", "ms_p95", "peak_memory_mb"), _maybe(_amount)),
    "timed": _count,
}
_SUMMARY: dict[str, Any] = {
    "key": _text,
    "spec": {**_SPEC, "R": _amount},
    "tuned_on": _maybe(_text),
    "dataset": {
        **dict.fromkeys(("name", "fingerprint", "note", "stream"), _text),
        "pixels": _maybe(_text),
        **dict.fromkeys(("classes", "images"), _count),
    },
    "metrics": _METRICS,
    "cost": _COST,
    "provenance": {
        **dict.fromkeys(("device", "dtype", "finished"), _text),
        "hardware": {"cpu": _text, "gpu": _maybe(_text)},
        "versions": {"torch": _text},
        "threads": _count,
    },
}
_UNANSWERED = {**_SUMMARY, "metrics": {"n": _count, "failed": _count}}
_HEADER = {"key": _text, "spec": _SPEC, "identity": {"adaptation": {"key": _text}}, "classes": [_text]}
_ABOUT: dict[str, Any] = {"i": _count, "id": _text, "label": _count, "domain": _text}
_ANSWER: dict[str, Any] = {
    **dict.fromkeys(("prediction", "unadapted", "zero_shot"), _count),
    **dict.fromkeys(("probability", "confidence", "unadapted_probability", "zero_shot_probability"), _share),
    "temperature": _between(COLDEST, WARMEST),
    "top5": [_count],
    "top5_probabilities": [_share],
    "entropy": _between(0, math.log(1e9)),
    "changed": _flag,
    "refused": _flag,
    "tokens": _amount,
}
_UNKNOWN: dict[str, Any] = {
    "unknown": _flag,
    "unknown_score": _maybe(lambda value: type(value) is float and math.isfinite(value)),
}
"""Of runs with `unknown`."""
_TIMING: dict[str, Any] = {"i": _count, "encoded": _flag}
_CLASSES = ("label", "prediction", "unadapted", "zero_shot")


def summary_problem(summary: Mapping[str, Any]) -> str | None:
    """Why an object cannot be the summary of a finished run."""
    metrics = summary.get("metrics")
    if isinstance(metrics, dict) and metrics.get("n") == 0:  # then there are no figures
        return _misfit(summary, _UNANSWERED)
    return _misfit(summary, _SUMMARY)


def header_problem(header: Mapping[str, Any]) -> str | None:
    """Why an object cannot be what a run was begun with."""
    return _misfit(header, _HEADER)


def check_samples(rows: Sequence[SampleRow], where: object, classes: int) -> None:
    """Refuse lines that no run can have written.

    Args:
        rows: The lines of samples.jsonl.
        where: The file, for the error.
        classes: The number of classes.

    Raises:
        StateError: A line makes no sense.
    """
    for i, row in enumerate(rows):
        form = {**_ABOUT, "error": _text} if "error" in row else {**_ABOUT, **_ANSWER}
        form = form | _UNKNOWN if "unknown" in row else form
        problem = _misfit(row, form) or _contradiction(row, i, classes)
        if problem:
            raise StateError(f"{where} makes no sense: {problem} (line {i + 1}); {REMEDY}")


def check_timings(rows: Sequence[SampleRow], where: object) -> None:
    """Refuse lines of timings.jsonl that no run can have written.

    Args:
        rows: The lines.
        where: The file, for the error.

    Raises:
        StateError: A line makes no sense.
    """
    for i, row in enumerate(rows):
        form = {**_TIMING, "ms": _amount} if row.get("encoded") is True else _TIMING
        if row.get("i") != i or _misfit(row, form):
            raise StateError(f"{where} makes no sense (line {i + 1}); {REMEDY}")


def _contradiction(row: SampleRow, i: int, classes: int) -> str | None:
    if row["i"] != i:
        return "the samples are not in order"
    top = row.get("top5", [])
    if any(row.get(name, 0) >= classes for name in _CLASSES) or any(c >= classes for c in top):
        return f"it names a class beyond the {classes:,} there are"
    if "error" not in row and (not top or top[0] != row["prediction"] or len(top) != len(row["top5_probabilities"])):
        return "its five likeliest classes contradict its answer"
    return None


def _misfit(value: Any, form: Shape, name: str = "it") -> str | None:
    """Where a value does not have a form."""
    if callable(form):
        return None if form(value) else f"{name} cannot be {str(value)[:60]!r}"
    if isinstance(form, list):
        if not isinstance(value, list):
            return f"{name} is no list"
        return next((wrong for one in value if (wrong := _misfit(one, form[0], name))), None)
    if not isinstance(value, dict):
        return f"{name} holds no fields"
    missing = next((field for field in form if field not in value), None)
    if missing is not None:
        return f"{missing} is missing"
    return next((wrong for field, inner in form.items() if (wrong := _misfit(value[field], inner, field))), None)
