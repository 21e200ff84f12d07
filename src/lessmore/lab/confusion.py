"""What a run's answers are class by class: precision, recall, and which class is taken for which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lessmore.lab.journal import SampleRow

Confusions = NDArray[np.int64]


def confusion(rows: Sequence[SampleRow], classes: int, answer: str = "prediction") -> Confusions:
    """How many images of each class got each answer, `[true class, answer]`; images without an answer count nowhere.

    Args:
        rows: Of a run.
        classes: How many there are.
        answer: Column of the answers: `prediction`, `zero_shot` or `unadapted`.

    Examples:
        >>> rows = [{"label": 0, "prediction": 0}, {"label": 0, "prediction": 1}, {"label": 1, "prediction": 1}]
        >>> confusion(rows, 2).tolist()
        [[1, 1], [0, 1]]
    """
    pairs = [row["label"] * classes + row[answer] for row in rows if "error" not in row]
    counts = np.bincount(np.array(pairs, dtype=np.int64), minlength=classes * classes)
    return counts.reshape(classes, classes)


def class_lines(rows: Sequence[SampleRow], names: Sequence[str]) -> list[dict[str, Any]]:
    """A line per class: its images, recall (its accuracy), precision and F1, and matched zero-shot's recall.

    Args:
        rows: Of a run.
        names: Of the classes.

    Returns:
        Fractions; None where nothing was seen or answered that they could be fractions of.
    """
    ours, plain = (confusion(rows, len(names), answer) for answer in ("prediction", "zero_shot"))
    right, seen, said = ours.diagonal(), ours.sum(axis=1), ours.sum(axis=0)
    return [
        {
            "class": name,
            "images": int(seen[c]),
            "answers": int(said[c]),
            "recall": _share(right[c], seen[c]),
            "precision": _share(right[c], said[c]),
            "f1": _share(2 * right[c], seen[c] + said[c]),
            "zero_shot_recall": _share(plain[c, c], seen[c]),
        }
        for c, name in enumerate(names)
    ]


def confused_pairs(counts: Confusions, most: int) -> list[tuple[int, int, int]]:
    """The most frequent mistakes: true class, answer, images; the first of equal ones first.

    Args:
        counts: `[true class, answer]`.
        most: How many.
    """
    wrong = counts - np.diag(counts.diagonal())
    order = np.argsort(-wrong, axis=None, kind="stable")[:most]
    found = (divmod(int(place), len(counts)) for place in order)
    return [(true, answer, int(wrong[true, answer])) for true, answer in found if wrong[true, answer]]


def confused_classes(counts: Confusions, most: int) -> list[int]:
    """The classes with the most mistakes, as true class or as answer, in their own order.

    Args:
        counts: `[true class, answer]`.
        most: How many at most.

    Examples:
        >>> import numpy as np
        >>> confused_classes(np.array([[5, 0, 2], [0, 5, 0], [0, 1, 5]]), 2)
        [0, 2]
    """
    mistakes = counts.sum(axis=0) + counts.sum(axis=1) - 2 * counts.diagonal()
    return sorted(np.argsort(-mistakes, kind="stable")[:most].tolist())


def _share(part: Any, whole: Any) -> float | None:
    return float(part / whole) if whole else None
