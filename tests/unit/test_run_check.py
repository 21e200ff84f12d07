"""What files of a run cannot hold: figures that no run reaches, found by `tests/fuzz` among thousands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchmetrics")

from lessmore.errors import StateError
from lessmore.lab.run_check import check_samples, summary_problem
from lessmore.lab.runner import run_one
from lessmore.lab.spec import RunSpec
from tests.small_runs import NAMES, draw_folder, lines, only_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checked")
    run_one(RunSpec("tiny", f"folder:{draw_folder(folder / 'photos', 3)}", device="cpu"), folder / "out", quiet=True)
    return only_run(folder / "out")


@pytest.mark.parametrize(("name", "value"), [("entropy", 2**60), ("entropy", 21.0), ("tokens", 2**60), ("tokens", -1)])
def test_a_sample_out_of_range(name: str, value: float, run: Path) -> None:
    rows = lines(run / "samples.jsonl")
    check_samples(rows, "it", len(NAMES))
    rows[1][name] = value
    with pytest.raises(StateError, match=rf"{name} cannot be .* \(line 2\)"):
        check_samples(rows, "it", len(NAMES))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("dataset", "pixels"), [[]]),
        (("dataset", "stream"), {}),
        (("cost", "ms_p50"), 2**60),
        (("cost", "gmacs_matmul"), 2**60),
        (("dataset", "stream"), None),
    ],
)
def test_a_summary_out_of_range(place: tuple[str, str], value: Any, run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    assert summary_problem(summary) is None
    summary[place[0]][place[1]] = value
    assert place[1] in str(summary_problem(summary))
    del summary["dataset"]["stream"]
    assert summary_problem(summary)
