"""Sweeps: grids become runs, and a process, a worker or a node that is lost changes no byte of the results."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from PIL import Image

from lessmore.assets import world
from lessmore.cli import main
from lessmore.errors import ConfigError
from lessmore.lab import sweep_local
from lessmore.lab.job import prepare_job
from lessmore.lab.spec import RunSpec
from lessmore.lab.store import Store
from lessmore.lab.sweep import Worker, expand_grid, read_grid
from lessmore.lab.sweep_local import run_locally
from lessmore.lab.sweep_ray import run_on_ray

IMAGES = 200
on_linux = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="finds processes by /proc, which is not here")


@pytest.fixture(scope="module")
def world_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of the embedded world, one sub-folder per class."""
    folder = tmp_path_factory.mktemp("data") / "world"
    scene = world.world_sample(IMAGES, 5, world.test_classes(8))
    pictures = (world.draw_scene(scene)[0].permute(0, 2, 3, 1) * 255).round().to(torch.uint8).numpy()
    for i, (pixels, label) in enumerate(zip(pictures, scene.labels.tolist(), strict=True)):
        place = folder / world.class_name(*label)
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(place / f"{i:04}.png")
    return folder


@pytest.fixture(scope="module")
def spec(world_folder: Path) -> RunSpec:
    return RunSpec(model="tiny", dataset=f"folder:{world_folder}", device="cpu", order="blocks")


@pytest.fixture(scope="module")
def undisturbed(spec: RunSpec, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What `samples.jsonl` holds after a run nothing happened to."""
    output = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LESSMORE_CACHE", str(output / "cache"))
        done = Worker(output / "out", 1)(spec)
    assert done.summary is not None and done.summary["metrics"]["n"] == IMAGES
    return samples(output / "out")


def samples(output: Path) -> bytes:
    (file,) = output.glob("*/samples.jsonl")
    return file.read_bytes()


@dataclass
class Strike:
    """A run that was hit in the middle."""

    folder: Path
    pid: int
    first_timing: bytes

    def left_no_trace(self, undisturbed: bytes) -> bool:
        """Whether the run went on, rather than began anew (then its timings would be others), to the same end."""
        went_on = (self.folder / "timings.jsonl").read_bytes().startswith(self.first_timing)
        return went_on and (self.folder / "samples.jsonl").read_bytes() == undisturbed and not alive(self.pid)


def when_in_the_middle(output: Path, do: Callable[[int], Any], which: Callable[[int], bool]) -> Strike:
    """Wait until a run under `output` has rows and a checkpoint, and `do` something to its process while it stands.

    A checkpoint is due when a second has gone by, so the process is held up for longer than that near its start: the
    run is then in the middle on machines of any speed.
    """
    folder, pid = _wait(lambda: _underway(output, which))
    os.kill(pid, signal.SIGSTOP)
    time.sleep(1.5)
    os.kill(pid, signal.SIGCONT)
    _wait(lambda: (folder / "checkpoint.safetensors").exists())
    os.kill(pid, signal.SIGSTOP)
    rows = (folder / "samples.jsonl").read_bytes().count(b"\n")
    first = (folder / "timings.jsonl").read_bytes().split(b"\n")[0]
    do(pid)
    os.kill(pid, signal.SIGCONT)
    assert 0 < rows < IMAGES and first
    return Strike(folder, pid, first)


def _wait(condition: Callable[[], Any]) -> Any:
    while not (value := condition()):
        time.sleep(0.002)
    return value


def _underway(output: Path, which: Callable[[int], bool]) -> tuple[Path, int] | None:
    """A run with rows, and its process."""
    for file in output.glob("*/samples.jsonl"):
        pids = [pid for pid in holding(file) if which(pid)] if file.stat().st_size else []
        if pids:
            return file.parent, pids[0]
    return None


def holding(file: Path) -> list[int]:
    """Processes that have a file open."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                found += [int(process.name) for link in (process / "fd").iterdir() if link.readlink() == file]
            except OSError:
                continue  # it has ended, or is somebody else's
    return found


def status(pid: int) -> tuple[str, int]:
    """State and parent of a process."""
    state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    return state, int(parent)


def alive(pid: int) -> bool:
    try:
        return status(pid)[0] != "Z"
    except OSError:
        return False


class Striking:
    """A thread that strikes once; `strike` is there after the `with` block."""

    strike: Strike

    def __init__(
        self,
        output: Path,
        do: Callable[[int], Any] = lambda pid: os.kill(pid, signal.SIGKILL),
        which: Callable[[int], bool] = lambda pid: True,
    ) -> None:
        self._work = output, do, which
        self._thread = threading.Thread(target=self._strike, daemon=True)

    def _strike(self) -> None:
        self.strike = when_in_the_middle(*self._work)

    def __enter__(self) -> Striking:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.join(timeout=60)


@on_linux
def test_a_killed_process_loses_nothing_and_stops_nothing(spec: RunSpec, undisturbed: bytes, tmp_path: Path) -> None:
    short = replace(spec, limit=20)
    with Striking(tmp_path) as striking:
        results = list(run_locally([spec, short], tmp_path, processes=1, threads=1))
    assert striking.strike.left_no_trace(undisturbed)
    assert [(done.spec, done.summary and done.summary["metrics"]["n"]) for done in results] == [
        (spec, IMAGES),
        (short, 20),
    ]


def test_a_process_that_keeps_dying_is_given_up(
    spec: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sweep_local, "RETRIES", 0)
    (done,) = run_locally([spec], tmp_path, processes=1, threads=-1)
    assert done.summary is None and "died 1 times, the last time with exit code 1" in done.error


STOPS = [signal.SIGINT, *([signal.SIGKILL, signal.SIGTERM] if os.environ.get("LESSMORE_SOAK") else [])]


@on_linux
@pytest.mark.parametrize("number", STOPS)
def test_a_stopped_sweep_stops_its_processes_and_can_go_on(
    number: signal.Signals, spec: RunSpec, undisturbed: bytes, tmp_path: Path
) -> None:
    """Ctrl-C reaches the whole group of processes, the others only the first of them."""
    output = tmp_path / "out"
    grid = grid_file(tmp_path, yaml.safe_dump({"grid": {"model": "tiny", "dataset": spec.dataset, "order": "blocks"}}))
    command = [sys.executable, "-m", "lessmore", "sweep", str(grid), "--output", str(output), "--processes", "1"]
    # A job in the background of a shell is started deaf to Ctrl-C; this one must hear it.
    listen = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    sweep = subprocess.Popen(command, start_new_session=True, preexec_fn=listen, **pipes)  # type: ignore[call-overload]
    stop = os.killpg if number == signal.SIGINT else os.kill

    def strike_first(pid: int) -> None:
        stop(sweep.pid, number)
        time.sleep(1)  # the held process must not reach its end before the first one has passed the word on

    strike = when_in_the_middle(output, strike_first, lambda pid: True)
    out, errors = sweep.communicate()
    if number == signal.SIGINT:
        assert (sweep.returncode, out) == (130, "")
        assert errors == "lessmore sweep: interrupted; run the same command to go on\n"
    while alive(strike.pid):
        time.sleep(0.01)
    assert 0 < len(samples(output)) < len(undisturbed)
    assert Worker(output, 1)(spec).error == ""
    assert strike.left_no_trace(undisturbed)


@on_linux
@pytest.mark.services
def test_a_killed_ray_worker_loses_nothing(spec: RunSpec, undisturbed: bytes, tmp_path: Path) -> None:
    ray = pytest.importorskip("ray")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(num_cpus=1, include_dashboard=False, object_store_memory=80 * 2**20, log_to_driver=False)
    try:
        with pytest.raises(ConfigError, match="no node of the Ray cluster has 1 CPUs and 7 GPUs"):
            list(run_on_ray([spec], tmp_path, "auto", cpus=1, gpus=7))
        with Striking(tmp_path) as striking:
            (done,) = run_on_ray([spec], tmp_path, "auto", cpus=1, gpus=0)
        assert ray.is_initialized()
    finally:
        ray.shutdown()
    assert striking.strike.left_no_trace(undisturbed)
    assert done.summary is not None and done.summary["provenance"]["threads"] == 1


@on_linux
@pytest.mark.soak
def test_a_killed_ray_node_loses_nothing(spec: RunSpec, undisturbed: bytes, tmp_path: Path) -> None:
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        node = cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, log_to_driver=False)
        cluster.wait_for_nodes()
        raylet = node.all_processes["raylet"][0].process.pid
        runs = [spec, replace(spec, seed=1)]
        unplugging = Striking(
            tmp_path, lambda pid: cluster.remove_node(node, allow_graceful=False), lambda pid: status(pid)[1] == raylet
        )
        with unplugging:
            results = list(run_on_ray(runs, tmp_path, "auto", cpus=1, gpus=0))
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert [done.error for done in results] == ["", ""]
    hit = int(unplugging.strike.folder.name.partition("seed")[2][0])
    assert Worker(tmp_path / "again", 1)(runs[hit]).error == ""
    assert unplugging.strike.left_no_trace(samples(tmp_path / "again"))


def test_ray_that_is_not_there_is_said_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = RunSpec(model="tiny", dataset="folder:x")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'lessmore\[sweep\]'"):
        list(run_on_ray([spec], tmp_path, "auto", 1, 0))
    monkeypatch.undo()
    pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ConfigError, match="start one with ray start --head, or use --ray local"):
        list(run_on_ray([spec], tmp_path, "auto", 1, 0))


def test_a_sweep_does_what_it_can_and_skips_what_is_done(
    world_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken" / "cat"
    broken.mkdir(parents=True)
    (broken / "a.png").write_bytes(b"not an image")
    (broken / "b.png").write_bytes(next(world_folder.glob("*/*.png")).read_bytes())
    sets = [f"folder:{world_folder}", f"folder:{broken.parent}", "folder:nowhere"]
    grid = grid_file(tmp_path, yaml.safe_dump({"grid": {"model": "tiny", "dataset": sets, "limit": 12}}))
    output = tmp_path / "out"
    assert main(["sweep", str(grid), "--output", str(output), "--processes", "1"]) == 3
    out, errors = capfd.readouterr()
    assert "there is no folder nowhere" in errors and "1 images could not be read" in errors
    assert "2 of 3 runs failed" in errors and out.count("points") == 2
    assert main(["build", str(output)]) == 0
    assert "1 images could not be read" in (table := capfd.readouterr().out) and "| tiny | tca | tca |" in table
    files = sorted(output.glob("*/s*"))
    before = [(file.stat().st_mtime_ns, file.stat().st_ino) for file in files]
    again = [Worker(output, 1)(run) for run in read_grid(grid).specs]
    assert len(files) == 6 and [done.summary is None for done in again] == [False, False, True]
    assert [(file.stat().st_mtime_ns, file.stat().st_ino) for file in files] == before


def test_a_run_somebody_works_on_is_left_alone(spec: RunSpec, tmp_path: Path) -> None:
    job = prepare_job(spec)
    with Store(tmp_path / job.name, job.key):
        done = Worker(tmp_path, 1)(spec)
    assert done.summary is None and "another process is working" in done.error


def grid_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "grid.yaml"
    path.write_text(text)
    return path


def test_a_grid_is_every_combination_less_the_excluded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = """
    grid:
      - model: [tiny, tiny-siglip]
        dataset: "folder:x"
        seed: [0, 1]
        method: [tca, zeroshot]
        corruption: [none, "fog:3"]
      - {model: tiny, dataset: "folder:x", R: [0.9, 0.7], seed: 0}
      - {model: tiny, dataset: "folder:x", seed: 0}
    exclude:
      - {method: zeroshot, seed: 1}
      - {model: tiny-siglip, corruption: none}
    cpus: 3
    gpus: 0.5
    """
    grid = read_grid(grid_file(tmp_path, text))
    assert (grid.cpus, grid.gpus) == (3, 0.5)
    assert len(grid.specs) == 16 - 4 - 4 + 1 + 2
    assert not any(s.method == "zeroshot" and s.seed == 1 for s in grid.specs)
    assert {s.corruption for s in grid.specs if s.model == "tiny-siglip"} == {"fog:3"}
    assert main(["sweep", str(tmp_path / "grid.yaml"), "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(set(lines)) == len(grid.specs) and lines[0] == "folder:x tiny tca"
    assert "folder:x tiny tca R=0.7" in lines


def test_runs_on_the_same_images_are_spread() -> None:
    specs = expand_grid(
        [{"model": "tiny", "dataset": ["folder:a", "folder:b"], "seed": [0, 1], "method": ["tca", "zeroshot"]}]
    )
    assert [spec.dataset for spec in specs] == ["folder:a", "folder:b"] * 4


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no grid"),
        ("[]", "has no grid"),
        ("grid: {}", "has no grid"),
        ("grid: 3", "grid must hold settings"),
        ("grid: [", "is not usable YAML"),
        ("grid: {model: tiny}", "there is no dataset"),
        ("grid: {model: tiny, dataset: 'folder:x', sed: 1}", "did you mean seed"),
        ("grid: {model: tiny, dataset: 'folder:x', method: tcb}", "did you mean tca"),
        ("grid: {model: tiny, dataset: 'folder:x', order: idd}", "did you mean iid"),
        ("grid: {model: tiny, dataset: 'folder:x', corruption: fog}", "no severity"),
        ("grid: {model: tiny, dataset: 'folder:x', R: [0.9, 'a']}", "R cannot be 'a'; give float"),
        ("grid: {model: 3, dataset: 'folder:x'}", "model cannot be 3; give str"),
        ("grid: {model: tiny, dataset: 'folder:x', limit: [1, 2]}", "limit takes one value"),
        ("grid: {model: tiny, dataset: 'folder:x', R: 2}", "R must lie in"),
        ("grid: {model: tiny, dataset: 'folder:x'}\ngpu: 1", "did you mean gpus"),
        ("grid: {model: tiny, dataset: 'folder:x'}\ncpus: 0", "cpus must be a whole number from 1"),
        ("grid: {model: tiny, dataset: 'folder:x'}\ngpus: -1", "gpus a number from 0"),
        ("grid: {model: tiny, dataset: 'folder:x'}\nexclude: {sed: 1}", "did you mean seed"),
        ("grid: {model: tiny, dataset: 'folder:x'}\nexclude: {model: tiny}", "holds no run"),
    ],
)
def test_grids_that_are_refused(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        read_grid(grid_file(tmp_path, text))


@pytest.mark.parametrize(
    ("more", "says"),
    [(["--processes", "0"], "1 or more"), (["--processes", "2", "--ray", "auto"], "mutually exclusive")],
)
def test_options_that_are_refused(
    more: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = grid_file(tmp_path, "grid: {model: tiny, dataset: 'folder:x'}")
    assert main(["sweep", str(grid), "--output", str(tmp_path), *more]) == 1
    assert says in capsys.readouterr().err
    assert main(["sweep", str(tmp_path / "none.yaml")]) == 1
    assert "there is no file" in capsys.readouterr().err
