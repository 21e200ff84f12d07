"""The command line's own words: options, devices, class lists, suggestions, and what help costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lessmore.cli import COMMANDS, find_command, main, parse
from lessmore.cli.common import make_adapter, read_classes
from lessmore.cli.options import spread_options
from lessmore.errors import ConfigError
from lessmore.models.devices import choose_device

BASE = ["--classes", "fox,owl", "--model", "tiny"]
LIGHT = [[], ["classify"], ["vis"], ["export"], ["validate"]]


@pytest.mark.parametrize("command", LIGHT, ids=lambda command: " ".join(command) or "lessmore")
def test_help_does_not_import_torch(command: list[str]) -> None:
    code = f"""
import sys
from lessmore.cli import main
try:
    main({[*command, "--help"]!r})
except SystemExit:
    print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("False\n")


def test_every_command_has_a_module_and_a_line_of_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for name in COMMANDS:
        first = str(find_command(name).__doc__).partition("\n")[0]
        assert f"{name} {first}" in shown


def test_an_unknown_command_is_wrong_usage_with_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["clasify", "photos"])
    assert end.value.code == 2
    assert "unknown command 'clasify'; did you mean classify?" in capsys.readouterr().err


def options(*words: str) -> dict[str, object]:
    given: dict[str, object] = parse(["classify", "a.png", *BASE, *words])["classify"].options
    return given


def test_options_as_pairs_as_a_file_and_in_the_long_form(tmp_path: Path) -> None:
    file = tmp_path / "o.yaml"
    file.write_text("lam: 2.5  # weight\nlayers: [1, 2]\nstrategy: fifo\n")
    assert options() == {}
    assert options("--options", "lam=-2", "K=3", "context=a=b.safetensors") == {
        "lam": -2,
        "K": 3,
        "context": "a=b.safetensors",
    }
    assert options("--options.lam", "2") == {"lam": 2}
    assert options("--options", str(file), "K=1") == {"lam": 2.5, "layers": [1, 2], "strategy": "fifo", "K": 1}
    assert options("--options", "exclude_own=true", "--R", "0.8") == {"exclude_own": True}


def test_words_after_the_options_stay_where_they_are() -> None:
    words = ["classify", "--options", "lam=2", "photos", "--quiet"]
    assert spread_options(words) == ["classify", "--options.lam=2", "photos", "--quiet"]
    assert spread_options(["run", "--options", "photos"]) == ["run", "--options", "photos"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("- lam", "does not hold options"),
        ("lam: [", "line 2"),
        ("lam: 1\nlam: 2", "appears twice"),
        ("1: 2", "such as"),
    ],
)
def test_bad_files_of_options(content: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "o.yaml"
    file.write_text(content)
    assert main(["classify", "a.png", *BASE, "--options", str(file)]) == 1
    assert expected in capsys.readouterr().err


def test_options_reach_method_and_preset() -> None:
    args = parse(["classify", "a.png", *BASE, "--options", "lam=2", "--engine", "eager", "--R", "0.8"])["classify"]
    adapter = make_adapter(args)
    assert adapter.preset.adaptation.lam == 2
    assert adapter.preset.condensation.R == 0.8
    assert adapter.engine == "eager"


def test_the_export_takes_options_too() -> None:
    args = parse(["export", *BASE, "-o", "x.pt2", "--options", "M=2"])["export"]
    assert make_adapter(args).preset.adaptation.M == 2


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--method", "coop"], "context"),
        (["--method", "coop", "--options", "context=none.safetensors"], "none.safetensors"),
        (["--options", "lan=2"], "did you mean lam"),
        (["--options", "R=0.5"], "use --R"),
        (["--options", "tokenizer=x"], "cannot set tokenizer"),
        (["--engine", "eagre"], "did you mean eager"),
        (["--device", "cudda"], "take auto or cpu"),
        (["--device", "cuda:77"], "take auto or cpu"),
    ],
)
def test_wrong_options_are_one_line(
    words: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    assert main(["classify", str(tmp_path / "a.png"), *BASE, *words]) == 1
    err = capsys.readouterr().err
    assert expected in err
    assert len(err.splitlines()) == 1


def test_devices_by_name() -> None:
    assert choose_device("cpu") == torch.device("cpu")
    assert choose_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(ConfigError, match="auto or cpu"):
        choose_device("nonsense")


def test_a_command_that_computes_leaves_no_more_threads_than_cores(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[int] = []
    monkeypatch.setattr("lessmore.engines.cores.limit_threads", lambda: asked.append(1))
    assert main(["classify", "nowhere", *BASE]) == 1
    assert main(["ls", "presets"]) == 0
    assert asked == [1]
    capsys.readouterr()


def test_class_lists(tmp_path: Path) -> None:
    file = tmp_path / "cats.txt"
    file.write_text("\ufeff# my cats\ntabby cat\n\n  Siamese \n", encoding="utf-8")
    assert read_classes(str(file)) == ["tabby cat", "Siamese"]
    assert read_classes("cat") == ["cat"]
    assert read_classes("St. Bernard") == ["St. Bernard"]
    forty = [f"a class with quite a long name, number {i}".replace(",", "") for i in range(40)]
    assert read_classes(",".join(forty)) == forty
    assert read_classes("x" * 5000) == ["x" * 5000]


@pytest.mark.parametrize("text", ["cats.txt", "./cats", "/nowhere/cats"])
def test_a_class_file_that_is_missing_is_said(text: str) -> None:
    with pytest.raises(ConfigError, match="there is no file"):
        read_classes(text)
