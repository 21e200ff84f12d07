"""Answers that are not finite: said wherever somebody looks, and after ten in a row adaptation starts again."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("torchmetrics")
pytest.importorskip("scipy")

import torch
from torch import Tensor

import lessmore
from lessmore.cli import main
from lessmore.core.encoder import Encoded
from lessmore.engines.answers import REFUSALS
from lessmore.lab.metrics import refused_streak, trouble
from lessmore.lab.runner import run_one
from lessmore.lab.spec import RunSpec
from lessmore.methods import Outcome
from lessmore.methods.tca import TCA
from tests.small_runs import NAMES, draw_folder, lines, only_run

IMAGES = 14
SPOILED = 3
"""The state is spoiled when this many images are answered."""


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_folder(tmp_path_factory.mktemp("photos"), IMAGES)


@pytest.fixture
def spoiled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A state that turns every answer into NaN from some image on, as 0.1 could be made to; counts the resets."""
    resets: list[int] = []
    answered = [0]
    before, reset = TCA.answer, TCA.reset

    def answer(self: TCA, encoded: Encoded) -> Outcome:
        outcome = before(self, encoded)
        answered[0] += 1
        poisoned = answered[0] > SPOILED and not resets
        return outcome._replace(scores=outcome.scores * math.nan) if poisoned else outcome

    def count(self: TCA) -> None:
        if answered[0]:
            resets.append(answered[0])
        reset(self)

    monkeypatch.setattr(TCA, "answer", answer)
    monkeypatch.setattr(TCA, "reset", count)
    return resets


def pictures() -> list[Tensor]:
    return list(torch.rand(IMAGES, 3, 64, 64, generator=torch.Generator().manual_seed(0)) * 2 - 1)


def test_an_adapter_says_so_and_starts_again(spoiled: list[int]) -> None:
    adapter = lessmore.adapt("tiny", NAMES, engine="eager")
    with pytest.warns(UserWarning, match="10 adapted answers in a row were not finite; the state is set aside"):
        found = [adapter(image) for image in pictures()]
    refused = [prediction.refused for prediction in found]
    assert refused == [False] * SPOILED + [True] * REFUSALS + [False]
    assert all(prediction.scores.isfinite().all() for prediction in found)
    health = adapter.health()
    assert (health.refused, health.set_aside, health.refused_in_a_row) == (REFUSALS, 1, 0)
    assert spoiled == [SPOILED + REFUSALS] and adapter._answerer.method.stream.reservoir.step == 1


def test_classify_says_so_in_rows_summary_and_exit_code(
    spoiled: list[int], photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out.csv"
    words = ["classify", str(photos), "--classes", ",".join(NAMES), "--model", "tiny", "--engine", "eager"]
    with pytest.warns(UserWarning, match="set aside"):
        assert main([*words, "--output", str(output)]) == 3
    assert f"{REFUSALS} adapted answers were not finite" in capsys.readouterr().err
    with output.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["refused"] for row in rows] == ["false"] * SPOILED + ["true"] * REFUSALS + ["false"]


def test_a_run_says_so_in_rows_summary_and_exit_code(
    spoiled: list[int], photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", "--model", "tiny", "--dataset", f"folder:{photos}", "--device", "cpu", "--workers", "0", "--quiet"]
    words += ["--engine", "eager"]
    with pytest.warns(UserWarning, match="set aside"):
        assert main([*words, "--output", str(tmp_path / "out")]) == 3
    assert f"{REFUSALS} adapted answers were not finite" in capsys.readouterr().out
    folder = only_run(tmp_path / "out")
    rows, found = lines(folder / "samples.jsonl"), json.loads((folder / "summary.json").read_text())["metrics"]
    assert [row["refused"] for row in rows] == [False] * SPOILED + [True] * REFUSALS + [False]
    assert (found["refused"], found["set_aside"]) == (REFUSALS, 1) and trouble(found)
    assert main(["build", str(tmp_path / "out")]) == 0
    assert "10 adapted answers were not finite" in capsys.readouterr().out


def test_a_run_that_goes_on_counts_on(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut off after four refused answers, it needs six more; the same bytes as undisturbed."""
    spec, before = RunSpec("tiny", f"folder:{photos}", device="cpu", engine="eager"), TCA.answer

    def answer(self: TCA, encoded: Encoded) -> Outcome:
        outcome = before(self, encoded)
        return outcome._replace(scores=outcome.scores * math.nan)

    monkeypatch.setattr(TCA, "answer", answer)
    options = {"quiet": True, "cache": tmp_path / "cache", "checkpoints": 0}
    with pytest.warns(UserWarning, match="set aside"):
        run_one(spec, tmp_path / "whole", **options)
    for after in (4, 3):
        asked = iter(range(after - 1))
        assert run_one(spec, tmp_path / "parts", stop=partial(ended, asked), **options) is None
    with pytest.warns(UserWarning, match="set aside"):
        run_one(spec, tmp_path / "parts", **options)
    whole, parts = (only_run(tmp_path / name) / "samples.jsonl" for name in ("whole", "parts"))
    assert whole.read_bytes() == parts.read_bytes()
    found = json.loads((only_run(tmp_path / "parts") / "summary.json").read_text())["metrics"]
    assert found["refused"] == IMAGES and found["set_aside"] == 1


def ended(asked: Iterator[int]) -> bool:
    return next(asked, None) is None


def test_streaks() -> None:
    row = {"refused": True}
    assert refused_streak([]) == (0, 0)
    assert refused_streak([row] * 9) == (0, 9)
    assert refused_streak([row] * 10) == (1, 0)
    assert refused_streak([row] * 25) == (2, 5)
    assert refused_streak([*[row] * 9, {"error": "x"}, row]) == (1, 0)
    assert refused_streak([*[row] * 9, {"refused": False}, row]) == (0, 1)
