"""A run that is cut off at any write, loses what was not yet on the disk, or finds the disk full, ends up the same."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchmetrics")
pytest.importorskip("scipy")

import lessmore
from lessmore.cli import main
from lessmore.errors import StateError
from lessmore.lab import journal
from lessmore.lab.job import prepare_job
from lessmore.lab.runner import run_one
from lessmore.lab.spec import RunSpec
from lessmore.lab.store import Store
from lessmore.storage import files, sealed
from tests.small_runs import draw_folder, only_run, results

IMAGES = 3
ALWAYS = 1e9
"""Share of the time for checkpoints that allows one after every sample."""


class Crash(BaseException):
    """The process ends here."""


class FaultyOS:
    """`os`, as our modules see it, except that the k-th write goes wrong; k = −1 only counts them."""

    def __init__(self, k: int, fault: Callable[[], BaseException]) -> None:
        self.k = k
        self.fault = fault
        self.writes = 0
        self.dead = False
        self.on_disk: dict[str, int] = {}
        """How much of a file would survive a loss of power; of files that are not here, all of it."""
        self._paths: dict[int, str] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def point(self, halfway: Callable[[], object] = lambda: None) -> None:
        self.writes += 1
        if self.writes == self.k + 1:
            halfway()
            error = self.fault()
            self.dead = isinstance(error, Crash)
            raise error

    def open(self, path: Any, flags: int, *mode: int) -> int:
        handle = os.open(path, flags, *mode)
        self._paths[handle] = os.fspath(path)
        if flags & os.O_APPEND:
            self.on_disk.setdefault(os.fspath(path), 0)
        return handle

    def write(self, handle: int, data: bytes) -> int:
        self.point(lambda: os.write(handle, data[: len(data) // 2]))
        return os.write(handle, data)

    def fsync(self, handle: int) -> None:
        self.point()
        os.fsync(handle)
        self.on_disk[self._paths[handle]] = os.fstat(handle).st_size

    def replace(self, old: Any, new: Any) -> None:
        self.point()
        os.replace(old, new)
        self.on_disk[os.fspath(new)] = self.on_disk.pop(os.fspath(old), 0)

    def unlink(self, path: Any) -> None:
        if not self.dead:  # a process that is no more does not tidy up
            os.unlink(path)

    def ftruncate(self, handle: int, size: int) -> None:
        self.point()
        os.ftruncate(handle, size)

    def save_file(self, tensors: Any, path: Any, metadata: Any) -> None:
        self.point(lambda: Path(path).write_bytes(b"half a file"))
        SAVE_FILE(tensors, path, metadata)

    def lose_power(self) -> None:
        """What was written and never synced is gone."""
        for path, size in self.on_disk.items():
            if Path(path).is_file():
                os.truncate(path, size)


SAVE_FILE = sealed.save_file


@contextmanager
def faults(k: int, fault: Callable[[], BaseException] = Crash) -> Iterator[FaultyOS]:
    faulty = FaultyOS(k, fault)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "os", faulty)
        patch.setattr(journal, "os", faulty)
        patch.setattr(sealed, "save_file", faulty.save_file)
        yield faulty


class Lab:
    """One small run, again and again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spec = RunSpec("tiny", f"folder:{draw_folder(folder / 'photos', IMAGES)}", device="cpu")
        self.vlm = lessmore.load("tiny")
        self.run("reference", checkpoints=0)
        self.reference = results(folder / "reference")

    def run(self, output: str, cache: str = "cache", **more: Any) -> Any:
        options = {"quiet": True, "checkpoints": ALWAYS, "cache": self.folder / cache, "vlm": self.vlm}
        return run_one(self.spec, self.folder / output, **{**options, **more})

    def stopped(self, output: str, after: int) -> Path:
        """A run that was asked to stop after some samples."""
        samples = iter(range(after - 1))
        assert self.run(output, checkpoints=0, stop=lambda: next(samples, None) is None) is None
        folder = only_run(self.folder / output)
        assert (folder / "samples.jsonl").read_bytes().count(b"\n") == after
        return folder


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("lab"))


def count(lab: Lab, output: str, cache: str = "cache") -> int:
    with faults(-1) as counted:
        lab.run(output, cache)
    return counted.writes


@pytest.mark.parametrize("power_lost", [False, True])
def test_a_crash_at_every_write(lab: Lab, power_lost: bool) -> None:
    writes = count(lab, f"count-{power_lost}")
    assert writes > 8 * IMAGES
    for k in range(writes):
        with faults(k) as faulty, pytest.raises(Crash):
            lab.run(f"{power_lost}-{k}")
        if power_lost:
            faulty.lose_power()
        lab.run(f"{power_lost}-{k}")
        assert results(lab.folder / f"{power_lost}-{k}") == lab.reference, k


def test_a_full_disk_at_every_write(lab: Lab) -> None:
    """One clear error, and what was there goes on being there."""
    for k in range(count(lab, "count-full")):
        output, full = f"full-{k}", OSError(errno.ENOSPC, "No space left on device")
        with faults(k, lambda full=full: full), pytest.raises(StateError, match="cannot write .*No space.*make room"):
            lab.run(output)
        lab.run(output)
        assert results(lab.folder / output) == lab.reference, k


def test_a_crash_while_the_cache_is_written(lab: Lab) -> None:
    """The first run of all: encodings and class embeddings are new as well."""
    with faults(-1) as counted:
        lab.run("count-cold", cache="cold", checkpoints=0)
    for k in range(counted.writes):
        with faults(k), pytest.raises(Crash):
            lab.run(f"cold-{k}", cache=f"cold-{k}", checkpoints=0)
        lab.run(f"cold-{k}", cache=f"cold-{k}", checkpoints=0)
        assert results(lab.folder / f"cold-{k}") == lab.reference, k


@pytest.mark.parametrize("checkpoints", [0, ALWAYS])
def test_a_file_that_the_system_will_not_let_grow(lab: Lab, checkpoints: float) -> None:
    """For real: a line that stops halfway, or a checkpoint that does."""
    output, before = f"limit-{checkpoints:g}", resource.getrlimit(resource.RLIMIT_FSIZE)
    lines = (lab.stopped(output, after=1) / "samples.jsonl").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (lines + 100, before[1]))
    try:
        with pytest.raises(StateError, match="cannot write"):
            lab.run(output, checkpoints=checkpoints)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    lab.run(output)
    assert results(lab.folder / output) == lab.reference


@pytest.mark.parametrize("rest", [b'{"i": 2, "id": "half', b'{"i": 2}\n{"i": 3}\n', b"\x00" * 500])
def test_what_lies_beyond_the_checkpoint_is_cut_off(lab: Lab, rest: bytes) -> None:
    output = f"tail-{len(rest)}"
    folder = lab.stopped(output, after=2)
    with open(folder / "samples.jsonl", "ab") as samples:
        samples.write(rest)
    (folder / ".checkpoint.safetensors.abc.new").write_bytes(b"left by a process that was killed")
    lab.run(output)
    assert results(lab.folder / output) == lab.reference
    assert not list(folder.glob("*.new")) and not list(folder.glob(".*.new"))


def test_files_that_do_not_fit_together_are_refused(lab: Lab) -> None:
    folder = lab.stopped("shorter", after=2)
    os.truncate(folder / "samples.jsonl", 100)
    with pytest.raises(StateError, match="shorter than it was; .*--overwrite"):
        lab.run("shorter")
    folder = lab.stopped("garbled", after=2)
    (folder / "checkpoint.safetensors").write_bytes(b"no state at all")
    with pytest.raises(StateError, match="not a readable file of the form .*--overwrite"):
        lab.run("garbled")
    for output in ("shorter", "garbled"):
        lab.run(output, resume=False)
        assert results(lab.folder / output) == lab.reference


def test_stopped_again_and_again(lab: Lab) -> None:
    for after in range(1, IMAGES):
        lab.stopped("patience", after) if after == 1 else lab.run("patience", stop=lambda: True)
    lab.run("patience")
    assert results(lab.folder / "patience") == lab.reference


def test_a_run_that_someone_else_is_working_on(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    job = prepare_job(lab.spec, lab.vlm)
    arguments = ["run", "--model", "tiny", "--dataset", lab.spec.dataset, "--workers", "0", "--device", "cpu"]
    with Store(lab.folder / "busy" / job.name, job.key):
        assert main([*arguments, "--output", str(lab.folder / "busy")]) == 1
    error = capsys.readouterr().err
    assert "another process is working on" in error and len(error.strip().splitlines()) == 1
    lab.run("busy")
    assert results(lab.folder / "busy") == lab.reference


def test_a_place_that_cannot_be_written(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    (lab.folder / "file").write_text("")
    places = [lab.folder / "file"]
    if Path("/sys/kernel").is_dir():
        places.append(Path("/sys/kernel"))  # read-only for everyone
    arguments = ["run", "--model", "tiny", "--dataset", lab.spec.dataset, "--workers", "0", "--device", "cpu"]
    for place in places:
        assert main([*arguments, "--output", str(place / "out")]) == 1
        error = capsys.readouterr().err
        assert "cannot write to" in error and len(error.strip().splitlines()) == 1
