"""A process that is killed, or asked to stop, in the middle of a run: the next one ends where one alone would have."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torchmetrics")
pytest.importorskip("scipy")

from lessmore.cli import main
from lessmore.lab.job import prepare_job
from lessmore.lab.loader import LoaderError, load_images
from lessmore.lab.runner import run_one
from lessmore.lab.spec import RunSpec
from tests.small_runs import draw_folder, only_run, results

IMAGES = 60
KILLS = 50 if os.environ.get("LESSMORE_SOAK") else 3

# With as many checkpoints as half of the time allows, most kills find one.
SCRIPT = """
import sys
from lessmore.lab.runner import run_one
from lessmore.lab.spec import RunSpec
run_one(RunSpec("tiny", sys.argv[1], device="cpu"), sys.argv[2], quiet=True, cache=False, checkpoints=0.5)
"""


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> RunSpec:
    return RunSpec("tiny", f"folder:{draw_folder(tmp_path_factory.mktemp('photos'), IMAGES)}", device="cpu")


@pytest.fixture(scope="module")
def reference(spec: RunSpec, tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, str]:
    output = tmp_path_factory.mktemp("reference")
    run_one(spec, output, quiet=True, cache=False)
    return results(output)


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    """A Python of its own process group and one thread, as this one has."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, start_new_session=True, stderr=subprocess.PIPE, text=True)


def written(folder: Path) -> int:
    path = folder / "samples.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for(done: Callable[[], bool], what: str, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.002)


def test_killed_again_and_again(spec: RunSpec, reference: tuple[bytes, str], tmp_path: Path) -> None:
    folder = tmp_path / prepare_job(spec).name
    dice, checkpoints = random.Random(0), 0
    for kill in range(KILLS):
        # Deeper from kill to kill, so that states of all sizes are restored.
        rows = dice.randrange(IMAGES * kill // KILLS, IMAGES * (kill + 1) // KILLS + 1)
        process = start("-c", SCRIPT, spec.dataset, tmp_path)
        wait_for(lambda process=process, rows=rows: written(folder) >= rows or process.poll() is not None, "rows")
        process.kill()
        process.communicate()
        checkpoints += (folder / "checkpoint.safetensors").exists()
        if (folder / "summary.json").exists():
            break
    assert checkpoints > KILLS // 2
    run_one(spec, tmp_path, quiet=True, cache=False)
    assert results(tmp_path) == reference


def children(pid: int) -> set[int]:
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes in /proc")
def test_asked_to_stop_and_killed_with_workers(
    spec: RunSpec, reference: tuple[bytes, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """SIGTERM to the whole group, as a cluster sends it; then a kill, which the workers must not outlive."""
    arguments = ["run", "--model", "tiny", "--dataset", spec.dataset, "--device", "cpu", "--output", str(tmp_path)]
    command = ["-m", "lessmore", *arguments, "--workers", "1"]
    folder = tmp_path / prepare_job(spec).name
    process = start(*command)
    wait_for(lambda: written(folder) > 3 or process.poll() is not None, "rows")
    os.killpg(process.pid, signal.SIGSTOP)  # or a fast machine might be done before the other command has begun
    assert main([*arguments, "--workers", "0"]) == 1
    assert "another process is working on" in capsys.readouterr().err
    os.killpg(process.pid, signal.SIGTERM)
    os.killpg(process.pid, signal.SIGCONT)
    _, error = process.communicate()
    assert process.returncode == 130 and error.strip().splitlines() == [
        "lessmore run: interrupted; run the same command to go on"
    ]
    done = written(folder)
    assert 3 < done < IMAGES

    process = start(*command)
    wait_for(lambda: written(folder) > done or process.poll() is not None, "rows")
    workers = children(process.pid)
    assert workers
    process.kill()
    process.communicate()
    wait_for(lambda: not any(map(alive, workers)), "the workers' end")

    assert main([*arguments, "--workers", "0"]) == 0
    assert results(tmp_path) == reference
    assert json.loads((only_run(tmp_path) / "summary.json").read_text())["metrics"]["n"] == IMAGES


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes in /proc")
def test_a_worker_that_dies_is_one_sentence(spec: RunSpec) -> None:
    job = prepare_job(spec)
    before = children(os.getpid())
    samples = load_images(job.stream, job.vlm.preprocess, range(IMAGES), workers=1)
    next(samples)
    for child in children(os.getpid()) - before:
        if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text():
            os.kill(child, signal.SIGKILL)
    with pytest.raises(LoaderError, match="fewer --workers"):
        list(samples)
