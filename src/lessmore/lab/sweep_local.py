"""A sweep in processes of this machine. One that dies takes only its own run with it, and that run is resumed.

A process and its pipe belong together: the process waits for runs at the pipe, and the end of the pipe, for whatever
reason, tells it to stop after the current image. Ctrl-C, an error and a killed parent therefore all end the same way:
every run has a checkpoint, and no process is left over.
"""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

from lessmore.lab.spec import RunSpec
from lessmore.lab.sweep import RETRIES, FinishedRun, Worker


def run_locally(specs: Sequence[RunSpec], output: Path, processes: int, threads: int) -> Iterator[FinishedRun]:
    """Do runs in processes, and yield the outcome of each as it ends.

    Args:
        specs: The runs.
        output: Where runs go.
        processes: How many run at a time.
        threads: Threads of each.
    """
    todo = deque(enumerate(specs))
    lost = [0] * len(specs)
    hands: dict[Connection, SpawnProcess] = {}
    busy: dict[Connection, int] = {}
    try:
        while todo or busy:
            while todo and len(busy) < processes:
                _hand_out(todo, hands, busy, output, threads)
            for pipe in wait(list(busy)):
                assert isinstance(pipe, Connection)
                number = busy.pop(pipe)
                try:
                    yield pipe.recv()
                except (EOFError, ConnectionError):
                    code = _bury(hands.pop(pipe), pipe)
                    lost[number] += 1
                    if lost[number] <= RETRIES:
                        todo.appendleft((number, specs[number]))
                    else:
                        yield FinishedRun(specs[number], None, _given_up(lost[number], code))
    finally:
        for pipe in hands:
            pipe.close()
        for process in hands.values():
            process.join()


def _hand_out(
    todo: deque[tuple[int, RunSpec]],
    hands: dict[Connection, SpawnProcess],
    busy: dict[Connection, int],
    output: Path,
    threads: int,
) -> None:
    """Give the next run to an idle process, or to a new one."""
    pipe = next((pipe for pipe in hands if pipe not in busy), None) or _start(hands, output, threads)
    try:
        pipe.send(todo[0][1])
    except ConnectionError:  # it died while it had nothing to do
        _bury(hands.pop(pipe), pipe)
        return
    busy[pipe] = todo.popleft()[0]


def _start(hands: dict[Connection, SpawnProcess], output: Path, threads: int) -> Connection:
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, output, threads))
    with _ctrl_c_ignored():
        process.start()
    theirs.close()  # so that its end is the end of the pipe
    hands[ours] = process
    return ours


@contextmanager
def _ctrl_c_ignored() -> Iterator[None]:
    """A process started in this block never sees Ctrl-C; it is told through its pipe instead."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _serve(pipe: Connection, output: Path, threads: int) -> None:
    """The life of a worker process: runs from the pipe, results into it, until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker = Worker(output, threads)
    try:
        while True:
            pipe.send(worker(pipe.recv(), stop=pipe.poll))
    except (EOFError, ConnectionError):
        return


def _bury(process: SpawnProcess, pipe: Connection) -> int | None:
    pipe.close()
    process.join()
    return process.exitcode


def _given_up(times: int, code: int | None) -> str:
    return (
        f"its process died {times} times, the last time with exit code {code}, perhaps for want of memory; "
        "run fewer --processes at a time"
    )
