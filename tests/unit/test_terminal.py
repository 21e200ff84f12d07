"""Names of files and classes that would command a terminal or a spreadsheet, in what the commands print and write."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from lessmore.cli import main
from lessmore.cli.common import printable, say
from lessmore.cli.rows import AnswerRow, Output, read_answers

EVIL = "\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202egnp"
FORMULAS = ("=1+1", '=HYPERLINK("http://x.invalid")', "+1", "-1", "@SUM(1)", "\t=1", "'=1", "plain, name; x", 'a"b')
COMMAND = re.compile("[\x00-\x08\x0b-\x1f\x7f\x80-\x9f\u202a-\u202e\u2066-\u2069]")


def on_a_terminal(words: list[str]) -> str:
    """What a terminal gets from a command, both streams together; it ends lines with a carriage return itself."""
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "lessmore", *words], stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    told = b""
    try:
        while part := os.read(ours, 1 << 16):
            told += part
    except OSError:  # its end
        pass
    process.wait()
    os.close(ours)
    return told.decode("utf-8", "surrogateescape").replace("\r\n", "\n")


def test_no_name_commands_a_terminal(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    Image.new("RGB", (9, 9), "red").save(folder / f"{EVIL}.png")
    (folder / f"broken{EVIL}.png").write_bytes(b"no image")
    classes = ["--classes", f"red plain star{EVIL},blue plain ring", "--model", "tiny"]
    printed = [
        on_a_terminal(["classify", str(folder), *classes, "--quiet"]),
        on_a_terminal(["classify", str(folder / f"no{EVIL}.png"), *classes, "--quiet"]),
        on_a_terminal(["vis", str(folder / f"{EVIL}.png"), *classes, "-o", str(tmp_path / f"s{EVIL}.png")]),
        on_a_terminal(["validate", f"folder:{tmp_path}", "--quiet"]),
        on_a_terminal(["build", str(tmp_path / EVIL)]),
        on_a_terminal([f"no{EVIL}"]),
    ]
    for told in printed:
        assert COMMAND.search(told) is None, told
    assert "owned" in printed[0] and "owned" in printed[1]


def test_what_is_printed_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert printable("plain\ttext\nüñ 猫 😀") == "plain\ttext\nüñ 猫 😀"
    say(f"a{EVIL}b")
    say(f"a{EVIL}b", error=True)
    for told in capsys.readouterr():
        assert COMMAND.search(told) is None and told.startswith("a") and told.endswith("b\n")


def test_rows_of_classify_hold_no_formula_and_are_found_again(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    output = Output(str(path))
    for seen, name in enumerate(FORMULAS, 1):
        output.write(AnswerRow(f"{name}.png", label=name, zero_shot_label=name, seen=seen, refused=False))
    output.write(AnswerRow("=broken", seen=len(FORMULAS), error="@it is no image"))
    output.close()
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    assert not any(re.match(r"[=+@\t\r]|-", cell) for row in rows for cell in row)
    for delimiter in ";\t":
        for row in csv.reader(path.open(newline=""), delimiter=delimiter):
            assert not re.match(r"[=+@\t\r]", row[0])
    assert [row.path for row in read_answers(path)] == [*(f"{name}.png" for name in FORMULAS), "=broken"]
    assert [row.failed for row in read_answers(path)] == [False] * len(FORMULAS) + [True]


def test_a_file_of_that_name_is_classified_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (9, 9), "red").save("=1+1.png")
    words = ["classify", "=1+1.png", "--classes", "red plain star,=1+1", "--model", "tiny", "--quiet"]
    for _ in range(2):
        assert main([*words, "--output", "out.csv", "--state", "state.safetensors"]) == 0
    lines = Path("out.csv").read_text().splitlines()
    assert len(lines) == 2 and lines[1].startswith("'=1+1.png,")
