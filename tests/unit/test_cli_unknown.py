"""Unknown images on the command line: rows, summaries, a page, and streams that were cut off."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torchmetrics")
pytest.importorskip("scipy")

import lessmore
from lessmore.engines import unknown_gate
from lessmore.errors import ConfigError
from lessmore.lab import job as jobs
from lessmore.lab.metrics import unknown_note
from lessmore.lab.runner import run_one
from lessmore.lab.spec import RunSpec
from tests.small_runs import draw_folder, lines, only_run, results
from tests.unit.test_cli import BASE, MODEL, NAMES, call, one_line, photos, read_csv  # noqa: F401  (a fixture)

IMAGES = 48


def test_rows_say_what_is_unknown_also_after_a_break(photos: Path, tmp_path: Path) -> None:  # noqa: F811
    adapter = lessmore.adapt(MODEL, NAMES, unknown=9.0)
    scores = [adapter(path).unknown_score for path in sorted(photos.glob("*.png"))]
    threshold = float(np.quantile([score for score in scores if score is not None], 0.7))
    whole, output, state = tmp_path / "whole.csv", tmp_path / "out.jsonl", tmp_path / "s.safetensors"
    options = [*BASE, "--unknown", threshold, "--quiet"]
    assert call("classify", photos, *options, "--output", whole) == 0
    adapter = lessmore.adapt(MODEL, NAMES, unknown=threshold)
    rows = read_csv(whole)
    for row in rows:
        found = adapter(row["path"])
        assert (row["label"], row["unknown"]) == (found.label, str(found.unknown).lower())
        assert float(row["unknown_score"]) == pytest.approx(found.unknown_score, abs=1e-4)
    assert 0 < sum(row["unknown"] == "true" for row in rows) < len(rows)
    call("classify", *(row["path"] for row in rows[:9]), *options, "--state", state, "--output", tmp_path / "a.csv")
    call("classify", *(row["path"] for row in rows[9:]), *options, "--state", state, "--output", output)
    for mine, theirs in zip(lines(output), rows[9:], strict=True):
        assert (mine["label"], mine["unknown"]) == (theirs["label"], theirs["unknown"] == "true")
        assert mine["unknown_score"] == pytest.approx(float(theirs["unknown_score"]), abs=1e-4)


def test_without_it_the_columns_are_empty(
    photos: Path,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call("classify", photos, *BASE, "--output", tmp_path / "out.csv") == 0
    assert {(row["unknown"], row["unknown_score"]) for row in read_csv(tmp_path / "out.csv")} == {("", "")}
    assert "called unknown" not in capsys.readouterr().err
    assert call("classify", photos, *BASE, "--unknown", "auto", "--output", tmp_path / "auto.csv") == 0
    assert "0 called unknown" in capsys.readouterr().err  # 24 images are too few to say so
    assert call("classify", photos, *BASE, "--unknown", "often") == 1
    assert "neither 'off' nor 'auto' nor a number" in one_line(capsys)


def test_runs_tell_and_resume_to_the_same_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("START", 12), ("SPREADS", 0.5), ("MOST", 0.4)):  # so that a short stream has unknown images
        monkeypatch.setattr(unknown_gate, name, value)
    data, vlm = draw_folder(tmp_path / "photos", IMAGES), lessmore.load("tiny")
    plain = RunSpec("tiny", f"folder:{data}", device="cpu", engine="eager")
    spec = RunSpec("tiny", f"folder:{data}", device="cpu", engine="eager", unknown="auto")
    summary = run_one(spec, tmp_path / "whole", quiet=True, vlm=vlm, cache=tmp_path / "cache")
    assert summary is not None
    found, rows = summary["metrics"], lines(only_run(tmp_path / "whole") / "samples.jsonl")
    assert found["unknown"] == sum(row["unknown"] for row in rows) > 0
    assert found["unknown_rate"] == pytest.approx(found["unknown"] / len(rows))
    assert all(isinstance(row["unknown_score"], float) for row in rows)
    count = iter(range(len(rows)))
    stopped = run_one(
        spec, tmp_path / "cut", quiet=True, vlm=vlm, cache=tmp_path / "cache", stop=lambda: next(count) == len(rows) - 6
    )
    assert stopped is None
    assert run_one(spec, tmp_path / "cut", quiet=True, vlm=vlm, cache=tmp_path / "cache") is not None
    assert results(tmp_path / "cut") == results(tmp_path / "whole")
    off, on = jobs.prepare_job(plain, vlm), jobs.prepare_job(spec, vlm)
    assert off.key != on.key and "unknown" not in off.identity  # keys of all other runs stay
    assert unknown_note(found).startswith(f"{found['unknown']} called unknown (") and unknown_note({}) == ""
    flags = ["--model", "tiny", "--dataset", f"folder:{data}", "--engine", "eager", "--device", "cpu", "--quiet"]
    flags += ["--cache", tmp_path / "cache", "--output", tmp_path / "whole", "--unknown", "auto"]
    assert call("run", *flags) == 0
    assert unknown_note(found) in capsys.readouterr().out
    assert call("report", tmp_path / "whole", "--output", tmp_path / "page.html", "--pictures", "4") == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert unknown_note(found) in page and "answers differ from the run" not in page
    with pytest.raises(ConfigError, match="neither 'off' nor"):
        RunSpec("tiny", "x", unknown=json.loads("Infinity"))
