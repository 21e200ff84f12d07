"""Two sets of runs, image by image: the difference of their accuracies with its interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lessmore.errors import ConfigError
from lessmore.lab.metrics import accuracies, mcnemar
from lessmore.lab.report.runs import Finished, find_runs


@dataclass(frozen=True)
class PairedRuns:
    """A run of each side on the same images; fractions."""

    first: str
    second: str
    stream: str
    seed: int
    images: int
    """Those that both have an answer for."""
    alone: int
    """Images that only one of them has an answer for; they count nowhere."""
    first_accuracy: float
    second_accuracy: float
    difference: float
    """Of the second to the first."""
    difference_ci: tuple[float, float]
    """95 % bootstrap interval over images."""
    only_first_right: int
    only_second_right: int
    mcnemar_p: float


def compare_runs(first: Path, second: Path) -> tuple[list[PairedRuns], list[str]]:
    """Every run of the first folder beside the run of the second on the same images in the same order.

    Args:
        first: A run, or a folder of runs.
        second: The same.

    Returns:
        The pairs, and the names of runs without a partner.

    Raises:
        ConfigError: No run has a partner, or a run has several.
        StateError: The samples of a run are damaged.
    """
    ours, theirs = _by_stream(first), _by_stream(second)
    pairs = [_paired(ours[stream], theirs[stream]) for stream in ours if stream in theirs]
    if not pairs:
        raise ConfigError(f"{first} and {second} have no stream in common: data set, corruption, order, limit and seed")
    lonely = [
        run.folder.name for mine, other in ((ours, theirs), (theirs, ours)) for s, run in mine.items() if s not in other
    ]
    return pairs, lonely


def _by_stream(folder: Path) -> dict[tuple[Any, ...], Finished]:
    found: dict[tuple[Any, ...], Finished] = {}
    for run in find_runs([folder])[0]:
        data, spec = run.summary["dataset"], run.summary["spec"]
        stream = (
            data["fingerprint"],
            data.get("stream"),
            spec["corruption"],
            spec["order"],
            spec["limit"],
            spec["seed"],
        )
        if stream in found:
            both = f"{found[stream].folder.name} and {run.folder.name}"
            raise ConfigError(f"{folder} has several runs of one stream, {both}; name one of them")
        found[stream] = run
    return found


def _paired(first: Finished, second: Finished) -> PairedRuns:
    ours, theirs = _hits(first), _hits(second)
    shared = [place for place in ours if place in theirs]
    if not shared:
        raise ConfigError(f"{first.folder.name} and {second.folder.name} have answers for no image in common")
    a, b = (np.array([hits[place] for place in shared], dtype=bool) for hits in (ours, theirs))
    found: Mapping[str, Any] = accuracies(b, a)
    low, high = found["gain_ci"]
    return PairedRuns(
        first=first.folder.name,
        second=second.folder.name,
        stream=_stream_name(first),
        seed=first.summary["spec"]["seed"],
        images=len(shared),
        alone=len(ours) + len(theirs) - 2 * len(shared),
        first_accuracy=found["zero_shot_accuracy"],
        second_accuracy=found["accuracy"],
        difference=found["gain"],
        difference_ci=(low, high),
        only_first_right=int((a & ~b).sum()),
        only_second_right=int((b & ~a).sum()),
        mcnemar_p=mcnemar(b, a),
    )


def _hits(run: Finished) -> dict[tuple[int, str], bool]:
    """Whether each answered image was answered right, by its place in the stream and its id."""
    return {(row["i"], row["id"]): row["prediction"] == row["label"] for row in run.rows if "error" not in row}


def _stream_name(run: Finished) -> str:
    spec, data = run.summary["spec"], run.summary["dataset"]
    parts: Sequence[Any] = (data["name"], spec["corruption"], None if spec["order"] == "iid" else spec["order"])
    return " ".join(str(part) for part in parts if part)
