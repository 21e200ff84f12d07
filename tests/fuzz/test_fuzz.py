"""No mutation ends in a traceback, other numbers without a word, or a wait. LESSMORE_FUZZ says how many are tried."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest

pytest.importorskip("torchmetrics")
pytest.importorskip("scipy")
pytest.importorskip("markdown_it")

import lessmore
from lessmore.errors import LessmoreError, StateError
from tests.fuzz.kinds import KINDS
from tests.fuzz.outcomes import DEFECTS, Outcome, attempt, tally

COUNT = int(os.environ.get("LESSMORE_FUZZ", 300))


@pytest.mark.parametrize("crafted", [False, True], ids=["damaged", "crafted"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_mutation_does_harm(kind: str, crafted: bool, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = tally(KINDS[kind](tmp_path, crafted), COUNT // 2)
    assert found.defects == []
    assert sum(found.counts.values()) == COUNT // 2
    assert found.counts[Outcome.REFUSED] + found.counts[Outcome.EQUAL] == COUNT // 2


def test_defects_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge itself: a fuzzer that cannot find anything proves nothing."""

    def forever() -> bool:
        while True:
            pass

    def refuse() -> bool:
        raise StateError("no")

    monkeypatch.setattr("tests.fuzz.outcomes.PATIENCE", 0.2)
    wanted = {forever: Outcome.HANG, refuse: Outcome.REFUSED, lambda: 1 / 0 > 0: Outcome.TRACEBACK}
    wanted |= {lambda: False: Outcome.SILENT, lambda: True: Outcome.EQUAL}
    assert {work: attempt(work)[0] for work in wanted} == wanted
    assert set(DEFECTS) == {Outcome.HANG, Outcome.TRACEBACK, Outcome.SILENT}


def test_a_reader_without_its_checks_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the seal and without sense the same mutations do harm, so it is these that hold it off."""
    monkeypatch.setattr("lessmore.storage.sealed._sealed", lambda data, seal: True)
    monkeypatch.setattr("lessmore.storage.state.form_problem", lambda tensors, like: None)
    monkeypatch.setattr("lessmore.engines.stream_file.problem_of", lambda name: lambda state: None)
    for crafted in (False, True):
        folder = tmp_path / str(crafted)
        folder.mkdir()
        found = tally(KINDS["state files"](folder, crafted), 40)
        assert found.defects
    assert issubclass(StateError, LessmoreError) and lessmore.__version__
