"""ZERO: who votes, and how ties are broken."""

from __future__ import annotations

import collections

import numpy as np
import pytest
import torch
from torch import Tensor

from lessmore.errors import ConfigError
from lessmore.methods.zero import ZeroOptions, tally_votes


def views(*choices: tuple[int, float], classes: int = 4) -> Tensor:
    """Logits [V, classes]: every view is for a class, and the surer the larger its number."""
    logits = torch.zeros(len(choices), classes)
    for row, (label, sure) in zip(logits, choices, strict=True):
        row[label] = sure
    return logits


def slow_ballot(logits: Tensor, kept: int) -> list[float]:
    """By the words of the method."""
    p = np.exp(logits.double().numpy())
    p /= p.sum(axis=1, keepdims=True)
    order = sorted(range(len(p)), key=lambda v: -(p[v] * np.log(p[v])).sum())
    choices = [int(p[v].argmax()) for v in order]
    counts = collections.Counter(choices[:kept])
    leaders = [c for c, n in counts.items() if n == max(counts.values())]
    if len(leaders) > 1:
        silent = choices[kept:] or choices
        favourite = max(leaders, key=lambda c: p[order[kept % len(p)], c])
        counts[next((c for c in silent if c in leaders), favourite)] += 1
    return [counts[c] / counts.total() for c in range(logits.shape[1])]


@pytest.mark.parametrize(("classes", "selection", "kept"), [(5, 0.3, 19), (60, 0.3, 19), (60, 0.05, 3), (5, 1.0, 64)])
def test_votes_are_those_of_the_slow_ballot(classes: int, selection: float, kept: int) -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        logits = 3 * torch.randn(64, classes, generator=generator)
        shares = tally_votes(logits, selection)
        assert shares.tolist() == pytest.approx(slow_ballot(logits, kept))
        assert shares.sum() == pytest.approx(1)
    assert ZeroOptions().selection == 0.3


def test_unsure_views_do_not_count() -> None:
    shares = tally_votes(views((1, 9), (1, 8), (2, 1), (2, 1), (2, 1), (2, 1)), 0.34)
    assert shares.tolist() == [0, 1, 0, 0]


def test_the_next_view_for_a_leader_breaks_a_tie() -> None:
    four = views((1, 9), (2, 8), (3, 3), (2, 2), (1, 1), (0, 1))
    assert tally_votes(four, 0.34).tolist() == pytest.approx([0, 1 / 3, 2 / 3, 0])


def test_without_such_a_view_the_next_one_chooses_among_the_leaders() -> None:
    six = views((2, 9), (1, 8), (3, 3), (0, 2), (3, 1), (0, 1))
    six[2, 1], six[3, 2] = 1, 1.5  # the third view likes 1 better than 2, the less confident fourth 2 better than 1
    assert tally_votes(six, 0.34).tolist() == pytest.approx([0, 2 / 3, 1 / 3, 0])
    six[2, 2] = 2
    assert tally_votes(six, 0.34).tolist() == pytest.approx([0, 1 / 3, 2 / 3, 0])


def test_where_all_vote_the_surest_has_two_voices() -> None:
    assert tally_votes(views((2, 9), (1, 8)), 1.0).tolist() == pytest.approx([0, 1 / 3, 2 / 3, 0])


def test_certainty_is_no_hindrance() -> None:
    assert tally_votes(views((1, 1e4), (2, 3), (2, 2)), 0.34).tolist() == [0, 1, 0, 0]  # its entropy is 0, not nan


def test_at_least_one_view_votes() -> None:
    assert tally_votes(views((3, 9), (1, 1)), 0.01).tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("selection", [0.0, 1.5])
def test_bad_options_are_refused(selection: float) -> None:
    with pytest.raises(ConfigError, match="selection"):
        ZeroOptions(selection=selection)
