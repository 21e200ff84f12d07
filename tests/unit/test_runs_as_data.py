"""Runs as data: pandas tables, files, a paired comparison, and a logger that follows a run."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lessmore
from lessmore.cli import main
from lessmore.errors import ConfigError
from lessmore.lab.compare import compare_runs
from lessmore.lab.confusion import class_lines, confused_pairs, confusion
from lessmore.lab.loggers import TensorBoardLogger
from lessmore.lab.report.runs import find_runs
from lessmore.lab.runner import run_one
from lessmore.lab.spec import RunSpec
from tests.small_runs import draw_folder
from tests.synthetic_runs import write_run


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods on the same 36 images, with curves for TensorBoard."""
    place = tmp_path_factory.mktemp("real")
    draw_folder(place / "photos", 36)
    for method in ("tca", "zeroshot"):
        asked = RunSpec(model="tiny", dataset=f"folder:{place / 'photos'}", method=method)
        run_one(asked, place / method, quiet=True, cache=False, logger=TensorBoardLogger(place / "curves", every=6))
    return place


def test_confusion_and_classes_beside_scikit_learns_definitions() -> None:
    random = np.random.default_rng(0)
    rows: list[dict[str, Any]] = [
        {"label": int(a), "prediction": int(b), "zero_shot": int(c)} for a, b, c in random.integers(5, size=(200, 3))
    ]
    rows += [{"label": 0, "error": "unreadable"}]
    counts = confusion(rows, 6)
    for true in range(6):
        for answer in range(6):
            assert counts[true, answer] == sum(r["label"] == true and r.get("prediction") == answer for r in rows)
    lines = class_lines(rows, list("abcdef"))
    for c, line in enumerate(lines[:5]):
        hits = sum(r["label"] == c == r.get("prediction") for r in rows)
        assert line["recall"] == hits / sum(r["label"] == c and "error" not in r for r in rows)
        assert line["precision"] == hits / sum(r.get("prediction") == c for r in rows)
        assert line["f1"] == pytest.approx(2 / (1 / line["recall"] + 1 / line["precision"]))
    assert lines[5] == {"class": "f", "images": 0, "answers": 0} | dict.fromkeys(
        ("recall", "precision", "f1", "zero_shot_recall")
    )
    worst = confused_pairs(counts, 3)
    assert [n for _, _, n in worst] == sorted((counts - np.diag(counts.diagonal())).ravel())[::-1][:3]


def test_results_as_pandas(real: Path) -> None:
    pandas = pytest.importorskip("pandas")
    table = lessmore.results(real / "tca", real / "zeroshot")
    assert isinstance(table, pandas.DataFrame) and list(table["method"]) == ["tca", "zeroshot"]
    runs = find_runs([real / "tca"])[0]
    first, metrics = table.iloc[0], runs[0].summary["metrics"]
    assert (first["accuracy"], first["gain"], first["n"]) == (metrics["accuracy"], metrics["gain"], 36)
    assert [first["gain_low"], first["gain_high"]] == metrics["gain_ci"] and first["dataset"] == "photos"
    images = lessmore.results(real, per="image")
    assert len(images) == 72 and images[images["run"] == first["run"]]["right"].mean() == metrics["accuracy"]
    assert set(images["label"]) == set(runs[0].header["classes"])
    classes = lessmore.results(real / "tca", per="class")
    assert (classes["recall"] * classes["images"]).sum() / 36 == pytest.approx(metrics["accuracy"])
    with pytest.raises(ConfigError, match="unknown kind of line 'pixel'"):
        lessmore.results(real, per="pixel")  # type: ignore[arg-type]


def test_unfinished_runs_are_said(real: Path, tmp_path: Path) -> None:
    run = write_run(tmp_path, 30, 3)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "spec.json").write_text("{}")
    with pytest.warns(UserWarning, match="left out broken .not finished."):
        assert list(lessmore.results(tmp_path)["run"]) == [run.name]


def test_compare_is_paired_and_has_an_interval(real: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (pair,), lonely = compare_runs(real / "zeroshot", real / "tca")
    rows = [{r["i"]: r for r in run.rows} for run in (find_runs([real / m])[0][0] for m in ("zeroshot", "tca"))]
    hits = [np.array([rows[k][i]["prediction"] == rows[k][i]["label"] for i in range(36)], float) for k in (0, 1)]
    assert pair.images == 36 and not lonely and pair.alone == 0
    assert pair.difference == pytest.approx(float((hits[1] - hits[0]).mean()))
    draws = np.random.default_rng(1).integers(36, size=(4000, 36))
    low, high = np.quantile((hits[1] - hits[0])[draws].mean(axis=1), (0.025, 0.975))
    assert pair.difference_ci == pytest.approx((low, high), abs=0.03)
    assert main(["compare", str(real / "zeroshot"), str(real / "tca")]) == 0
    assert f"{100 * pair.difference:+.2f} [" in capsys.readouterr().out
    assert main(["compare", str(real / "zeroshot"), str(real / "tca"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pairs"][0]["images"] == 36
    assert main(["compare", str(real / "tca"), str(real / "tca")]) == 0
    assert "+0.00 [+0.00, +0.00] points on 36 images" in capsys.readouterr().out


def test_only_the_same_stream_is_compared(real: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "a", 40, 3, seed=0)
    write_run(tmp_path / "b", 40, 3, seed=1)
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    assert "have no stream in common" in capsys.readouterr().err
    write_run(tmp_path / "a", 40, 3, seed=1)
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 3
    said = capsys.readouterr()
    assert "1 images" not in said.out and "has no partner" in said.err
    write_run(tmp_path / "b", 40, 3, seed=1, method="tda")
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    assert "several runs of one stream" in capsys.readouterr().err


def test_tables_and_figures_of_the_report(real: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, tables = tmp_path / "r.html", tmp_path / "tables"
    assert (
        main(["report", str(real / "tca"), "-o", str(page), "--tables", str(tables), "--no-pictures", "--quiet"]) == 0
    )
    capsys.readouterr()
    text = page.read_text()
    assert all(f"<h4>{name}</h4>" in text for name in ("Reliability", "Confusions", "Classes that gain, points"))
    (folder,) = tables.iterdir()
    read = {f.stem: list(csv.DictReader(f.open(encoding="utf-8"))) for f in folder.iterdir()}
    assert sorted(read) == ["classes", "confusion", "reliability", "thresholds"]
    run = find_runs([real / "tca"])[0][0]
    counts = np.array([[int(v) for k, v in line.items() if k != "true class"] for line in read["confusion"]])
    assert counts.sum() == 36 and counts.trace() / 36 == pytest.approx(run.summary["metrics"]["accuracy"])
    adapted = [line for line in read["reliability"] if line["answers"] == "adapted"]
    gap = sum(float(b["share"]) * abs(float(b["confidence"]) - float(b["accuracy"])) for b in adapted)
    assert gap == pytest.approx(run.summary["metrics"]["confidence_ece"], abs=1e-4)
    everything = {line["answers"]: line for line in read["thresholds"] if float(line["threshold"]) == 0}
    assert {name: int(line["pass"]) for name, line in everything.items()} == {
        "zero-shot": 36,
        "raw": 36,
        "reported": 36,
    }
    assert int(everything["reported"]["right"]) / 36 == pytest.approx(run.summary["metrics"]["accuracy"])


def test_tensorboard_has_the_curves_of_the_run(real: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = find_runs([real / "tca"])[0][0]
    events = EventAccumulator(str(real / "curves" / run.folder.name))
    events.Reload()
    curve = events.Scalars("accuracy")
    hits = np.cumsum([row["prediction"] == row["label"] for row in run.rows])
    assert [point.step for point in curve] == list(range(6, 37, 6))
    assert [point.value for point in curve] == pytest.approx([hits[s - 1] / s for s in range(6, 37, 6)])
    assert events.Scalars("final/gain")[0].value == pytest.approx(run.summary["metrics"]["gain"])


def test_a_logger_changes_no_number(real: Path, tmp_path: Path) -> None:
    plain = run_one(RunSpec(model="tiny", dataset=f"folder:{real / 'photos'}"), tmp_path, quiet=True, cache=False)
    assert plain is not None and plain["metrics"] == find_runs([real / "tca"])[0][0].summary["metrics"]
