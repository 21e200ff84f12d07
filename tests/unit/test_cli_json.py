"""`--json`: what every command prints is what docs/scripts.md says, and nothing else is on standard output."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from lessmore.cli import COMMANDS, find_command, main
from lessmore.lab.runner import run_one
from lessmore.lab.spec import RunSpec
from tests.small_runs import NAMES, draw_folder
from tests.synthetic_runs import write_run

PAGE = (Path(__file__).parents[2] / "docs" / "scripts.md").read_text(encoding="utf-8")
ROWS: dict[str, str] = dict(re.findall(r"^\| `([\w-]+)` \| [^|]+ \| ([^|]+) \|$", PAGE, re.MULTILINE))
MODEL = ["--model", "tiny", "--classes", ",".join(NAMES)]


def documented(command: str) -> list[str]:
    return re.findall(r"`(\w+)`", ROWS[command])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve images, a finished run on them, and a grid."""
    folder = tmp_path_factory.mktemp("json")
    draw_folder(folder / "photos", 12)
    spec = {"model": "tiny", "dataset": f"folder:{folder / 'photos'}", "method": "zeroshot"}
    run_one(RunSpec(**spec), folder / "runs", quiet=True, cache=False)
    for side, method in (("first", "tca"), ("second", "zeroshot")):
        write_run(folder / side, 20, 3, method=method)
    grid = {"model": ["tiny"], "dataset": [f"folder:{folder / 'photos'}"], "method": ["tca", "zeroshot"]}
    (folder / "grid.yaml").write_text(json.dumps({"grid": grid}))
    return folder


def printed(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> Any:
    """What a command printed, read as JSON; several lines as a list."""
    capsys.readouterr()
    assert main([*map(str, words), "--json"]) == code
    out = capsys.readouterr().out
    assert out.isascii()
    try:
        return json.loads(out)
    except json.JSONDecodeError:
        return [json.loads(line) for line in out.splitlines()]


def test_every_command_has_it_or_says_why_not() -> None:
    own = {name for name in COMMANDS if "--json" in find_command(name).parser().format_help()}
    without = set(re.findall(r"`([\w-]+)[ `]", PAGE.partition("Without `--json` in this sense:")[2]))
    assert own == set(ROWS) | {"demo"} and without & set(COMMANDS) == set(COMMANDS) - set(ROWS)


def test_answers(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = printed(capsys, "classify", place / "photos", *MODEL, "--quiet")
    assert len(rows) == 12 and all(list(row) == documented("classify") for row in rows)
    image = next((place / "photos").rglob("*.png"))
    strip = printed(capsys, "vis", image, *MODEL, "-o", place / "strip.png")
    assert list(strip) == documented("vis") and strip["label"] in NAMES and Image.open(strip["file"]).width
    assert main(["classify", str(image), *MODEL, "--json", "--output", str(place / "out.csv")]) == 1
    assert "end its name in .jsonl instead" in capsys.readouterr().err


def test_rows_of_watch(capsys: pytest.CaptureFixture[str]) -> None:
    rows = pytest.importorskip("lessmore.cli.watch_rows")
    sink = rows.RowSink("-", as_json=True)
    sink.put(rows.CameraAnswer("door", 1, "now", 0, None, None), None)
    assert list(json.loads(capsys.readouterr().out)) == documented("watch")


def test_costs_and_lists(capsys: pytest.CaptureFixture[str]) -> None:
    costs = printed(capsys, "flops", "ViT-B-16", "--R", "0.7")
    assert [*costs, *costs["paper"]] == documented("flops") and costs["matmul"].keys() == costs["paper"].keys()
    assert costs["matmul"]["pass_gmacs"] < costs["plain_gmacs"]
    assert "zeroshot" in printed(capsys, "ls", "methods")


def test_runs(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--dataset", f"folder:{place / 'photos'}", "--method", "zeroshot", "--no-cache", "--quiet"]
    summary = printed(capsys, "run", "--model", "tiny", *asked, "--output", place / "runs")
    assert set(documented("run")) <= set(summary)
    built = printed(capsys, "build", place / "runs")
    assert list(built) == documented("build") and built["runs"][0]["key"] == summary["key"]
    page = printed(capsys, "report", place / "runs", "--no-pictures", "--tables", place / "tables", "--quiet",
                   "-o", place / "r.html")  # fmt: skip
    assert list(page) == documented("report") and page["runs"] == [summary["key"]]
    assert page["files"] and all(Path(file).is_file() for file in page["files"])
    pairs = printed(capsys, "compare", place / "first", place / "second")
    assert ["pairs", *pairs["pairs"][0], "without_partner"] == documented("compare")
    planned = printed(capsys, "sweep", place / "grid.yaml", "--dry-run")
    assert [spec["method"] for spec in planned] == ["tca", "zeroshot"]
    sets = printed(capsys, "validate", f"folder:{place / 'photos'}", "--quiet", code=1)
    assert list(sets[0]) == documented("validate") and not sets[0]["ready"], "two classes have no images"
