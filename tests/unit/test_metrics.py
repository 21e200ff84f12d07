"""Numbers of a summary, against other ways to compute them."""

from __future__ import annotations

from math import comb
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("torchmetrics")
pytest.importorskip("scipy")

from torchmetrics.functional.classification import multiclass_calibration_error

from lessmore.lab.metrics import accuracies, calibration_error, mcnemar, metrics, over_time, separation


def hits(n: int, seed: int, share: float) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.random.default_rng(seed).random(n) < share


def row(i: int, label: int, prediction: int, zero_shot: int, **more: Any) -> dict[str, Any]:
    usual = {"probability": 0.6, "zero_shot_probability": 0.5, "changed": False, "refused": False, "tokens": 10}
    usual["confidence"] = 0.6
    return {"i": i, "label": label, "domain": "d", "prediction": prediction, "zero_shot": zero_shot, **usual, **more}


def test_intervals_are_those_of_resampled_images() -> None:
    right, plain = hits(300, 0, 0.7), hits(300, 1, 0.6)
    found = accuracies(right, plain)
    picks = np.random.default_rng(7).integers(0, 300, (4000, 300))
    for name, ci, values in (
        ("accuracy", "accuracy_ci", right.astype(float)),
        ("zero_shot_accuracy", "zero_shot_ci", plain.astype(float)),
        ("gain", "gain_ci", right.astype(float) - plain),
    ):
        assert found[name] == pytest.approx(values.mean())
        expected = np.quantile(values[picks].mean(axis=1), (0.025, 0.975))
        assert np.allclose(found[ci], expected, atol=0.006), name  # the spread of 4,000 draws


def test_the_gain_is_paired() -> None:
    plain = hits(1000, 0, 0.6)
    right = plain.copy()
    right[np.flatnonzero(~plain)[:20]] = True
    low, high = accuracies(right, plain)["gain_ci"]
    assert 0.01 < low < 0.02 < high < 0.03  # two independent samples would give about ± 0.04


def test_separation_is_the_chance_that_a_right_answer_is_surer() -> None:
    dice = np.random.default_rng(0)
    score, positive = dice.integers(0, 6, 40).astype(float), dice.random(40) < 0.5
    pairs = [(a > b) + (a == b) / 2 for a in score[positive] for b in score[~positive]]
    assert separation(score, positive) == pytest.approx(np.mean(pairs))
    assert separation(score, np.ones(40, dtype=bool)) is None


def test_a_summary_judges_the_reported_confidence_not_the_raw_one() -> None:
    told = [(0.9, 0, 0.6, 0), (0.8, 0, 0.9, 1), (0.2, 1, 0.3, 0), (0.4, 1, 0.7, 1)]  # ours, answer, zero-shot's, answer
    rows = [
        row(i, 0, answer, plain, confidence=ours, zero_shot_probability=theirs, probability=0.99)
        for i, (ours, answer, theirs, plain) in enumerate(told)
    ]
    found = metrics(rows)
    assert found["brier"] == pytest.approx((0.01 + 0.04 + 0.04 + 0.16) / 4)
    assert found["zero_shot_brier"] == pytest.approx((0.16 + 0.81 + 0.49 + 0.49) / 4)
    assert found["confidence_ece"] == pytest.approx((0.1 + 0.2 + 0.2 + 0.4) / 4)
    assert found["ece"] == pytest.approx(0.49)
    assert (found["auroc"], found["zero_shot_auroc"]) == (1.0, 0.0)
    nobody = metrics([])
    assert [nobody[key] for key in ("brier", "zero_shot_brier", "auroc", "confidence_ece")] == [None] * 4


def test_a_certain_result_has_no_spread() -> None:
    all_right = np.ones(50, dtype=bool)
    found = accuracies(all_right, all_right)
    assert found["accuracy_ci"] == [1.0, 1.0] and found["gain_ci"] == [0.0, 0.0]


@pytest.mark.parametrize(("wins", "losses"), [(1, 9), (30, 12), (5, 5), (0, 3)])
def test_mcnemar_is_exact(wins: int, losses: int) -> None:
    right = np.array([True] * wins + [False] * losses + [True, False])
    plain = np.array([False] * wins + [True] * losses + [True, False])
    n, fewer = wins + losses, min(wins, losses)
    expected = min(1.0, 2 * sum(comb(n, k) for k in range(fewer + 1)) / 2**n)
    assert mcnemar(right, plain) == pytest.approx(expected)


def test_mcnemar_without_a_difference() -> None:
    assert mcnemar(np.array([True, False]), np.array([True, False])) == 1.0


def test_calibration_error_is_that_of_all_probabilities() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = (3 * torch.randn(500, 7, generator=generator, dtype=torch.float64)).softmax(dim=1)
    labels = torch.randint(0, 7, (500,), generator=generator)
    expected = multiclass_calibration_error(scores, labels, num_classes=7, n_bins=15, norm="l1")
    confidence, answers = scores.max(dim=1)
    found = calibration_error(confidence.tolist(), (answers == labels).numpy())
    assert found == pytest.approx(float(expected), abs=1e-12)


@pytest.mark.parametrize("n", [1, 3, 20, 47, 1000])
def test_accuracy_over_time_covers_the_stream(n: int) -> None:
    right, plain = hits(n, 0, 0.7), hits(n, 1, 0.6)
    parts = over_time(right, plain)
    ends = [0, *(part["seen"] for part in parts)]
    assert len(parts) == min(n, 20) and ends[-1] == n and ends == sorted(set(ends))
    sizes = np.diff(ends)
    assert np.dot(sizes, [part["accuracy"] for part in parts]) == pytest.approx(right.sum())
    assert np.dot(sizes, [part["zero_shot_accuracy"] for part in parts]) == pytest.approx(plain.sum())


def test_failed_samples_are_counted_and_left_out() -> None:
    rows = [row(0, 1, 1, 0, changed=True), {"i": 1, "label": 0, "domain": "d", "error": "cut short"}, row(2, 1, 0, 0)]
    found = metrics(rows)
    assert (found["n"], found["failed"], found["changed"]) == (2, 1, 1)
    assert (found["accuracy"], found["zero_shot_accuracy"], found["gain"]) == (0.5, 0.0, 0.5)


def test_domains_are_told_apart() -> None:
    rows = [row(0, 1, 1, 0, domain="fog:3"), row(1, 1, 1, 1, domain="none"), row(2, 1, 0, 1, domain="fog:3")]
    assert metrics(rows)["domains"] == {
        "fog:3": {"n": 2, "accuracy": 0.5, "zero_shot_accuracy": 0.5},
        "none": {"n": 1, "accuracy": 1.0, "zero_shot_accuracy": 1.0},
    }
    assert metrics(rows[:1])["domains"] == {}


def test_nothing_answered_is_no_accuracy() -> None:
    found = metrics([{"i": 0, "label": 0, "domain": "d", "error": "cut short"}])
    assert (found["n"], found["failed"], found["accuracy"], found["gain_ci"], found["ece"]) == (0, 1, None, None, None)
