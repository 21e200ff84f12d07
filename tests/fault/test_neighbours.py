"""Other processes, other users and a full disk: every command that writes locks, and follows nobody's links."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torchmetrics")
pytest.importorskip("scipy")

import lessmore
from lessmore.cli import main
from lessmore.errors import StateError
from lessmore.lab.job import prepare_job
from lessmore.lab.runner import run_one
from lessmore.lab.spec import RunSpec
from lessmore.storage.files import alone, open_plain, replacing
from tests.fault.test_kill import start, wait_for
from tests.small_runs import NAMES, draw_folder, only_run

CLASSES = ",".join(NAMES)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs and a finished run."""
    folder = tmp_path_factory.mktemp("neighbours")
    draw_folder(folder / "photos", 8)
    run_one(spec(folder), folder / "runs", quiet=True, cache=folder / "cache")
    return folder


def spec(folder: Path) -> RunSpec:
    return RunSpec("tiny", f"folder:{folder / 'photos'}", device="cpu")


def commands(place: Path, out: Path) -> dict[str, list[str]]:
    """Every command that writes a file, and how."""
    model = ["--model", "tiny", "--classes", CLASSES]
    photo = str(next((place / "photos").rglob("*.png")))
    return {
        "out.csv": ["classify", str(place / "photos"), *model, "--output", str(out / "out.csv"), "--quiet"],
        "out.jsonl": ["classify", str(place / "photos"), *model, "--output", str(out / "out.jsonl"), "--quiet"],
        "table.md": ["build", str(place / "runs"), "--output", str(out / "table.md")],
        "page.html": ["report", str(place / "runs"), "--no-pictures", "--quiet", "-o", str(out / "page.html")],
        "strip.png": ["vis", photo, *model, "-o", str(out / "strip.png")],
        "step.pt2": ["export", *model, "-o", str(out / "step.pt2")],
        "demo.html": ["demo", "--images", "10", "--workers", "1", "--quiet", "--output", str(out / "demo.html")],
        "context.safetensors": [
            *("train-prompt", "--model", "tiny", "--dataset", f"folder:{place / 'photos'}", "--quiet"),
            *("--shots", "1", "--epochs", "1", "--crops", "false", "--output", str(out / "context.safetensors")),
        ],
    }


HOLD = """
import pathlib, sys
from lessmore.storage.files import alone
alone(pathlib.Path(sys.argv[1])).__enter__()
"""
OUTPUTS = ("out.csv", "out.jsonl", "table.md", "page.html", "strip.png")
SLOW_OUTPUTS = ("step.pt2", "demo.html", "context.safetensors")


@pytest.mark.parametrize("name", [*OUTPUTS, *SLOW_OUTPUTS])
def test_what_another_process_is_writing_is_left_alone(
    name: str, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = commands(place, tmp_path)[name]
    with alone(tmp_path / name):
        assert main(command) == 1
    assert f"another process is writing {tmp_path / name}" in capsys.readouterr().err
    assert list(tmp_path.glob("[!.]*")) in ([], [tmp_path / "cache"])


@pytest.mark.parametrize("name", OUTPUTS)
def test_no_lock_and_no_half_file_stays(name: str, place: Path, tmp_path: Path) -> None:
    assert main(commands(place, tmp_path)[name]) == 0
    assert {path.name for path in tmp_path.iterdir()} - {"cache"} == {name}


def test_two_that_classify_into_one_file(place: Path, tmp_path: Path) -> None:
    """For real: the second one is refused while the first one works, and every image stands once."""
    out = tmp_path / "out.csv"
    words = ["classify", place / "photos", "--model", "tiny", "--classes", CLASSES, "--output", out]
    first = start("-m", "lessmore", *words, "--state", tmp_path / "state.safetensors")
    wait_for(lambda: (tmp_path / ".out.csv.lock").exists() or first.poll() is not None, "the lock")
    second = start("-m", "lessmore", *words, "--state", tmp_path / "state.safetensors")
    _, told = second.communicate()
    _, error = first.communicate()
    assert first.returncode == 0, error
    rows = out.read_text().splitlines()[1:]
    assert len(rows) == len({row.split(",")[0] for row in rows}) == 8
    assert second.returncode == 0 or "another process is writing" in told


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_link_in_the_place_of_an_output_is_not_followed(name: str, place: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / name).symlink_to(victim)
    main(commands(place, tmp_path)[name])
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("name", ["samples.jsonl", "timings.jsonl", "summary.json", "spec.json", ".lock"])
@pytest.mark.parametrize("hard", [False, True])
def test_links_in_a_run(name: str, hard: bool, place: Path, tmp_path: Path) -> None:
    victim, vlm = tmp_path / "victim", lessmore.load("tiny")
    victim.write_text("precious")
    folder = tmp_path / "out" / prepare_job(spec(place), vlm).name
    folder.mkdir(parents=True)
    (os.link if hard else os.symlink)(victim, folder / name)
    with contextlib.suppress(StateError):
        run_one(spec(place), tmp_path / "out", quiet=True, cache=place / "cache", vlm=vlm)
    assert victim.read_text() == "precious"


def test_a_link_in_the_place_of_a_run(place: Path, tmp_path: Path) -> None:
    vlm, victim = lessmore.load("tiny"), tmp_path / "victim"
    victim.mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / prepare_job(spec(place), vlm).name).symlink_to(victim)
    with pytest.raises(StateError, match="is a link; remove it"):
        run_one(spec(place), tmp_path / "out", quiet=True, cache=place / "cache", vlm=vlm)
    assert not list(victim.iterdir())


@pytest.mark.parametrize("kind", ["pipe", "folder", "link", "loop"])
def test_what_is_no_plain_file_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    path = tmp_path / kind
    (tmp_path / "file").write_text("x")
    make = {"pipe": os.mkfifo, "folder": os.mkdir, "loop": lambda p: p.symlink_to(p)}
    make.get(kind, lambda p: p.symlink_to(tmp_path / "file"))(path)
    for flags in (os.O_RDONLY, os.O_RDWR | os.O_CREAT | os.O_APPEND):
        with pytest.raises(StateError, match="is a link or no ordinary file"):
            open_plain(path, flags)


def test_a_lock_is_held_by_one_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with alone(path):
        with pytest.raises(StateError, match="another process"), alone(path):
            pass
        done = start("-c", HOLD, path)
        assert "another process is writing" in done.communicate()[1] and done.returncode == 1
    assert list(tmp_path.iterdir()) == []
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / ".file.lock").symlink_to(victim)
    with pytest.raises(OSError), alone(path):  # noqa: PT011
        pass
    assert victim.read_text() == "precious"


def test_caches_in_a_folder_that_everybody_may_write(place: Path, tmp_path: Path) -> None:
    """Our own folders inside are closed to others, and one that is not is not used."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    vlm = lessmore.load("tiny")
    expected = vlm.classifier(NAMES, cache=shared)
    (folder,) = shared.iterdir()
    assert folder.stat().st_mode & 0o077 == 0
    folder.chmod(0o777)
    with pytest.warns(UserWarning, match="others can write to"):
        assert (vlm.classifier(NAMES, cache=shared) == expected).all()
    shutil.rmtree(folder)
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.warns(UserWarning, match="is a link"):
        vlm.classifier(NAMES, cache=shared)
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.fixture
def no_superuser() -> Iterator[None]:
    """Permissions count, also where the tests run as root."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    yield
    os.seteuid(before)


def test_a_home_that_cannot_be_written(no_superuser: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LESSMORE_CACHE")
    monkeypatch.setenv("HOME", "/proc")
    with pytest.warns(UserWarning, match="are not cached .* set LESSMORE_CACHE"):
        assert lessmore.adapt("tiny", NAMES).health().seen == 0


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 kB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no small disk can be mounted here")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("name", ["out.csv", "page.html", "strip.png", "step.pt2", "table.md"])
def test_a_full_disk_is_one_sentence_and_leaves_nothing_half(
    name: str, place: Path, full: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (full / "ballast").write_bytes(bytes(os.statvfs(full).f_bavail * os.statvfs(full).f_frsize))
    assert main(commands(place, full)[name]) == 1
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1 and "Traceback" not in error
    assert [path for path in full.iterdir() if path.name not in ("ballast", "out.csv", ".out.csv.lock")] == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_device_that_is_always_full() -> None:
    words = ["-m", "lessmore", "ls", "models"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with open("/dev/full", "w") as device:
        done = subprocess.run(
            [sys.executable, *words], stdout=device, stderr=subprocess.PIPE, text=True, env=environment
        )
    assert done.returncode != 0 and "No space left" in done.stderr


def test_a_file_that_could_not_be_written_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fail() -> None:
        with replacing(path) as new:
            new.write_text("half")
            raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        fail()
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_run_of_somebody_else_is_found_out(place: Path, tmp_path: Path) -> None:
    """A finished run under another run's name: its summary is whole, but it is not that run's."""
    vlm = lessmore.load("tiny")
    other = RunSpec("tiny", spec(place).dataset, device="cpu", seed=3)
    shutil.copytree(only_run(place / "runs"), tmp_path / prepare_job(other, vlm).name)
    with pytest.raises(StateError, match="summary of another run"):
        run_one(other, tmp_path, quiet=True, cache=place / "cache", vlm=vlm)
