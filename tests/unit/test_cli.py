"""The command line: what is printed, what is written, how it ends, and how a run that was cut off goes on."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import lessmore
from lessmore import adapter as adapter_module
from lessmore.assets import MODELS, world
from lessmore.cli import COMMANDS, main, parse, rows
from lessmore.data.find import find_images
from lessmore.lab.report.tokens import as_picture

MODEL = "tiny"
NAMES = world.world_class_names(world.test_classes(8))
CLASSES = ",".join(NAMES)
BASE = ["--classes", CLASSES, "--model", MODEL]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 images in a folder and in one below it, and something that is no image."""
    folder = tmp_path_factory.mktemp("photos")
    (folder / "more").mkdir()
    images, _ = world.draw_scene(world.world_sample(24, 7, world.test_classes(8)))
    for i, image in enumerate(images):
        as_picture(image).save(folder / f"{i:02}.png" if i < 20 else folder / "more" / f"{i}.PNG")
    (folder / "notes.txt").write_text("not an image")
    return folder


def call(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The error: exactly one line on stderr, nothing on stdout."""
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.strip().splitlines()) == 1, err
    return err


def read_csv(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8", errors="surrogateescape") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_help_has_examples_that_parse(command: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        call(*([command] if command else []), "--help")
    assert end.value.code == 0
    shown = capsys.readouterr().out
    examples = [line for line in shown.splitlines() if line.startswith("  lessmore ")]
    assert len(examples) >= 3, shown
    for example in examples:
        words = shlex.split(re.split(r"[|>]", example)[0])[1:]
        if "--help" not in words:
            assert parse(words).subcommand == words[0]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["ls", "nonsense"],
        ["classify", "a.png"],
        ["vis", "a.png", *BASE, "--R", "much"],
        ["demo", "x"],
    ],
)
def test_wrong_usage_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["classify", "nowhere", *BASE], "no file or folder nowhere"),
        (["classify", "{empty}", *BASE], "no images in"),
        (["classify", "{photos}", "--classes", "cats.txt", "--model", MODEL], "one name per line"),
        (["classify", "{photos}", "--classes", "{photos}/00.png", "--model", MODEL], "not UTF-8"),
        (["classify", "{photos}", "--classes", "{photos}", "--model", MODEL], "one name per line"),
        (["classify", "{photos}", "--classes", "{empty_file}", "--model", MODEL], "is empty"),
        (["classify", "{photos}", "--classes", "a,b,a", "--model", MODEL], "more than once"),
        (["classify", "{photos}", "--classes", CLASSES, "--model", "tinny"], "tinny"),
        (["classify", "{photos}", *BASE, "--preset", "defualt"], "did you mean default"),
        (["classify", "{photos}", *BASE, "--method", "tcx"], "did you mean tca"),
        (["classify", "{photos}", *BASE, "--reducer", "evut"], "did you mean evit"),
        (["classify", "{photos}", *BASE, "--templates", "foto"], "photo"),
        (["classify", "{photos}", *BASE, "--R", "1.5"], "R must lie in"),
        (["classify", "{photos}", *BASE, "--R", "0.01"], "choose a larger R"),
        (["classify", "{photos}", *BASE, "--save-every", "0"], "1 or more"),
        (["classify", "{photos}", *BASE, "--output", "{empty}/no/out.csv"], "create it first"),
        (["classify", "{photos}", *BASE, "--output", "{empty}"], "does not end in"),
        (["classify", "{photos}", *BASE, "--output", "out.xlsx"], ".csv or .jsonl"),
        (["classify", "{photos}", *BASE, "--state", "state.bin"], ".safetensors"),
        (["classify", "{photos}", *BASE, "--state", "{damaged}"], "not a readable file of the form lessmore.state"),
        (["vis", "nowhere.png", *BASE, "-o", "{empty}/strip.png"], "no file nowhere.png"),
        (["vis", "{photos}/notes.txt", *BASE, "-o", "{empty}/strip.png"], "not a readable image"),
        (["vis", "{photos}/00.png", *BASE, "-o", "{empty}/strip.jpg"], ".png"),
        (
            ["vis", "{photos}/00.png", *BASE, "-o", "{empty}/s.png", "--state", "{empty}/x.safetensors"],
            "does not exist",
        ),
        (["flops", "ViT-Z"], "ViT-Z"),
        (["flops", "ViT-B-16", "--method", "tdaa"], "did you mean tda"),
        (["flops", "ViT-B-16", "--method", "zero", "--options.view", "8"], "did you mean views"),
        (["flops", "ViT-B-16", "--classes", "0"], "give 1 or more"),
        (["flops", "ViT-B-16", "--R", "0.9", "--options.R", "0.7"], "give it once"),
        (["demo", "--images", "0"], "1 or more"),
        (["demo", "--output", "{empty}/no/page.html"], "create it first"),
        (["demo", "--model", "nowhere", "--output", "{empty}/page.html"], "nowhere"),
    ],
)
def test_bad_input_is_one_line_with_a_remedy_and_ends_with_1(
    arguments: list[str], expected: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "none.txt").write_text("\n \n")
    (tmp_path / "damaged.safetensors").write_bytes(b"\xff" * 40)
    places = {"photos": photos, "empty": tmp_path / "empty", "empty_file": tmp_path / "none.txt"}
    places["damaged"] = tmp_path / "damaged.safetensors"
    assert main([argument.format(**places) for argument in arguments]) == 1
    assert expected in one_line(capsys)
    assert list((tmp_path / "empty").iterdir()) == []


def test_a_folder_that_may_not_be_written(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root, which may run this, may write everywhere
    assert call("classify", photos, *BASE, "--output", tmp_path / "out.csv") == 1
    assert "may write" in one_line(capsys)


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_rows_are_the_adapters_answers(ending: str, photos: Path, tmp_path: Path) -> None:
    output = tmp_path / f"out.{ending}"
    assert call("classify", photos, *BASE, "--output", output, "--R", "0.8", "--quiet") == 0
    text = output.read_text()
    written = read_csv(output) if ending == "csv" else [json.loads(line) for line in text.splitlines()]
    assert [Path(row["path"]).name for row in written] == sorted(p.name for p in photos.rglob("*.[pP][nN][gG]"))
    adapter = lessmore.adapt(MODEL, NAMES, R=0.8)
    for i, row in enumerate(written):
        expected = adapter(row["path"])
        assert row["label"] == expected.label
        assert int(row["index"]) == expected.index
        assert float(row["score"]) == pytest.approx(float(expected.scores.max()), abs=1e-4)
        assert row["zero_shot_label"] == adapter.classes[int(expected.zero_shot_scores.argmax())]
        assert row["changed"] == (str(expected.changed).lower() if ending == "csv" else expected.changed)
        assert float(row["entropy"]) == pytest.approx(expected.entropy, abs=1e-4)
        assert int(row["seen"]) == i + 1
        assert row["error"] == ("" if ending == "csv" else None)


def test_standard_output_and_summary(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("classify", photos / "more", photos / "more" / "20.PNG", *BASE) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == ",".join(rows.COLUMNS)
    assert len(out.splitlines()) == 1 + 4, "a file given twice is one input"
    assert "4 images classified" in err
    assert call("classify", photos / "more", *BASE, "--quiet") == 0
    assert capsys.readouterr().err == ""


def test_a_bad_image_is_a_row_and_the_run_ends_with_3(photos: Path, tmp_path: Path) -> None:
    bad, output = tmp_path / "bad.png", tmp_path / "out.csv"
    bad.write_bytes((photos / "00.png").read_bytes()[:500])
    inputs = [photos / "01.png", bad, photos / "notes.txt", photos / "02.png"]
    assert call("classify", *inputs, *BASE, "--output", output) == 3
    written = read_csv(output)
    assert [bool(row["error"]) for row in written] == [False, True, True, False]
    assert [row["seen"] for row in written] == ["1", "1", "1", "2"]
    assert "damaged" in written[1]["error"]
    assert written[1]["label"] == ""


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_odd_file_names_come_back(ending: str, photos: Path, tmp_path: Path) -> None:
    folder = tmp_path / "odd"
    folder.mkdir()
    for name in (b'a,"b".png', b"new\nline.png", b"r\rn.png", "чашка.png".encode(), b"not-utf8-\xff.png"):
        (folder / os.fsdecode(name)).write_bytes((photos / "00.png").read_bytes())
    output, state = tmp_path / f"out.{ending}", tmp_path / "s.safetensors"
    command = ["classify", folder, *BASE, "--output", output, "--state", state]
    assert call(*command) == 0
    assert sorted(row.path for row in rows.read_answers(output)) == find_images([str(folder)])
    size = output.stat().st_size
    assert call(*command) == 0
    assert output.stat().st_size == size, "every input was known by its name"


class Crash(Exception):
    """Stands for whatever ends a run without warning."""


def crash_after(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    real, done = adapter_module.Adapter.__call__, []

    def counted(self: Any, *args: Any, **options: Any) -> Any:
        if len(done) == count:
            raise Crash
        done.append(1)
        return real(self, *args, **options)

    monkeypatch.setattr(adapter_module.Adapter, "__call__", counted)


@pytest.mark.parametrize(("ending", "count"), [("csv", 0), ("jsonl", 3), ("jsonl", 5), ("csv", 13)])
def test_a_run_that_broke_off_gives_the_same_file(
    ending: str, count: int, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    whole, output, state = tmp_path / f"whole.{ending}", tmp_path / f"out.{ending}", tmp_path / "s.safetensors"
    command = ["classify", photos, broken, photos / "more", *BASE, "--quiet"]
    assert call(*command, "--output", whole) == 3
    command += ["--output", output, "--state", state, "--save-every", 5]
    with monkeypatch.context() as patch:
        crash_after(patch, count)
        with pytest.raises(Crash):
            call(*command)
    assert len(rows.read_answers(output)) == count, "rows are written as they come"
    assert call(*command) == 3
    assert output.read_text() == whole.read_text()
    assert call(*command) == 3, "a finished run that is repeated still knows what failed"
    assert output.read_text() == whole.read_text()


def test_a_row_that_was_cut_short_is_written_again(photos: Path, tmp_path: Path) -> None:
    output, state = tmp_path / "out.csv", tmp_path / "s.safetensors"
    command = ["classify", photos, *BASE, "--output", output, "--state", state, "--quiet"]
    assert call("classify", photos / "00.png", photos / "01.png", *BASE, *command[-5:]) == 0
    with open(output, "a") as file:
        file.write(f"{photos / '02.png'},red st")
    assert call(*command) == 0
    written = read_csv(output)
    assert [row["seen"] for row in written] == [str(i + 1) for i in range(24)]
    assert len({row["path"] for row in written}) == 24


def test_a_state_goes_over_to_a_new_stream(photos: Path, tmp_path: Path) -> None:
    state = tmp_path / "s.safetensors"
    tail = [*BASE, "--state", state, "--quiet", "--output"]
    assert call("classify", photos, *tail, tmp_path / "first.csv") == 0
    assert call("classify", photos / "more", *tail, tmp_path / "second.csv") == 0
    assert [row["seen"] for row in read_csv(tmp_path / "second.csv")] == ["25", "26", "27", "28"]
    adapter = lessmore.adapt(MODEL, NAMES)
    adapter.restore(state)
    assert adapter.health().seen == 28


def test_what_does_not_belong_together_is_left_alone(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, state, other = tmp_path / "out.csv", tmp_path / "s.safetensors", tmp_path / "other.csv"
    run = ["classify", photos, *BASE, "--quiet", "--output"]
    assert call(*run, output, "--state", state) == 0
    before = output.read_bytes()

    def refused(*arguments: object) -> str:
        assert call(*arguments) == 1
        assert output.read_bytes() == before
        return one_line(capsys)

    assert "has rows already" in refused(*run, output)
    assert "missing" in refused(*run, output, "--state", tmp_path / "none.safetensors")
    other.write_text("name,value\n1,2\n")
    assert "not written by lessmore" in refused(*run, other, "--state", state)
    assert call("classify", photos / "more", *BASE, "--state", state, "--output", tmp_path / "b.csv", "--quiet") == 0
    assert "not of the same run" in refused(*run, output, "--state", state), "the state has gone on without the output"
    fresh = tmp_path / "fresh.safetensors"
    lessmore.adapt(MODEL, NAMES).save(fresh)
    assert "not of the same run" in refused(*run, output, "--state", fresh, "--save-every", 5)
    assert "another class list" in refused("classify", photos, "--classes", "a,b", *run[4:], output, "--state", state)


SLOW = """
import sys, time
from lessmore.adapter import Adapter
from lessmore.cli import main
real = Adapter.__call__
Adapter.__call__ = lambda *args, **options: (time.sleep(0.05), real(*args, **options))[1]
sys.exit(main())
"""


def start_and_signal(command: list[object], output: Path, count: int, number: signal.Signals) -> tuple[int, str]:
    """Run the command in a process of its own, slowed down, and send the signal once `count` rows are there."""
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, *map(str, command)], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if output.exists() and output.read_bytes().count(b"\n") > count:
            process.send_signal(number)
            break
        time.sleep(0.01)
    _, err = process.communicate(timeout=60)
    return process.returncode, err


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_real_signal_and_going_on(number: signal.Signals, photos: Path, tmp_path: Path) -> None:
    whole, output, state = tmp_path / "whole.csv", tmp_path / "out.csv", tmp_path / "s.safetensors"
    assert call("classify", photos, *BASE, "--quiet", "--output", whole) == 0
    command: list[object] = ["classify", photos, *BASE, "--output", output, "--state", state, "--save-every", 5]
    code, err = start_and_signal(command, output, 7, number)
    found = len(rows.read_answers(output))
    assert 7 <= found < 24
    saved = lessmore.adapt(MODEL, NAMES)
    saved.restore(state)
    if number == signal.SIGINT:
        assert code == 130
        assert "run the same command to go on" in err
        assert "Traceback" not in err
        assert saved.health().seen == found
    else:
        assert code == -signal.SIGKILL
        assert saved.health().seen == found // 5 * 5
    assert call(*command) == 0
    for mine, theirs in zip(read_csv(output), read_csv(whole), strict=True):
        assert float(mine.pop("score")) == pytest.approx(float(theirs.pop("score")), abs=1e-4)
        assert float(mine.pop("entropy")) == pytest.approx(float(theirs.pop("entropy")), abs=1e-4)
        assert mine == theirs


def test_vis_writes_a_strip(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    strip, state = tmp_path / "strip.png", tmp_path / "s.safetensors"
    same = [*BASE, "--R", "0.8", "--state", state]
    assert call("classify", photos, *same, "--output", tmp_path / "o.csv", "--quiet") == 0
    before = state.read_bytes()
    assert call("vis", photos / "00.png", *same, "-o", strip) == 0
    name, answers = capsys.readouterr().out.rstrip("\n").split("\t")
    assert name == str(strip)
    assert answers.startswith("before: ")
    assert " → after: " in answers
    with Image.open(strip) as picture:
        assert picture.width == 6 * 192 + 7 * 8
        panels = np.asarray(picture.convert("RGB"))[8:200]
    assert (panels[:, 208:400] != panels[:, 8:200]).any()
    assert state.read_bytes() == before


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["flops", "ViT-B-16", "--R", "nan"], "--R must be a number, not 'nan'"),
        (["run", "--seed", "x"], "--seed must be a whole number, not 'x'"),
        (["run", "--limit", "[]"], "--limit must be a whole number or a number, not '[]'"),
    ],
)
def test_a_value_of_the_wrong_type_is_one_line(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(words)
    assert capsys.readouterr().err.splitlines()[-1] == f"error: {says}"


@pytest.mark.parametrize("what", ["models", "methods", "reducers", "presets"])
def test_ls(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("ls", what) == 0
    entries = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert all(len(entry) == 2 and entry[1] for entry in entries)
    names = [name for name, _ in entries]
    known = {
        "models": [*MODELS, *lessmore.list_models()],
        "methods": lessmore.list_methods(),
        "reducers": lessmore.list_reducers(),
        "presets": lessmore.list_presets(),
    }
    assert set(names) == set(known[what])
    assert what != "models" or names[: len(MODELS)] == list(MODELS)
    assert call("ls", what, "--json") == 0
    assert json.loads(capsys.readouterr().out) == dict(entries)
