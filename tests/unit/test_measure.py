"""`benchmarks/measure.py` does many runs at once and must write what `lessmore run` would have written."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("torchmetrics")
pytest.importorskip("scipy")

from lessmore.cli import main
from lessmore.methods import make_method
from lessmore.methods.sar import SAR
from tests.methods.test_tent import small_setup
from tests.methods.test_tpt import WORDS, random_setup
from tests.random_towers import make_images
from tests.small_runs import draw_folder, lines

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
ROWS = ("zero-shot", "TDA", "TCA R=0.9", "both", "preset released", "ATS R=0.9", "Tent")
LEARNING = {"tent": {"lr": 0.64}, "sar": {"lr": 0.64, "margin": 0.4, "floor": 0.4}}


@pytest.fixture
def gradients(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import measure_gradients

    yield measure_gradients
    del sys.modules["measure_gradients"]


@pytest.mark.parametrize("name", ["tent", "sar"])
def test_streams_that_step_together_do_not_see_each_other(name: str, gradients: Any) -> None:
    given = replace(small_setup(), options=LEARNING[name])
    setups = [given, replace(given, text=given.text[:4]), given]
    streams = [make_images(12, seed=seed) for seed in (1, 2, 3)]
    together = gradients.online(setups, streams, name)
    learnt = []
    for setup, images, found in zip(setups, streams, together, strict=True):
        method, frozen = make_method(name, setup), make_method("zeroshot", replace(setup, options={}))
        alone = torch.stack([method.predict(image).scores for image in images.split(1)])
        still = torch.stack([frozen.predict(image).scores for image in images.split(1)])
        learnt.append(float((alone - still).abs().max()))
        torch.testing.assert_close(found, alone, rtol=0, atol=1e-5)
    assert learnt[0] > 1e-3 and learnt[2] > 1e-3


def test_the_streams_skip_images_and_start_anew() -> None:
    """Else the test above would not see SAR's filter and recovery."""
    sar = make_method("sar", replace(small_setup(), options=LEARNING["sar"]))
    assert isinstance(sar, SAR)
    averages, moved = [], []
    for image in make_images(12).split(1):
        before = sar.state()
        sar.predict(image)
        averages.append(float(sar.average))
        moved.append(any(not torch.equal(value, before[name]) for name, value in sar.state().items() if "aff" in name))
    begun = [not math.isnan(average) for average in averages]
    assert False in begun[begun.index(True) :]
    assert True in moved and False in moved


def test_methods_that_share_views_answer_as_each_alone(gradients: Any) -> None:
    options, views = {"words": WORDS, "views": 4, "lr": 0.1}, make_images(4)
    setups = [random_setup(**options), random_setup(**options, dispersion=3.0)]
    prompts = [make_method(name, setup) for name, setup in zip(("tpt", "c-tpt"), setups, strict=True)]
    ballots = [make_method(name, replace(setups[0], options={"views": 4})) for name in ("mta", "zero")]
    for methods in (prompts, ballots):
        found = gradients.viewed(methods, views)
        assert not torch.equal(*found)
        torch.testing.assert_close(found, [method.predict(views).scores for method in methods], rtol=0, atol=1e-12)


def test_runs_are_those_of_lessmore_run(tmp_path: Path) -> None:
    data = draw_folder(tmp_path / "data", 6)
    asked = ["methods", "components", "options", "--model", "tiny", "--root", str(tmp_path), "--dataset"]
    asked += [f"folder:{data}", "--seeds", "1", "--device", "cpu", "--rows", *ROWS]
    code = [sys.executable, str(BENCHMARKS / "measure.py"), *asked, "--output", str(tmp_path / "ours")]
    done = subprocess.run([*code, "--processes", "1"], capture_output=True, text=True, env=os.environ, check=False)
    assert done.returncode == 0, done.stderr
    asked += ["--engine", "eager", "--preset", "fixed", "--quiet"]
    assert main(["reproduce", *asked, "--output", str(tmp_path / "theirs")]) == 0
    theirs = sorted((tmp_path / "theirs" / "runs").glob("*/summary.json"))
    assert [f.parent.name for f in theirs] == sorted(f.name for f in (tmp_path / "ours" / "runs").iterdir())
    for file in theirs:
        compare(tmp_path / "ours" / "runs" / file.parent.name, file.parent)


def compare(ours: Path, theirs: Path) -> None:
    """Two folders of one run: the same answers up to rounding, the same figures, the same costs."""
    for a, b in zip(lines(ours / "samples.jsonl"), lines(theirs / "samples.jsonl"), strict=True):
        tops = [row.pop("top5_probabilities") for row in (a, b)]
        assert tops[0] == pytest.approx(tops[1], abs=1e-4)
        numbers = {name for name, value in b.items() if isinstance(value, float)}
        assert {n: a[n] for n in numbers} == pytest.approx({n: b[n] for n in numbers}, abs=1e-4)
        assert {n: v for n, v in a.items() if n not in numbers} == {n: v for n, v in b.items() if n not in numbers}
    a, b = (json.loads((folder / "summary.json").read_text()) for folder in (ours, theirs))
    assert a["metrics"]["accuracy"] == b["metrics"]["accuracy"]
    assert a["metrics"]["over_time"] == b["metrics"]["over_time"]
    assert {k: v for k, v in a["cost"].items() if "gmacs" in k} == {k: v for k, v in b["cost"].items() if "gmacs" in k}
    assert a["cost"]["timed"] == 0
    assert {**a["spec"], "R": None} == {**b["spec"], "R": None}
