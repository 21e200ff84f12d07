"""Token counts: the paper's schedules, exact budgets, refusals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lessmore.config import Condensation
from lessmore.core.condense.registry import resolve_reducer
from lessmore.core.condense.schedule import rate_of, schedule, stage
from lessmore.errors import ConfigError

PAPER_COUNTS = [
    (196, 0.95, [197, 189, 181, 173]),
    (196, 0.9, [197, 180, 163, 149]),
    (196, 0.8, [197, 159, 127, 104]),
    (196, 0.7, [197, 141, 100, 74]),
    (196, 0.6, [197, 117, 70, 44]),
    (256, 0.9, [257, 234, 211, 191]),
    (256, 0.7, [257, 183, 130, 95]),
]
"""Patches, R, and the tokens before and after the three condensing blocks, from which the paper's costs follow."""


def counts(patches: int, config: Condensation, depth: int = 12) -> list[int]:
    plan = schedule(patches, depth, config)
    return [patches + 1, *(one.out + 1 for one in plan if one is not None)]


@pytest.mark.parametrize(("patches", "R", "expected"), PAPER_COUNTS)
def test_the_table_gives_the_schedules_behind_the_papers_costs(patches: int, R: float, expected: list[int]) -> None:
    assert counts(patches, Condensation(R=R, pruned="fuse")) == expected


@pytest.mark.parametrize(
    ("patches", "R", "expected"),
    [(196, 0.9, [197, 179, 163, 148]), (196, 0.7, [197, 140, 100, 72]), (256, 0.9, [257, 233, 211, 191])],
)
def test_evit_counts(patches: int, R: float, expected: list[int]) -> None:
    assert counts(patches, resolve_reducer("evit", Condensation(R=R))) == expected


def test_rates_between_and_below_the_table() -> None:
    assert rate_of(1.0) == 0
    assert rate_of(0.85) == pytest.approx(0.0525)
    assert rate_of(0.5) == pytest.approx(0.18)


@given(
    st.integers(8, 300), st.floats(0.3, 0.999), st.integers(0, 5), st.integers(0, 3), st.integers(0, 3), st.booleans()
)
def test_exact_lets_exactly_that_many_leave(n: int, R: float, K: int, merged: int, dropped: int, fuse: bool) -> None:
    try:
        config = Condensation(
            R=R, counts="exact", K=K, merge_prune=(merged, dropped), pruned="fuse" if fuse else "drop"
        )
        one = stage(n, config)
    except ConfigError:
        return
    assert one.out == int(round(R * n, 9))
    assert one.keep + one.ambiguous + one.pruned == n
    assert one.keep >= 1


@given(st.integers(8, 600), st.sampled_from([1.0, 0.99, 0.95, 0.9, 0.8, 0.7, 0.6]))
def test_nothing_is_lost_by_the_table(n: int, R: float) -> None:
    one = stage(n, Condensation(R=R))
    assert one.keep + one.ambiguous + one.pruned == n
    assert one.out <= n


def test_no_condensation_at_R_1_and_without_layers() -> None:
    assert set(schedule(196, 12, Condensation(R=1))) == {None}
    assert set(schedule(196, 12, Condensation(R=0.9, layers=()))) == {None}


def test_refusals_name_the_remedy() -> None:
    with pytest.raises(ConfigError, match="choose a larger R"):
        schedule(9, 12, Condensation(R=0.1))
    with pytest.raises(ConfigError, match="rate=0.5 keeps no token of 9; choose a smaller rate"):
        schedule(9, 12, Condensation(counts="rate", rate=0.5))
    with pytest.raises(ConfigError, match="tower has 4 blocks"):
        schedule(196, 4, Condensation())


def test_merge_prune_splits_what_is_not_kept() -> None:
    base = stage(196, Condensation())
    pruned_only = stage(196, Condensation(merge_prune=(0, 1), K=0))
    mostly_pruned = stage(196, Condensation(merge_prune=(1, 2)))
    assert base.keep == pruned_only.keep == mostly_pruned.keep
    assert (base.ambiguous, base.pruned) == (14, 6)
    assert (pruned_only.ambiguous, pruned_only.pruned, pruned_only.centres) == (0, 20, 0)
    assert (mostly_pruned.ambiguous, mostly_pruned.pruned) == (7, 13)
