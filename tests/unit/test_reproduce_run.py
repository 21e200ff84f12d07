"""`lessmore reproduce` from the first run to the last format, on the embedded model and a few drawn images."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torchmetrics")
pytest.importorskip("scipy")

from lessmore.cli import main
from lessmore.paper.estimate import Throughput
from lessmore.paper.figures.kinds_plot import TradeOff, label_places, pareto
from lessmore.paper.stored import FORMATS, read_table, to_json
from lessmore.paper.tables import TABLES
from tests.small_runs import draw_set, lines

IMAGES = 8
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    draw_set(root, "eurosat/2750", "split_zhou_EuroSAT.json", 5, IMAGES)
    draw_set(root, "oxford_pets/images", "split_zhou_OxfordPets.json", 6, IMAGES)
    return root


Reproduce = Callable[..., int]


def reproduce(data: Path, output: Path, *more: str) -> int:
    return main(["reproduce", "--model", "tiny", "--root", str(data), "--output", str(output), "--quiet", *more])


@pytest.fixture(scope="module")
def made(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tables on the paper's data sets, as far as they are there."""
    folder = tmp_path_factory.mktemp("out")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LESSMORE_CACHE", str(folder / "cache"))
        assert reproduce(data, folder, "merge-prune", "components", "--seeds", "0", "1") == 0
    return folder


def value_of(folder: Path, name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    return value


def test_a_table_holds_ours_and_the_papers(made: Path) -> None:
    value = value_of(made, "merge-prune")
    assert [column["dataset"] for column in value["columns"]] == ["oxford_pets", "eurosat"]
    assert [row["name"] for row in value["rows"]] == ["0:1", "1:2", "2:1"]
    cell = value["rows"][2]["cells"][1]
    assert cell["paper"] == 70.43 and cell["images"] == IMAGES and cell["seeds"] == [0, 1]
    assert cell["gain"][0] == pytest.approx(cell["accuracy"][0] - cell["zero_shot"][0], abs=1e-3)
    assert cell["accuracy"][0] == pytest.approx(sum(cell["accuracy_by_seed"]) / 2, abs=1e-3)
    assert value["rows"][0]["settings"]["condensation"]["merge_prune"] == [0, 1]
    assert value["averages"] == {"average": [0, 1]} and value["rows"][0]["averages"]["average"]["paper"] is None
    assert value["provenance"]["versions"]["torch"] and value["provenance"]["weights"]
    assert cell["gmacs"]["matmul"] < cell["gmacs"]["plain_matmul"]


def test_rows_are_compared_with_the_base_of_their_table(made: Path) -> None:
    value = value_of(made, "merge-prune")
    first, _, base = (row["cells"][0] for row in value["rows"])
    assert value["base"] == "2:1" and "change" not in base
    assert first["change"][0] == pytest.approx(first["accuracy"][0] - base["accuracy"][0], abs=1e-3)
    assert first["change"][1] <= first["change"][0] <= first["change"][2]
    assert "| change from 2:1 |" in (made / "merge-prune.md").read_text()


def test_the_numbers_are_those_of_the_runs(made: Path) -> None:
    """Counted once more from the lines that the runs left."""
    value = value_of(made, "merge-prune")
    right: list[bool] = []
    for spec in (made / "runs").glob("*/spec.json"):
        asked = json.loads(spec.read_text())["spec"]
        if asked["dataset"] == "eurosat" and tuple(asked["options"].get("merge_prune", ())) == (0, 1):
            right += [row["prediction"] == row["label"] for row in lines(spec.parent / "samples.jsonl")]
    assert len(right) == 2 * IMAGES
    assert value["rows"][0]["cells"][1]["accuracy"][0] == pytest.approx(100 * sum(right) / len(right), abs=1e-3)


def test_tables_are_made_of_what_is_there_and_say_what_is_not(made: Path) -> None:
    value = value_of(made, "components")
    assert list(value["missing"]) == ["food101"]
    assert "Not there: food101: get food-101.tar.gz" in (made / "components.md").read_text()


def test_no_path_of_the_machine_is_in_the_json(made: Path, data: Path) -> None:
    for name in ("merge-prune", "components"):
        text = (made / f"{name}.json").read_text()
        assert str(data) not in text and str(made) not in text


def test_the_same_command_again_runs_nothing(made: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LESSMORE_CACHE", str(made / "cache"))
    before = {path: path.stat().st_mtime_ns for path in made.glob("runs/*/s*.json*")}
    told = value_of(made, "merge-prune")["rows"]
    assert reproduce(data, made, "merge-prune", "--seeds", "0", "1", "--format", "markdown") == 0
    assert before == {path: path.stat().st_mtime_ns for path in made.glob("runs/*/s*.json*")}
    assert value_of(made, "merge-prune")["rows"] == told


def test_tables_are_collected_from_runs_of_another_machine(
    made: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model lies elsewhere and cannot be loaded, one run has not come along."""
    moved = Path(shutil.copytree(made / "runs", tmp_path / "runs"))
    shutil.rmtree(next(moved.glob("*eurosat*seed1*")))
    wanted = ["merge-prune", "components", "--seeds", "0", "1", "--model", "nowhere/tiny", "--collect"]
    assert main(["reproduce", *wanted, "--root", str(data), "--output", str(tmp_path)]) == 0
    assert "23 of 24 runs are done" in capsys.readouterr().out
    before, after = value_of(made, "merge-prune"), value_of(tmp_path, "merge-prune")
    for old, new in zip(before["rows"], after["rows"], strict=True):
        assert old["cells"][0] == new["cells"][0]
    holes = [
        row["name"]
        for name in wanted[:2]
        for row in value_of(tmp_path, name)["rows"]
        if "accuracy" not in row["cells"][-1]
    ]
    assert holes


def test_every_format_follows_from_the_json_alone(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for value in read_table(made):
        sealed = json.loads(to_json(value))
        assert sealed.pop("seal") and sealed == value
    assert main(["reproduce", "--from", str(made), "--output", str(tmp_path)]) == 0
    for ending, _ in FORMATS.values():
        file = tmp_path / f"components{ending}"
        assert file.read_text() == (made / file.name).read_text()
    capsys.readouterr()
    assert main(["reproduce", "--from", str(made), "--format", "markdown"]) == 0
    assert capsys.readouterr().out.count("| images |") == 2


def test_markdown_shows_gains_in_points_and_the_difference(made: Path) -> None:
    text = (made / "merge-prune.md").read_text()
    cell = value_of(made, "merge-prune")["rows"][2]["cells"][1]
    ours = cell["accuracy"][0]
    assert f"{ours:.2f} / 70.43 / {ours - 70.43:+.2f}" in text
    assert "matched zero-shot" in text and "in points" in text and "relative to the baseline" in text
    assert "The paper's model is CLIP ViT-B/16, ours tiny." in text
    columns = {line.count("|") for line in text.split("\n\n")[2].splitlines()}
    assert len(columns) == 1


def test_csv_has_every_cell(made: Path) -> None:
    rows = list(csv.DictReader(io.StringIO((made / "merge-prune.csv").read_text())))
    assert len(rows) == 3 * (2 + 1)
    told = next(row for row in rows if (row["row"], row["dataset"]) == ("2:1", "eurosat"))
    assert told["paper"] == "70.43"
    assert float(told["difference"]) == pytest.approx(float(told["accuracy"]) - 70.43, abs=1e-3)


def test_latex_is_balanced_and_has_no_foreign_sign(made: Path) -> None:
    text = (made / "components.tex").read_text()
    body = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    assert body.count(r"\begin{tabular}") == body.count(r"\end{tabular}") == 3
    assert not re.search(r"(?<!\\)[%_#]", body) and not re.search("[λβ‡†→]", body)


class Outline(HTMLParser):
    """Which tags were opened and not closed, and whether anything is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loaded += [v for k, v in attrs if k in ("src", "href") and v and not v.startswith(("data:", "#"))]
        if tag not in ("meta", "link"):
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag


def test_html_is_whole_and_loads_nothing_and_escapes_names(made: Path) -> None:
    value = value_of(made, "components")
    value["columns"][0]["dataset"] = "<script>alert(1)</script>"
    page = FORMATS["html"][1](value)
    outline = Outline()
    outline.feed(page)
    assert outline.stack == [] and outline.loaded == []
    assert "<script" not in page and "&lt;script&gt;" in page
    assert "prefers-color-scheme: dark" in page
    assert r"\<script\>" in FORMATS["markdown"][1](value)


def test_streams_of_several_corruptions(data: Path, tmp_path: Path) -> None:
    pytest.importorskip("imagecorruptions")
    chosen = ["--dataset", "eurosat", "pets", "--corruption", "none", "contrast:2"]
    assert reproduce(data, tmp_path, "budget", *chosen, "--rows", "R=0.9", "--seeds", "0", "--limit", "6") == 0
    value = value_of(tmp_path, "budget")
    assert value["averages"] == {"clean average": [0, 1], "corrupted average": [2, 3]}
    (row,) = value["rows"]
    means = [cell["gain"][0] for cell in row["cells"]]
    assert row["averages"]["corrupted average"]["gain"][0] == pytest.approx((means[2] + means[3]) / 2, abs=1e-3)
    assert [cell["paper"] for cell in row["cells"]] == [70.43, 89.53, None, None]
    assert "stratified 6 of 8 images" in (tmp_path / "budget.md").read_text()
    assert "eurosat, contrast:2" in (tmp_path / "budget.md").read_text()


def test_runs_that_fail_leave_a_hole_and_a_reason(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ["--rows", "TCA R=0.9", "TPT", "--seeds", "0", "--limit", "2", "--templates", "no place for a name"]
    assert reproduce(data, tmp_path, "cross-dataset", "--dataset", "eurosat", *rows) == 3
    value = value_of(tmp_path, "cross-dataset")
    assert len(value["failed"]) == 2 and value["rows"][0]["settings"] is None
    assert "Failed: eurosat tiny" in (tmp_path / "cross-dataset.md").read_text()
    assert "lessmore reproduce: eurosat tiny" in capsys.readouterr().err


def test_dry_run_counts_runs_images_costs_and_time(made: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce(data, made, "merge-prune", "lambda", "--seeds", "0", "1", "--dry-run") == 0
    said = capsys.readouterr().out
    assert "merge-prune: Merged against pruned tokens, with tiny" in said
    assert re.search(r"0:1 +4 runs +32 images +0\.\d+ GMACs per image", said)
    assert "12 runs, 12 of them done or in tables above; 0 images to answer, about 0 s" in said
    assert "42 runs, 4 of them done or in tables above" in said
    assert "tiny, all: 50 runs, 12 done" in said and "24 of them have their data" in said
    assert "ms for one plain image" in said and "about" in said
    assert "102flowers.tgz" in said


def test_dry_run_of_a_table_needs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "siglip", "--dry-run", "--seeds", "0"]) == 0
    said = capsys.readouterr().out
    assert "83,696 images" in said and "17.71 GMACs" in said and "0 of them have their data" in said


def test_dry_run_of_everything_counts_every_method_on_shapes_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prompt learners need a text tower to be counted; a shape has one without weights."""
    monkeypatch.setattr("lessmore.paper.dryrun.measure_rates", lambda tower, threads: Throughput(1e-3, 1e-3, 10.0))
    assert main(["reproduce", "all", "--dry-run", "--seeds", "0"]) == 0
    said = capsys.readouterr().out
    for name, table in TABLES.items():
        assert f"{name}: {table.title}, with " in said
    counted = {name: float(gmacs) for name, gmacs in re.findall(r"^  (\S+) .* (\d+\.\d+)\S* GMACs", said, re.MULTILINE)}
    assert counted["TPT"] > 64 * counted["zero-shot"] > 64 * 16


def test_figures_are_drawn_of_the_same_wishes(data: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert reproduce(data, tmp_path, "tokens", "--dataset", "eurosat", "--limit", "2") == 0
    assert {path.name for path in tmp_path.glob("tokens.*")} == {"tokens.png", "tokens.svg", "tokens.json"}


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["budgt"], "did you mean budget"),
        (["tokns"], "did you mean tokens"),
        (["budget", "--format", "markdwn"], "did you mean markdown"),
        (["budget", "--jobs", "0"], "--jobs must be 1 or more"),
        (["budget", "--seeds", "1", "1"], "names a seed twice"),
        ([], "name tables or figures"),
        (["budget", "--dataset", "eurosatt"], "did you mean eurosat"),
        (["budget"], "there is no model"),
        (["budget", "--model", "tiny"], "none of the data sets is there"),
        (["--from", "nowhere"], "there is no folder nowhere"),
    ],
)
def test_mistakes_get_one_plain_sentence(
    arguments: list[str], answer: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model = ["--model", "tiny"] if "--dataset" in arguments else []
    assert main(["reproduce", *arguments, *model, "--quiet"]) == 1
    told = capsys.readouterr().err.strip().splitlines()[-1]
    assert told.startswith("lessmore reproduce: ") and answer in told


def test_list_names_tables_and_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--list"]) == 0
    names = [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()]
    assert names[: len(TABLES)] == list(TABLES) and "leave-one-out" in names


def results_page() -> ModuleType:
    spec = importlib.util.spec_from_file_location("results_page", REPOSITORY / "benchmarks" / "results_page.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_table_of_gains_shows_calibration_in_place_of_changes() -> None:
    value = value_of(REPOSITORY / "benchmarks" / "results" / "reproduce" / "photo-s8", "methods")
    text = FORMATS["markdown"][1](value)
    assert "change from" not in text
    (line,) = [line for line in text.splitlines() if line.startswith("| TDA | 0")]
    errors = [cell["ece"] for cell in next(row for row in value["rows"] if row["name"] == "TDA")["cells"]]
    shown = [float(cell) for cell in line.split("|")[2:-1]]
    assert shown == pytest.approx([*errors, sum(errors[:3]) / 3, sum(errors[3:]) / 3], abs=6e-4)


def test_the_results_page_is_what_the_committed_json_says() -> None:
    page = results_page()
    text = (REPOSITORY / "docs" / "results.md").read_text(encoding="utf-8")
    assert page.spliced(text, REPOSITORY) == text


def test_the_results_page_splices_tables_and_words(made: Path, tmp_path: Path) -> None:
    page = results_page()
    stored = tmp_path / "benchmarks" / "results" / "reproduce" / "tiny"
    stored.mkdir(parents=True)
    for name in ("merge-prune", "components"):
        (stored / f"{name}.json").write_text((made / f"{name}.json").read_text())
    prose = tmp_path / "benchmarks" / "results" / "prose"
    prose.mkdir(parents=True)
    (prose / "components.md").write_text("The claim did not hold here.\n")
    text = page.spliced(f"before\n{page.BEGIN}\nstale words\n{page.END}\nafter\n", tmp_path)
    assert text.startswith("before\n") and text.endswith("after\n") and "stale words" not in text
    assert "The claim did not hold here." in text and text.count("Accuracy in percent") == 1
    assert text.index("### Anchor and cross-head rank") < text.index("### Merged against pruned tokens")
    assert page.spliced(text, tmp_path) == text


@pytest.fixture(scope="module")
def field(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The field's table, of a few rows and two orders."""
    folder = tmp_path_factory.mktemp("field")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LESSMORE_CACHE", str(folder / "cache"))
        assert field_of(data, folder) == 0
    return folder


def field_of(data: Path, folder: Path, *more: str) -> int:
    streams = ("--dataset", "eurosat", "pets", "--corruption", "none", "--order", "iid", "few", "--seeds", "0", "1")
    return reproduce(data, folder, "field", *streams, "--rows", "zero-shot", "NEO", "BCA", *more)


def test_the_field_is_read_by_kinds_of_streams(field: Path) -> None:
    value = value_of(field, "field")
    assert list(value["averages"]) == ["iid, clean", "few", "all"]
    assert [(c["dataset"], c["order"]) for c in value["columns"]] == [
        *(("eurosat", "iid"), ("oxford_pets", "iid")),
        *(("eurosat", "few"), ("oxford_pets", "few")),
    ]
    neo = next(row for row in value["rows"] if row["name"] == "NEO")
    gains = [cell["gain"][0] for cell in neo["cells"]]
    assert neo["worst"]["gain"][0] == min(gains) == gains[neo["worst"]["column"]]
    assert neo["averages"]["all"]["gain"][0] == pytest.approx(sum(gains) / 4, abs=1e-3)
    assert set(value["pace"]) == {"zero-shot", "NEO", "BCA"}
    assert value["pace"]["zero-shot"]["relative"] == 1
    assert all(row["ms"] > 0 and row["state_mb"] > 0 for row in value["pace"].values())
    text = (field / "field.md").read_text()
    assert "| worst stream | ECE | GMACs | ms | state |" in text
    assert "--order iid few" in text
    assert "--corruption none" in text


def test_the_field_is_made_of_what_is_done_already(field: Path, data: Path) -> None:
    before = value_of(field, "field")
    times = {file: file.stat().st_mtime_ns for file in (field / "runs").rglob("*.json*")}
    assert field_of(data, field, "--collect") == 0
    after = value_of(field, "field")
    assert after["rows"] == before["rows"] and after["pace"] == before["pace"]
    assert times == {file: file.stat().st_mtime_ns for file in (field / "runs").rglob("*.json*")}


def test_the_field_draws_its_trade_offs(field: Path) -> None:
    pytest.importorskip("matplotlib")
    drawn = json.loads((field / "field-pareto.json").read_text())
    assert set(drawn["data"]) == {"zero-shot", "NEO", "BCA"}
    assert drawn["data"]["zero-shot"] == {"gain": 0.0, "worst": 0.0, "relative_time": 1.0}
    assert (field / "field-pareto.png").stat().st_size > 5_000


def test_the_front_holds_whom_nobody_beats_in_both() -> None:
    points = [TradeOff(name, x, y) for name, x, y in (("a", 1, 3), ("b", 2, 2), ("c", 1, 2), ("d", 3, 0), ("e", 2, 1))]
    assert [point.name for point in pareto(points)] == ["d", "b", "a"]
    assert pareto([TradeOff("a", 1, 1), TradeOff("b", 1, 1)]) == [TradeOff("a", 1, 1)]


def test_names_of_points_stand_beside_them_and_not_on_each_other() -> None:
    points = [TradeOff(name, x, y) for name, x, y in (("a", 1, 0), ("b", 1.01, 0), ("c", 8, 0), ("d", 1, -9))]
    places = {point.name: place for point, place in label_places(points, log=True)}
    assert [places[name].y for name in "acd"] == [0, 0, -9]
    assert places["b"].y == pytest.approx(-0.045 * 9)
    assert all(places[p.name].x > p.x for p in points)


def test_several_models_get_a_folder_each(data: Path, tmp_path: Path) -> None:
    words = ["reproduce", "field", "--model", "tiny", "tiny-siglip", "--root", str(data), "--output", str(tmp_path)]
    words += ["--dataset", "eurosat", "--corruption", "none", "--order", "iid", "--rows", "zero-shot", "--quiet"]
    assert main(words) == 0
    assert value_of(tmp_path / "tiny", "field")["model"] == "tiny"
    assert value_of(tmp_path / "tiny-siglip", "field")["model"] == "tiny-siglip"
    assert main([*words[:3], "tiny", "elsewhere/tiny", *words[5:]]) == 1
    assert main([*words, "--ray", "local", "--jobs", "2"]) == 1
