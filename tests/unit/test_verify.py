"""`lessmore reproduce verify`: one page that says whether the paper's numbers lie in the intervals of ours."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchmetrics")
pytest.importorskip("scipy")

from lessmore.cli import main
from lessmore.lab.store import Store
from lessmore.models.load import load
from lessmore.models.shapes import SHAPES
from lessmore.paper.estimate import Throughput
from lessmore.paper.plan import ReproductionRequest
from lessmore.paper.stored import FORMATS, read_table
from lessmore.paper.verify import _without_places, compared_with, tables_to_verify, verdict
from tests.small_runs import draw_set

IMAGES = 30
ROWS = ("CLIP", "TDA", "TDA, tuned", "EViT R=0.9", "EViT R=0.7", "TCA R=0.9", "TCA R=0.7")
PAGES = [f"verify{ending}" for ending in (".json", *(ending for ending, _ in FORMATS.values()))]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    draw_set(root, "eurosat/2750", "split_zhou_EuroSAT.json", 5, IMAGES)
    return root


def verify(data: Path, output: Path, *more: str) -> int:
    where = ("--model", "tiny", "--root", str(data), "--output", str(output), "--seeds", "0")
    return main(["reproduce", "verify", *where, "--quiet", *more])


@pytest.fixture(scope="module")
def made(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("out")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LESSMORE_CACHE", str(folder / "cache"))
        assert verify(data, folder) == 0
    return folder


def value_of(folder: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((folder / "verify.json").read_text())
    return value


@pytest.mark.parametrize(
    ("estimate", "paper", "images", "word"),
    [
        ((60.0, 58.0, 62.0), 58.0, 1000, "within"),
        ((60.0, 58.0, 62.0), 62.004, 1000, "within"),
        ((60.0, 58.0, 62.0), 57.98, 1000, "differs"),
        ((60.0, 58.0, 62.0), 99.0, 29, "too few images"),
        ((100.0, 100.0, 100.0), 98.6, 200, "within"),
        ((100.0, 100.0, 100.0), 98.4, 200, "differs"),
        ((0.0, 0.0, 0.0), 1.4, 200, "within"),
    ],
)
def test_a_verdict_is_whether_the_interval_holds_the_papers_number(
    estimate: tuple[float, float, float], paper: float, images: int, word: str
) -> None:
    found = verdict(estimate, paper, images)
    low, high = found["interval"]
    assert found["verdict"] == word
    assert 0 <= low <= estimate[0] <= high <= 100


def test_a_model_is_compared_with_the_papers_model_of_its_shape() -> None:
    expected = {"ViT-B-16": ["cross-dataset", "ood"], "ViT-L-14": ["cross-dataset-l14"]}
    expected |= {"ViT-B-16-SigLIP": ["siglip"], "ViT-B-16-SigLIP2": ["siglip2"]}
    for name, tables in expected.items():
        model = compared_with(SHAPES[name], "")
        assert (model.paper, model.gaps, [table.name for table in model.tables]) == (name, (), tables)
    tiny = load("tiny")
    other = compared_with((tiny.vision.shape, tiny.text.shape), tiny.fingerprint())
    assert other.paper == "ViT-B-16" and {"patch 8 (16)", "image size 64 (224)"} <= set(other.gaps)
    wide = compared_with(SHAPES["ViT-L-14-336"], "")
    assert (wide.paper, wide.gaps) == ("ViT-L-14", ("image size 336 (224)",))
    assert compared_with(SHAPES["PE-Core-B-16"], "").gaps


def test_the_hosts_two_ways_to_write_siglip_are_the_papers_model() -> None:
    open_clip = pytest.importorskip("open_clip")
    from lessmore.models.load import inspected

    for name in ("ViT-B-16-SigLIP", "ViT-B-16-SigLIP2", "ViT-B-16-quickgelu"):
        towers = inspected(open_clip, open_clip.get_model_config(name))
        assert compared_with((towers.vision.shape, towers.text.shape), "").gaps == ()
    towers = inspected(open_clip, open_clip.get_model_config("ViT-B-16"))
    assert compared_with((towers.vision.shape, towers.text.shape), "").gaps == ("activation gelu (quick_gelu)",)


def test_every_headline_cell_stands_beside_the_papers(made: Path) -> None:
    value = value_of(made)
    part = value["parts"][0]
    assert tuple(row["name"] for row in part["rows"]) == ROWS
    for row in part["rows"]:
        (cell,) = row["cells"]
        inside = cell["interval"][0] <= cell["paper"] <= cell["interval"][1]
        assert cell["verdict"] == ("within" if inside else "differs")
    page = (made / "verify.md").read_text()
    first = part["rows"][0]["cells"][0]
    assert f"| {first['accuracy'][0]:.2f} |" in page and f"{first['accuracy'][0] - 50.42:+.2f} |" in page
    words = [row["cells"][0]["verdict"] for row in part["rows"]]
    assert f"in {words.count('within')} of 7 cells, beyond it in {words.count('differs')}." in page


def test_the_page_says_first_what_it_is_not(made: Path) -> None:
    page = (made / "verify.md").read_text()
    assert "NOT THE PAPER'S MODEL: the architecture differs from CLIP ViT-B/16" in page
    assert "image size 64 (224)" in page and "NOT THE PAPER'S IMAGES" in page and "PARTIAL" not in page
    assert page.index("NOT THE PAPER'S MODEL") < page.index("| method |")
    assert (made / "verify.html").read_text().count('class="lead"') == 3


def test_the_page_has_its_provenance_and_no_path(made: Path, data: Path) -> None:
    value = value_of(made)
    assert value["weights"] == load("tiny").fingerprint()
    assert value["parts"][0]["provenance"]["weights"] == value["weights"]
    facts = value["data"]["eurosat"]
    assert (facts["used"], facts["images"], facts["published"]) == (IMAGES, IMAGES, 8100)
    page = (made / "verify.md").read_text()
    for told in (value["weights"], facts["fingerprint"][:16], facts["pixels"][:16], "| preset | fixed |", "torch"):
        assert told in page
    for name in PAGES:
        text = (made / name).read_text()
        assert str(data) not in text and str(made) not in text and str(Path.home()) not in text


def test_the_provenance_is_that_of_the_table_that_has_runs(made: Path) -> None:
    """The tables of ImageNet may be the only ones."""
    value = read_table(made)[0]
    page = FORMATS["markdown"][1]({**value, "parts": value["parts"][::-1]})
    assert "| runs | 7 |" in page and "| torch | " in page and "| device | cpu |" in page


def test_runs_that_fail_are_listed_and_nothing_is_compared(data: Path, tmp_path: Path) -> None:
    assert verify(data, tmp_path, "--rows", "CLIP", "--templates", "no place for a name") == 3
    page = (tmp_path / "verify.md").read_text()
    assert "No cell could be compared" in page and "Failed: eurosat tiny" in page and "unknown template set" in page


def test_a_reason_does_not_say_where_data_and_model_lie(tmp_path: Path) -> None:
    asked = ReproductionRequest(str(tmp_path / "my-model"), common={"root": str(tmp_path / "data")})
    said = _without_places(f"{tmp_path}/my-model: there is no file {tmp_path}/data/a.png", asked)
    assert said == "my-model: there is no file DATA/a.png"


def test_sets_that_are_not_there_are_listed_with_what_is_needed(made: Path) -> None:
    value = value_of(made)
    assert len(value["missing"]) == 14 and "eurosat" not in value["missing"]
    page = (made / "verify.md").read_text()
    assert "Not there, food101: 30,300 images in food-101/images and the list split\\_zhou\\_Food101.json" in page
    assert "Not there, imagenet: 50,000 images in imagenet/images/val below --root; get ILSVRC2012" in page


def test_a_command_that_was_killed_and_continued_gives_the_same_bytes(
    made: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(made / "runs", tmp_path / "runs")
    for left in sorted(tmp_path.glob("runs/*_tca_*")):  # five runs are done, two are to come
        shutil.rmtree(left)
    append, seen = Store.append, [0]

    def cut(self: Store, *row: Any) -> None:
        seen[0] += 1
        if seen[0] == 7:
            raise KeyboardInterrupt
        append(self, *row)

    monkeypatch.setattr(Store, "append", cut)
    assert verify(data, tmp_path) == 130
    assert "run the same command to go on" in capsys.readouterr().err
    assert not (tmp_path / "verify.html").exists() and len(list(tmp_path.glob("runs/*/summary.json"))) == 5
    assert len(list(tmp_path.glob("runs/*_tca_*"))) == 1
    monkeypatch.setattr(Store, "append", append)
    assert verify(data, tmp_path) == 0
    for name in PAGES:
        assert (tmp_path / name).read_bytes() == (made / name).read_bytes(), name


def test_runs_that_came_from_elsewhere_are_collected(made: Path, data: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "runs", tmp_path / "runs")
    assert verify(data, tmp_path, "--collect") == 0
    assert (tmp_path / "verify.html").read_bytes() == (made / "verify.html").read_bytes()


def test_a_limit_makes_the_page_partial(made: Path, data: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "runs", tmp_path / "runs")
    assert verify(data, tmp_path, "--limit", "6", "--rows", "CLIP") == 0
    page = (tmp_path / "verify.md").read_text()
    assert "PARTIAL: only --limit 6 of every data set." in page and "too few images, partial" in page
    assert "in 0 of 0 cells" in page and '--rows "CLIP" --limit 6' in page.replace("\\", "")


def test_every_format_follows_from_the_json(made: Path, tmp_path: Path) -> None:
    assert main(["reproduce", "--from", str(made), "--output", str(tmp_path)]) == 0
    for name in PAGES:
        assert (tmp_path / name).read_bytes() == (made / name).read_bytes()
    rows = list(csv.DictReader(io.StringIO((made / "verify.csv").read_text())))
    assert [row["verdict"] for row in rows] == [
        row["cells"][0]["verdict"] for row in read_table(made)[0]["parts"][0]["rows"]
    ]


def test_a_dry_run_gives_the_plan_and_the_time(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lessmore.paper.dryrun.measure_rates", lambda tower, threads: Throughput(1e-3, 1e-3, 10.0))
    assert verify(data, tmp_path, "--dry-run") == 0
    said = capsys.readouterr().out
    assert "7 of them have their data" in said and "about" in said and not list(tmp_path.iterdir())
    assert main(["reproduce", "verify", "--dry-run", "--seeds", "0"]) == 0
    said = capsys.readouterr().out
    assert "cross-dataset: " in said and "ood: " in said and "0 of them have their data" in said


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--corruption", "fog:3"], "verify runs the paper's own streams"),
        (["--dataset", "tiny_imagenet"], "the paper has no headline cell on tiny_imagenet"),
        (["--dataset", "dtd"], "dtd needs split_zhou_DescribableTextures.json"),
        (["--rows", "TCA R=9"], "did you mean"),
    ],
)
def test_what_the_paper_has_no_number_for_is_refused(
    more: list[str], message: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(data, tmp_path, *more) == 1
    assert message in capsys.readouterr().err


def test_verify_stands_alone_and_is_listed(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "verify", "beta", "--model", "tiny", "--root", str(data)]) == 1
    assert "verify makes one page of its own" in capsys.readouterr().err
    assert main(["reproduce", "verify", "--model", "tiny", "--root", str(tmp_path)]) == 1
    assert "none of the paper's data sets is there" in capsys.readouterr().err
    assert main(["reproduce", "--list"]) == 0
    assert "verify\tpage: " in capsys.readouterr().out


def test_data_sets_that_are_named_narrow_the_tables() -> None:
    model = compared_with(SHAPES["ViT-B-16"], "")
    (table,) = tables_to_verify(model, ReproductionRequest("x", datasets=("eurosat", "dtd")))
    assert (table.name, table.datasets) == ("cross-dataset", ("dtd", "eurosat"))


@pytest.mark.soak
def test_a_real_model_that_is_not_the_papers_differs(shared: Path, tmp_path: Path) -> None:
    where = ("--model", str(shared / "models" / "photo-s8"), "--root", str(shared / "data"), "--output", str(tmp_path))
    more = ("--dataset", "eurosat", "caltech101", "--rows", "CLIP", "--seeds", "0", "--limit", "60", "--quiet")
    assert main(["reproduce", "verify", *where, *more]) == 0
    page = (tmp_path / "verify.md").read_text()
    assert "PARTIAL" in page and "NOT THE PAPER'S MODEL" in page and "**differs, partial**" in page
    assert str(shared) not in page
