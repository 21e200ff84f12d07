"""ZERO: who votes, and how ties are broken."""

from __future__ import annotations

import collections

import numpy as np
import pytest
import torch
from torch import Tensor

from lessmore.errors import ConfigError
from lessmore.methods.zero import ZeroOptions, ballot


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
        counts[next(c for c in choices[kept:] + choices[:kept] if c in leaders)] += 1
    return [counts[c] / counts.total() for c in range(logits.shape[1])]


def test_nineteen_of_sixty_four_views_vote() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        logits = 3 * torch.randn(64, 5, generator=generator)
        shares = ballot(logits, ZeroOptions().selection)
        assert shares.tolist() == pytest.approx(slow_ballot(logits, 19))
        assert shares.sum() == pytest.approx(1)


def test_unsure_views_do_not_count() -> None:
    shares = ballot(views((1, 9), (1, 8), (2, 1), (2, 1), (2, 1), (2, 1)), 0.34)
    assert shares.tolist() == [0, 1, 0, 0]


def test_the_next_view_for_a_leader_breaks_a_tie() -> None:
    four = views((1, 9), (2, 8), (3, 3), (2, 2), (1, 1), (0, 1))
    assert ballot(four, 0.34).tolist() == pytest.approx([0, 1 / 3, 2 / 3, 0])


def test_without_such_a_view_the_surest_voter_decides() -> None:
    assert ballot(views((2, 9), (1, 8), (3, 3), (0, 2), (3, 1), (0, 1)), 0.34).argmax() == 2


def test_at_least_one_view_votes() -> None:
    assert ballot(views((3, 9), (1, 1)), 0.01).tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("selection", [0.0, 1.5])
def test_bad_options_are_refused(selection: float) -> None:
    with pytest.raises(ConfigError, match="selection"):
        ZeroOptions(selection=selection)
