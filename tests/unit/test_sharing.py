"""One adapter in threads, copies, forks and event loops; and what it leaves alone: the process and the network."""

from __future__ import annotations

import asyncio
import copy
import logging
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile
from torch import Tensor

import lessmore
from lessmore.errors import ConfigError
from lessmore.storage.sealed import read_tensors
from lessmore.storage.state import SCHEMA
from tests.small_runs import NAMES, draw_folder
from tests.synthetic_runs import write_run

COUNT = 40


def images(count: int = COUNT) -> list[Tensor]:
    return list(torch.rand(count, 3, 64, 64, generator=torch.Generator().manual_seed(0)) * 2 - 1)


def adapter(engine: str = "auto", **more: Any) -> lessmore.Adapter:
    return lessmore.adapt("tiny", NAMES, engine=engine, **more)


@pytest.mark.parametrize("engine", ["eager", "cpu"])
def test_eight_threads_are_one_stream(engine: str) -> None:
    """Nobody says in which order, but every image is one step: no id twice, none left out, every answer finite."""
    shared = adapter(engine)
    begun = threading.Barrier(8)

    def work(part: list[Tensor]) -> list[Any]:
        begun.wait()
        return [shared(image) for image in part]

    with ThreadPoolExecutor(8) as pool:
        answers = [one for part in pool.map(work, [images()[i::8] for i in range(8)]) for one in part]
    assert len(answers) == COUNT and all(one.scores.isfinite().all() for one in answers)
    state, health = shared._answerer.state()
    known = state["ids"][state["ids"] >= 0].tolist()
    assert health.seen == COUNT == int(state["step"])
    assert len(set(known)) == len(known) and max(known) < COUNT


@pytest.mark.parametrize("engine", ["eager", "chunk"])
def test_threads_that_stream_save_and_ask_at_the_same_time(engine: str, tmp_path: Path) -> None:
    shared, other = adapter(engine), adapter(engine)
    seen: list[int] = []

    def stream() -> None:
        seen.extend(one.index for one in shared.stream(images(16)))

    def look() -> None:
        for i in range(6):
            shared.health()
            shared.save(tmp_path / f"state{i}-{threading.get_ident()}")

    threads = [threading.Thread(target=work) for work in (stream, look, look, stream)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 32 == shared.health().seen
    for path in tmp_path.glob("state*"):
        other.restore(path)


def test_threads_that_change_the_class_list_while_others_answer_and_save(tmp_path: Path) -> None:
    """Two changes started from the same list, and states were saved under the list of another moment."""
    shared, failed = adapter(), []
    shapes = ["moon", "heart", "cross", "square"]

    def look() -> None:
        for i, image in enumerate(images(12)):
            shared(image, track=f"cup {i % 3}" if i % 2 else None)

    def add(colour: str) -> None:
        for shape in shapes:
            shared.add_classes([f"{colour} {shape}"])
            shared.add_classes([f"plain {colour} {shape}"])
            shared.remove_classes([f"plain {colour} {shape}"])

    def save() -> None:
        for i in range(10):
            shared.fork().save(tmp_path / f"{i}.fork")
            shared.save(tmp_path / f"{i}.state")

    def guarded(work: Any, *words: str) -> None:
        try:
            work(*words)
        except Exception as error:
            failed.append(error)

    jobs = [(look,), (look,), (save,), *((add, colour) for colour in ("black", "white", "brown"))]
    threads = [threading.Thread(target=guarded, args=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(shared.classes) == len(NAMES) + 12 == len(shared._answerer.state()[0]["counts"])
    alone = shared.vlm.classifier(shared.classes)
    torch.testing.assert_close(shared._answerer.setup.text, alone, rtol=1e-4, atol=1e-5)
    saved = [*tmp_path.glob("*.fork"), *tmp_path.glob("*.state")]
    assert len(saved) == 20
    for path in saved:
        about = read_tensors(path, SCHEMA, 1 << 30, "")[1]
        lessmore.adapt("tiny", about["identity"]["classes"]).restore(path)


def test_an_event_loop() -> None:
    shared = adapter()

    async def main() -> list[Any]:
        return await asyncio.gather(*(asyncio.to_thread(shared, image) for image in images(10)))

    assert len(asyncio.run(main())) == 10 and shared.health().seen == 10


def test_pickling_is_refused_by_name_and_copies_are_forks() -> None:
    made = adapter()
    for image in images(5):
        made(image)
    with pytest.raises(TypeError, match=r"cannot be pickled; use save\(\) and restore\(\)"):
        pickle.dumps(made)
    for twin in (copy.copy(made), copy.deepcopy(made), made.fork()):
        before = made._answerer.method.state()
        assert torch.equal(twin(images()[7]).scores, made.fork()(images()[7]).scores)
        assert all(torch.equal(before[name], tensor) for name, tensor in made._answerer.method.state().items())
        assert twin.health().seen == 6 and made.health().seen == 5


def _ask(made: lessmore.Adapter) -> str:
    try:
        made(torch.zeros(3, 64, 64))
    except ConfigError as error:
        return str(error)
    return "answered"


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_is_refused_by_name() -> None:
    made = adapter()
    context = multiprocessing.get_context("fork")
    told = context.SimpleQueue()
    child = context.Process(target=lambda: told.put(_ask(made)))
    child.start()
    child.join(60)
    assert child.exitcode == 0 and "made in another process" in told.get()
    assert _ask(made) == "answered"


def settings() -> dict[str, Any]:
    """What belongs to the process and not to us."""
    return {
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "precision": (torch.get_float32_matmul_precision(), torch.get_default_dtype(), torch.is_grad_enabled()),
        "cuda": (
            torch.backends.cuda.matmul.allow_tf32,
            torch.backends.cudnn.allow_tf32,
            torch.backends.cudnn.benchmark,
        ),
        "deterministic": (torch.are_deterministic_algorithms_enabled(), torch.is_inference_mode_enabled()),
        "random": (torch.get_rng_state().tolist(), random.getstate(), repr(np.random.get_state())),
        "pillow": (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES),
        "numpy": (np.geterr(), np.get_printoptions()),
        "logging": (logging.root.level, list(logging.root.handlers), logging.root.manager.disable),
        "warnings": list(warnings.filters),
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)],
        "environment": dict(os.environ),
        "place": (os.getcwd(), sys.path[:], sys.getrecursionlimit(), multiprocessing.get_start_method(allow_none=True)),
    }


METHODS = ("tca", "zeroshot", "tda", "tent", "sar", "mta", "zero", "tpt")


def test_no_setting_of_the_process_changes(tmp_path: Path) -> None:
    pytest.importorskip("torchmetrics")
    from lessmore.lab.runner import run_one
    from lessmore.lab.spec import RunSpec

    photos = draw_folder(tmp_path / "photos", 4)
    for warm_up in (True, False):  # libraries may set what is theirs when they are first imported
        before = settings()
        for method in METHODS:
            made = lessmore.adapt("tiny", NAMES, method=method, **({"views": 4} if method in ("mta", "zero") else {}))
            made(Image.new("RGB", (70, 50), "red"))
            made.save(tmp_path / "state")
            made.restore(tmp_path / "state")
            made.reset()
        spec = RunSpec("tiny", f"folder:{photos}", device="cpu", corruption="fog:3")
        run_one(spec, tmp_path / str(warm_up), quiet=True)
        after = settings()
    assert {name: after[name] for name in after if after[name] != before[name]} == {}


OFFLINE = """
import socket, sys

asked = []
def refuse(*args, **more):
    asked.append(args)
    raise OSError("the network is closed")

socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = socket.gethostbyname = refuse
socket.create_connection = socket.socket.sendto = refuse
import lessmore
from lessmore.cli import main
made = lessmore.adapt("tiny", ["red circle", "blue square"])
import torch
made(torch.zeros(3, 64, 64))
codes = [main(words.split("|")) for words in sys.argv[1:]]
assert not asked, asked
print(codes)
"""


def offline(*commands: str, **environment: str) -> str:
    """Exit codes of commands in a process whose every way to the network is closed and watched."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", OFFLINE, *commands],
        env={**clean, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def test_nothing_goes_to_the_network(tmp_path: Path) -> None:
    """At import, in a run, a table and a report; also not for a model or data that somebody else's run names."""
    pytest.importorskip("torchmetrics")
    pytest.importorskip("transformers")
    photos = draw_folder(tmp_path / "photos", 3)
    write_run(tmp_path / "foreign", 30, 4)
    write_run(tmp_path / "foreign", 30, 4, dataset="hf:somebody/pictures")
    runs, foreign, page = tmp_path / "runs", tmp_path / "foreign", tmp_path / "page.html"
    home = {"LESSMORE_CACHE": str(tmp_path / "cache"), "HF_HOME": str(tmp_path / "hub")}
    codes = offline(
        f"run|--model|tiny|--dataset|folder:{photos}|--workers|0|--output|{runs}|--quiet",
        f"build|{runs}",
        f"report|{runs}|--quiet|-o|{page}",
        f"report|{foreign}|--quiet|-o|{page}",
        f"build|{foreign}",
        f"classify|{photos}|--model|tiny|--classes|red circle,blue square|--output|{tmp_path / 'out.csv'}",
        f"vis|{next(photos.rglob('*.png'))}|--model|tiny|--classes|red circle,blue square|-o|{tmp_path / 'strip.png'}",
        "ls|datasets",
        "flops|ViT-B-16",
        "doctor|--json",
        **home,
    )
    assert codes == str([0] * 10)
    assert "There are no pictures" in page.read_text()


def test_a_model_of_the_hub_is_looked_for_where_the_user_named_it(tmp_path: Path) -> None:
    """The watch itself works: a hub id that the user gives is asked for."""
    pytest.importorskip("transformers")
    photos = draw_folder(tmp_path / "photos", 3)
    with pytest.raises(AssertionError, match="AssertionError"):
        offline(
            f"run|--model|nobody/nothing|--dataset|folder:{photos}|--workers|0|--output|{tmp_path / 'runs'}",
            HF_HOME=str(tmp_path / "hub"),
        )
