"""Tables of runs: what stands in them, what is bold, what is escaped, what is left out."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from lessmore.cli import main
from lessmore.lab.report import write
from lessmore.lab.report.escape import csv_table
from lessmore.lab.report.tables import Cell, ResultTable, result_page, result_table, run_lines
from lessmore.lab.store import SCHEMA
from lessmore.storage.sealed import write_sealed_json


def summary(
    dataset: str = "eurosat",
    accuracy: float = 0.8,
    zero_shot: float = 0.75,
    half: float = 0.02,
    tuned_on: str | None = None,
    n: int = 1000,
    failed: int = 0,
    note: str = "",
    finished: str = "2026-01-01T00:00:00",
    device: str = "cpu",
    **spec: Any,
) -> dict[str, Any]:
    asked = {
        "model": "tiny",
        "method": "tca",
        "reducer": "tca",
        "preset": "default",
        "R": 0.9,
        "options": {},
        "dataset": dataset,
        "root": "/somewhere",
        "templates": None,
        "order": "iid",
        "corruption": None,
        "seed": 0,
        "limit": None,
        "precision": "float32",
        "calibrate": None,
        "unknown": "off",
        "device": "auto",
        "engine": "auto",
        "workers": 0,
        **spec,
    }
    figures = {
        "n": n,
        "failed": failed,
        "accuracy": accuracy,
        "accuracy_ci": [accuracy - half, accuracy + half],
        "zero_shot_accuracy": zero_shot,
        "zero_shot_ci": [zero_shot - half, zero_shot + half],
        "gain": accuracy - zero_shot,
        "gain_ci": [0.01, 0.09],
        **dict.fromkeys(("mcnemar_p", "ece", "zero_shot_ece", "confidence_ece", "brier", "zero_shot_brier"), 0.5),
        **dict.fromkeys(("auroc", "zero_shot_auroc"), None),
        **dict.fromkeys(("changed", "refused", "set_aside", "tokens_kept"), 0),
        "over_time": [{"seen": 5, "accuracy": accuracy, "zero_shot_accuracy": zero_shot}],
        "domains": {},
    }
    spent = dict.fromkeys(("gmacs_paper", "gmacs_matmul", "plain_gmacs_paper", "plain_gmacs_matmul"), 1.5)
    made = {"dtype": "float32", "hardware": {"cpu": "a", "gpu": None}, "versions": {"torch": "0"}, "threads": 1}
    return {
        "schema": SCHEMA,
        "key": json.dumps([asked, accuracy, finished, device]),
        "spec": asked,
        "tuned_on": tuned_on,
        "dataset": {
            "name": dataset,
            "classes": 10,
            "images": n,
            "fingerprint": "f",
            "note": note,
            "pixels": None,
            "stream": "s",
        },
        "metrics": figures,
        "cost": {**spent, "ms_p50": None, "ms_p95": None, "timed": 0, "peak_memory_mb": None},
        "provenance": {**made, "finished": finished, "device": device},
    }


def to_markdown(of: ResultTable) -> str:
    return write.to_markdown(result_page(of))


def to_latex(of: ResultTable) -> str:
    return write.to_latex(result_page(of))


def rows(*summaries: dict[str, Any]) -> list[dict[str, str]]:
    """The Markdown table as a list of dictionaries."""
    lines = to_markdown(result_table(summaries)).split("\n\n")[0].splitlines()
    split = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "---" not in line]
    return [dict(zip(split[0], line, strict=True)) for line in split[1:]]


def test_a_cell_is_the_mean_over_seeds_with_interval_and_gain() -> None:
    images, plain, ours = rows(summary(accuracy=0.80), summary(accuracy=0.82, seed=1, half=0.03))
    assert images["eurosat"] == "1,000"
    assert plain["method"] == "matched zero-shot" and plain["eurosat"] == "75.00 ± 2.50" and plain["R"] == "1"
    assert ours["eurosat"] == "**81.00** ± 2.50 (+6.00 ± 4.00)" and ours["seeds"] == "2"
    assert "average" not in ours


def test_best_is_bold_per_column_and_model_and_ties_are_shared() -> None:
    found = rows(
        summary(accuracy=0.8),
        summary(accuracy=0.800001, method="tda", reducer="none"),
        summary(accuracy=0.7, method="vte"),
        summary("dtd", accuracy=0.4, zero_shot=0.5),
        summary(accuracy=0.3, zero_shot=0.2, model="other"),
    )
    bold = [(row["model"], row["method"], name) for row in found for name in row if row[name].startswith("**")]
    assert bold == [
        ("other", "tca", "eurosat"),
        ("tiny", "matched zero-shot", "dtd"),
        ("tiny", "matched zero-shot", "average"),
        ("tiny", "tca", "eurosat"),
        ("tiny", "tda", "eurosat"),
    ]


def test_the_average_needs_every_column() -> None:
    arranged = result_table([summary(accuracy=0.8), summary("dtd", accuracy=0.6), summary("dtd", method="tda")])
    by_method = {row.labels[1]: row for row in arranged.rows}
    assert arranged.columns == ("dtd", "eurosat", "average")
    average = by_method["tca"].cells[-1]
    assert average is not None and average.accuracy == pytest.approx(70) and average.half is None
    assert average.gain == pytest.approx(-5)
    assert by_method["tda"].cells[1:] == (None, None)


def test_streams_that_do_not_compare_have_columns_of_their_own() -> None:
    arranged = result_table(
        [
            summary(),
            summary(corruption="fog:3"),
            summary(order="sorted"),
            summary(limit=100, n=100, note="stratified 100 of 1,000 images"),
        ]
    )
    assert arranged.columns == (
        "eurosat",
        "eurosat, fog:3",
        "eurosat, sorted",
        "eurosat, stratified 100 of 1,000 images",
        "average",
    )
    assert arranged.images == ("1,000", "1,000", "1,000", "100", "")


def test_different_data_under_one_name_do_not_mix() -> None:
    other = summary(accuracy=0.2)
    other["dataset"]["fingerprint"] = "0123456789"
    assert result_table([summary(), {**other, "key": "other"}]).columns == (
        "eurosat, 01234567",
        "eurosat, f",
        "average",
    )


def test_a_setting_shows_where_runs_differ_in_it_and_only_there() -> None:
    assert result_table([summary(), summary(R=0.7)]).head == ("model", "method", "reducer", "preset", "R")
    assert result_table([summary(), summary(device="cuda")]).head[5:] == ("device",)
    arranged = result_table([summary(options={"lam": 2, "K": 3}), summary(precision="bfloat16")])
    assert arranged.head[5:] == ("options", "precision")
    assert [row.labels[5:] for row in arranged.rows] == [
        ("", "bfloat16"),
        ("", "float32"),
        ("", "bfloat16"),
        ("K=3, lam=2", "float32"),
    ]


def test_presets_tuned_on_test_labels_are_marked_and_never_best() -> None:
    tuned = [summary(name, accuracy=0.9, preset=f"released/{name}", tuned_on=name) for name in ("dtd", "eurosat")]
    foreign = summary("dtd", accuracy=0.95, preset="released/eurosat", tuned_on="eurosat")
    level = summary("dtd", accuracy=0.8, preset="released/other", tuned_on="other")
    arranged = result_table([*tuned, foreign, level, summary("dtd"), summary("eurosat")])
    text = to_markdown(arranged)
    by_preset = {row.labels[3]: row for row in arranged.rows}
    assert by_preset["released/own †"].cells[0] == by_preset["released/own †"].cells[1]
    assert by_preset["released/own †"].cells[2] is not None
    assert by_preset["released/eurosat †"].tuned
    assert "**90.00**" not in text and "**95.00**" not in text and text.count("**80.00**") == 3
    assert "† Settings tuned on test labels, those of dtd, eurosat, other" in text
    assert "tuned on" not in to_markdown(result_table([summary()]))


def test_the_newest_of_equal_runs_counts_and_the_others_are_mentioned() -> None:
    old, new = summary(accuracy=0.9), summary(accuracy=0.8, finished="2026-02-01T00:00:00")
    for order in ([old, new], [new, old], [new, old, new]):
        arranged = result_table(order)
        assert arranged.rows[1].cells == (Cell(80.0, pytest.approx(2.0), pytest.approx(5.0), pytest.approx(4.0)),)
        assert any("1 older runs" in note for note in arranged.notes)


def test_notes_tell_of_images_and_runs_left_out() -> None:
    text = to_markdown(result_table([summary(failed=3), summary("dtd", failed=1)], ["tca-x (not finished)"]))
    assert "4 images could not be read" in text and "left out: tca-x (not finished)." in text


def test_the_table_does_not_depend_on_the_order_of_the_runs() -> None:
    runs = [summary(name, method=m, seed=s) for name in ("a", "b") for m in ("tca", "tda") for s in (0, 1)]
    assert to_latex(result_table(runs)) == to_latex(result_table(runs[::-1]))


NASTY = "a|b & 50% of_$x #1 {y} ~z^ \\end{tabular} <b>*bold*</b>"


def test_markdown_escapes() -> None:
    text = to_markdown(result_table([summary(NASTY, model="m|n\nnew")]))
    head, _, *body = text.split("\n\n")[0].splitlines()
    assert "a\\|b" in head and "\\<b\\>\\*bold\\*" in head and "of\\_\\$x" in head
    assert len(body) == 3 and "m\\|n new" in body[-1]
    assert {line.replace("\\|", "").count("|") for line in (head, *body)} == {8}


def test_latex_escapes_and_is_balanced() -> None:
    text = to_latex(result_table([summary(NASTY, preset="a_b", tuned_on="q", accuracy=0.5), summary(NASTY)]))
    assert r"a|b \& 50\% of\_\$x \#1 \{y\} \textasciitilde{}z\textasciicircum{} \textbackslash{}end\{tabular\}" in text
    assert r"a\_b $\dagger$" in text and r"\textbf{80.00} $\pm$ 2.00 (+5.00 $\pm$ 4.00)" in text
    lines = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {line.replace(r"\&", "").count("&") for line in lines} == {6}
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 1
    assert not set("±†–") & set(text)


def test_csv_has_every_figure_and_no_formula() -> None:
    text = csv_table(
        run_lines([summary("=cmd()", accuracy=0.5, zero_shot=0.75, options={"lam": 2}), summary(model="@x", seed=3)])
    )
    first, second = csv.DictReader(io.StringIO(text))
    assert first["spec.dataset"] == "'=cmd()" and second["spec.model"] == "'@x"
    assert first["metrics.gain"] == "-0.25" and first["metrics.accuracy_ci.low"] == "0.48"
    assert first["spec.options"] == '{"lam": 2}' and second["spec.seed"] == "3" and first["cost.gmacs_paper"] == "1.5"
    assert "metrics.over_time" not in first


def put(folder: Path, name: str, content: dict[str, Any] | str | None) -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / "spec.json").write_text("{}")
    file = folder / name / "summary.json"
    if isinstance(content, str):
        file.write_text(content)
    elif content is not None:
        write_sealed_json(file, content)


def test_build_finds_runs_at_any_depth_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path, "a/one", summary())
    put(tmp_path, "a/b/two", summary("dtd"))
    file = tmp_path / "a" / "one" / "summary.json"
    assert main(["build", str(tmp_path), str(tmp_path / "a"), str(file)]) == 0
    assert capsys.readouterr().out == to_markdown(result_table([summary(), summary("dtd")]))


def test_build_lists_what_it_leaves_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path, "good", summary())
    put(tmp_path, "running", None)
    put(tmp_path, "torn", '{"schema": "less')
    put(tmp_path, "foreign", {"schema": "other/1"})
    put(tmp_path, "partial", {"schema": SCHEMA})
    put(tmp_path, "blind", summary("dtd", n=0))
    output = tmp_path / "table.md"
    assert main(["build", str(tmp_path), "-o", str(output)]) == 3
    errors = capsys.readouterr().err
    for text in (output.read_text(), errors):
        assert "running (not finished)" in text and "torn (is damaged" in text
        assert "blind (no image could be read)" in text
    assert "foreign (is not a readable file of the form" in errors
    assert "partial (makes no sense: key is missing)" in errors
    assert [path.name for path in tmp_path.glob(".*")] == []


@pytest.mark.parametrize("ending", ["md", "tex", "html", "csv"])
def test_build_writes_the_format_of_the_ending(ending: str, tmp_path: Path) -> None:
    put(tmp_path, "good", summary())
    output = tmp_path / f"table.{ending}"
    assert main(["build", str(tmp_path), "--output", str(output)]) == 0
    start = {"md": "| model", "tex": "% needs", "csv": "key,", "html": "<!DOCTYPE html>"}[ending]
    assert output.read_text(encoding="utf-8").startswith(start)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere"], "there is no file or folder nowhere"),
        (["."], "no finished run in ."),
        ([".", "-o", "table.pdf"], "does not end in .md or .tex or .html or .csv"),
    ],
)
def test_build_refuses_in_one_line(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["build", *arguments]) == 1
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1
