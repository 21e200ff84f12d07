"""Images ready before they are asked for: worker processes decode, corrupt and preprocess ahead, in order.

An image that cannot be read is passed on as the reason, so that one bad file does not end a run. Workers are spawned:
they inherit neither locks nor half-initialised threads. They end with the run, even if it is killed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Generator, Sequence
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from lessmore.data.stream import Stream
from lessmore.errors import ImageError, LessmoreError
from lessmore.models.vlm import Transform

_TOGETHER = 8  # images that travel at once; each worker has twice as many ready


class Loaded(NamedTuple):
    """Sample `i` of a stream: its pixels, or why there are none."""

    i: int
    pixels: NDArray[np.float32] | None
    """[3, H, W]"""
    error: str | None


class LoaderError(LessmoreError, RuntimeError):
    """A worker process has died."""


class _Samples(Dataset[Loaded]):
    """What a worker holds of the run."""

    def __init__(self, stream: Stream, preprocess: Transform) -> None:
        self.stream = stream
        self.preprocess = preprocess

    def __getitem__(self, i: int) -> Loaded:
        return load_one(self.stream, self.preprocess, i)


def load_one(stream: Stream, preprocess: Transform, i: int) -> Loaded:
    """Decode, corrupt and preprocess one sample; a failure is part of the result.

    Args:
        stream: Where it comes from.
        preprocess: From an image to pixels.
        i: Its position in the stream.
    """
    try:
        # An array, because it goes through a pipe; a tensor would need enough shared memory.
        return Loaded(i, preprocess(stream.image(i)).numpy(), None)
    except ImageError as error:
        return Loaded(i, None, " ".join(str(error).split()))


def load_images(stream: Stream, preprocess: Transform, indices: Sequence[int], workers: int) -> Generator[Loaded]:
    """Samples, in the order of `indices`.

    Args:
        stream: Where they come from.
        preprocess: From an image to pixels.
        indices: Positions in the stream.
        workers: Processes; 0 loads each sample when it is asked for.

    Raises:
        LoaderError: A worker process has died.
    """
    if not workers or not indices:
        yield from (load_one(stream, preprocess, i) for i in indices)
        return
    batches: DataLoader[Any] = DataLoader(
        _Samples(stream, preprocess),
        batch_size=_TOGETHER,
        sampler=indices,
        num_workers=min(workers, -(-len(indices) // _TOGETHER)),
        collate_fn=_as_it_is,
        worker_init_fn=_attach,
        multiprocessing_context="spawn",
        generator=torch.Generator(),  # otherwise the loader draws a seed from the global one
    )
    try:
        for batch in batches:
            yield from batch
    except RuntimeError as error:
        if "exited unexpectedly" not in str(error) and "killed by signal" not in str(error):
            raise
        raise LoaderError(
            "a process that loads images has died, perhaps for want of memory; "
            "run the same command with fewer --workers to go on"
        ) from error


def _as_it_is(batch: Any) -> Any:
    return batch


def _attach(_: int) -> None:
    """Start a worker: it ignores signals, because the run tells it when to end, and it exits at once if the run dies.

    Otherwise it would wait forever to hand over an image that nobody takes.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_follow, args=(parent,), daemon=True).start()


def _follow(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
