"""The command: what it writes and shows, how it ends, and how one that was killed goes on."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from lessmore.cameras.answer import CameraAnswer
from lessmore.cameras.reader import ReadingOptions
from lessmore.cameras.source import read_sources
from lessmore.cameras.watch import Watch, WatchOptions
from lessmore.cli import main
from lessmore.cli.common import own_classes
from lessmore.cli.watch_lines import WatchLines
from lessmore.cli.watch_rows import continue_rows
from tests.cameras.scenes import FLAGS, fresh, of_source, pictures, read_rows, write_video


def call(*words: object) -> int:
    return main(["watch", *map(str, words), *FLAGS])


def started(*words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "lessmore", "watch", *map(str, words), *FLAGS]
    given = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_rows(output: Path, count: int, process: subprocess.Popen[str]) -> None:
    for _ in range(2400):
        if output.exists() and output.read_bytes().count(b"\n") >= count:
            return
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.05)
    raise AssertionError(f"{output} never had {count} rows")


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_video(tmp_path_factory.mktemp("clip") / "clip.mp4", pictures(), repeat=16)


@pytest.fixture(scope="module")
def uploads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uploads")
    for i, image in enumerate(pictures(8, seed=3)):
        image.save(folder / f"{'=' if i == 3 else ''}{i}.png")
    (folder / "broken.png").write_bytes(b"no image")
    return folder


def test_rows_lines_and_the_end(uploads: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(uploads, "--once", "--output", tmp_path / "out.csv") == 3
    with open(tmp_path / "out.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["number"] for row in rows] == [str(i) for i in range(1, 10)]
    assert {row["file"] for row in rows} == {"'=3.png", "broken.png", *(f"{i}.png" for i in (0, 1, 2, 4, 5, 6, 7))}
    out, err = capsys.readouterr()
    assert f"{uploads.name}: 8 frames answered" in err and "1 failed" in err and len(err.strip().splitlines()) == 1
    assert "error: " in out and f"{uploads.name} is live" in out and "\x1b" not in out
    assert call(uploads, "--once", "--quiet", "--output", "-") == 3
    out, err = capsys.readouterr()
    assert len(list(csv.DictReader(io.StringIO(out)))) == 9 and err == ""


def test_killed_at_any_moment_and_resumed(clip: Path, uploads: Path, tmp_path: Path) -> None:
    whole, output = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    flags = ["--once", "--quiet", "--max-batch", "1"]
    assert call(clip, uploads, *flags, "--output", whole) == 3
    flags += ["--state", tmp_path / "state", "--save-every", "0.3", "--resume", "--output", output]
    for count in (7, 60):
        process = started(clip, uploads, *flags)
        wait_for_rows(output, count, process)
        process.kill()
        process.wait()
    assert call(clip, uploads, *flags) in (0, 3)
    for name in ("clip", uploads.name):
        assert of_source(read_rows(output), name) == of_source(read_rows(whole), name)


def test_ctrl_c_saves_and_says_how_to_go_on(clip: Path, tmp_path: Path) -> None:
    output, state = tmp_path / "out.jsonl", tmp_path / "state"
    process = started(clip, "--output", output, "--state", state)
    wait_for_rows(output, 5, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    answered = len(read_rows(output))
    assert f"clip: {answered} frames answered" in err and "Traceback" not in err
    assert answered < 192
    adapter = fresh(preset="camera")
    adapter.restore(state / "clip.safetensors")
    assert adapter.health().seen == answered
    assert call(clip, "--output", output, "--state", state, "--resume", "--quiet") == 0
    assert [row["frame"] for row in read_rows(output)] == list(range(1, 193))


@pytest.mark.parametrize(
    ("words", "preset"),
    [([], "camera"), (["--stream", "mixed"], "mixed"), (["--preset", "default"], "default")],
)
def test_preset_is_the_safe_one_unless_another_is_said(
    words: list[str], preset: str, uploads: Path, tmp_path: Path
) -> None:
    assert call(uploads, "--once", "--quiet", "--state", tmp_path, *words) == 3
    adapter = fresh(preset=preset)
    adapter.restore(tmp_path / f"{uploads.name}.safetensors")
    assert adapter.health().seen == 8


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing.mp4"], "there is no file or folder nothing.mp4"),
        (["CLIP", "--every", "-1"], "--every must be 0 or more"),
        (["CLIP", "--resume"], "--state"),
        (["CLIP", "--max-batch", "0"], "--max-batch"),
        (["987"], "there is no webcam 987 on this machine"),
        (["CLIP", "--save-every", "0"], "--save-every"),
        (["CLIP", "--output", "out.txt"], ".csv or .jsonl"),
        (["CLIP", "--hardware", "abacus"], "use none"),
        (["CLIP", "--when", "motion", "--track"], "exclude each other"),
        (["ftp://x/y"], "rtsp"),
    ],
)
def test_wrong_use_is_one_line(words: list[str], said: str, clip: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*(clip if word == "CLIP" else word for word in words)) == 1
    out, err = capsys.readouterr()
    assert said in err and len(err.strip().splitlines()) == 1 and out == ""


def test_a_source_alone_is_enough(uploads: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out.jsonl"
    assert main(["watch", str(uploads), "--once", "--output", str(output)]) == 3
    err = capsys.readouterr().err
    assert "looks for the shapes that it knows" in err.splitlines()[0] and "--model" in err.splitlines()[0]
    assert {row["label"] for row in read_rows(output)} - {None} <= set(own_classes("tiny"))
    for words, said in ((["--classes", "cat,dog"], "add --model"), (["--model", "open_clip:X/y"], "add --classes")):
        assert main(["watch", str(uploads), *words]) == 1
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert said in line


def test_rows_of_others_are_left_alone(uploads: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out.csv"
    output.write_text("path,label\na,b\n")
    before = output.read_bytes()
    assert call(uploads, "--once", "--quiet", "--output", output) == 1
    assert "not written by lessmore watch" in capsys.readouterr().err
    assert output.read_bytes() == before
    output.unlink()
    assert call(uploads, "--once", "--quiet", "--output", output) == 3
    assert call(uploads, "--once", "--quiet", "--output", output) == 1
    assert "has rows already" in capsys.readouterr().err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_one_line_for_each_source(clip: Path, uploads: Path) -> None:
    sinks: list[WatchLines] = []
    sources = read_sources([str(clip), str(uploads)])
    watch = Watch(fresh(), sources, WatchOptions(ReadingOptions(once=True)), sinks)
    terminal = Terminal()
    sinks.append(WatchLines(watch.streams, terminal))
    watch.run(lambda: watch.streams[0].kept.answers >= 20)
    shown = terminal.getvalue()
    assert "\x1b[2A" in shown
    last = shown.split("\x1b[2A")[-1].replace("\x1b[K", "").replace("\r", "").splitlines()
    assert [line.split(":")[0] for line in last] == ["clip", uploads.name]
    assert all(len(line) < 200 for line in last)


def test_states_and_rows_that_do_not_fit_are_said(
    clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    state.write_text("a file")
    assert call(clip, "--state", state) == 1
    assert "cannot be a folder" in capsys.readouterr().err


def test_rows_of_a_camera_stay_and_those_of_a_file_are_cut(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    answers = [CameraAnswer(name, n, "", n, None, None, "x", 0, 1.0) for n in range(1, 6) for name in ("clip", "cam")]
    output.write_text("".join(json.dumps(asdict(one)) + "\n" for one in answers) + '{"source": "clip", "numb')
    clip = write_video(tmp_path / "clip.mp4", pictures()[:2])
    watch = Watch(fresh(), read_sources([str(clip), "cam=rtsp://127.0.0.1:9/x"]), WatchOptions(), [])
    for stream in watch.streams:
        stream.kept.answers = 3
    continue_rows(output, watch.streams, resume=True)
    left = [(row["source"], row["number"]) for row in read_rows(output)]
    assert left == [(name, n) for n in range(1, 6) for name in ("clip", "cam") if name == "cam" or n <= 3]
    assert [stream.kept.answers for stream in watch.streams] == [3, 5]


def test_a_change_of_domain_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    lines = WatchLines([], sys.stdout)
    for number, changes in enumerate([0, 0, 1, 1], start=1):
        lines.put(CameraAnswer("cam", number, "", 1, None, None, "x", 0, 1.0, "x", False, domain_changes=changes), None)
    assert capsys.readouterr().out.splitlines() == [" cam: x 1.00", " cam: the domain has changed"]
