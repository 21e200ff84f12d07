"""State files and the two caches: what a damaged or crafted one does to answers."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

import lessmore
from lessmore.errors import StateError
from lessmore.lab import cache as encodings
from lessmore.lab.runner import run_one
from lessmore.lab.spec import RunSpec
from lessmore.models import class_embeddings as embeddings
from lessmore.storage.state import SCHEMA
from tests.fuzz.craft import rewrite_tensors
from tests.fuzz.mutate import damaged
from tests.fuzz.outcomes import Outcome, Trial
from tests.fuzz.runs import quickly
from tests.small_runs import draw_folder, results

CLASSES = ["red plain star", "blue plain ring", "green plain square", "red plain ring"]
SEEN, ASKED = 25, 2


def images(count: int, seed: int) -> list[Tensor]:
    return list(torch.rand(count, 3, 64, 64, generator=torch.Generator().manual_seed(seed)) * 2 - 1)


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k].nan_to_num(7), other[k].nan_to_num(7)) for k in one)


def state_files(folder: Path, crafted: bool) -> Trial:
    """A state is restored into an adapter that has seen other images, and answers are compared."""
    made = lessmore.adapt("tiny", CLASSES, cache=folder / "cache")
    for image in images(SEEN, 0):
        made(image)
    good, file, asked = folder / "good.safetensors", folder / "state.safetensors", images(ASKED, 2)
    made.save(good)
    expected = [made(image).scores for image in asked]
    made.reset()
    for image in images(5, 1):
        made(image)
    made.save(folder / "before.safetensors")
    before = made._answerer.method.state()

    def use() -> bool:
        try:
            made.restore(file)
        except StateError:
            assert same(made._answerer.method.state(), before), "a refused state changed the adapter"
            raise
        try:
            return all(torch.equal(made(image).scores, scores) for image, scores in zip(asked, expected, strict=True))
        finally:
            made.restore(folder / "before.safetensors")

    return _files({file: good}, use, (lambda dice: rewrite_tensors(file, SCHEMA, dice)) if crafted else None)


def states_after_changes(folder: Path, crafted: bool) -> Trial:
    """A state with tracks, saved after its class list had changed, is restored, and answers are compared."""
    made = lessmore.adapt("tiny", CLASSES, cache=folder / "cache")
    for i, image in enumerate(images(8, 5)):
        made(image, track=f"cup {i % 3}")
    made.remove_classes([CLASSES[1]])
    made.add_classes(["blue striped cross", "green dotted star"])
    made.rename(CLASSES[2], "green square")
    for i, image in enumerate(images(6, 6)):
        made(image, track=f"cup {i % 2}" if i % 3 else None)
    good, file, asked = folder / "good.safetensors", folder / "state.safetensors", images(ASKED, 7)
    made.save(good)
    expected = [made(image, track="cup 1") for image in asked]

    def use() -> bool:
        made.restore(file)
        found = [made(image, track="cup 1") for image in asked]
        return all(_alike(one, other) for one, other in zip(found, expected, strict=True))

    return _files({file: good}, use, (lambda dice: rewrite_tensors(file, SCHEMA, dice)) if crafted else None)


def _alike(one: lessmore.Prediction, other: lessmore.Prediction) -> bool:
    return one.frames == other.frames and torch.equal(one.scores, other.scores) and one.confidence == other.confidence


def _files(files: dict[Path, Path], use: Callable[[], bool | Outcome], craft: Callable[..., str] | None) -> Trial:
    """Trials that damage or craft one of these files, each of which begins as a copy of another."""

    def trial(dice: random.Random) -> tuple[Callable[[], bool | Outcome], str]:
        for file, good in files.items():
            file.write_bytes(good.read_bytes())
        if craft is not None:
            return use, craft(dice)
        file = dice.choice(list(files))
        file.write_bytes(damaged(file.read_bytes(), dice))
        return use, file.name

    return trial


class Heard(logging.Handler):
    """Whether something was said in the log."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.lines += 1


@contextmanager
def listening(module: str) -> Iterator[Heard]:
    log, heard = logging.getLogger(module), Heard()
    log.addHandler(heard)
    before, log.propagate = log.propagate, False
    try:
        yield heard
    finally:
        log.removeHandler(heard)
        log.propagate = before


def class_embedding_cache(folder: Path, crafted: bool) -> Trial:
    """A cached file of class embeddings is damaged, and they are asked for."""
    vlm = lessmore.load("tiny")
    expected = vlm.classifier(CLASSES, "photo", cache=folder)
    (file,) = folder.rglob("*.safetensors")
    good = folder / "good"
    file.rename(good)

    def use() -> bool | Outcome:
        with listening(embeddings.__name__) as heard, quickly():
            equal = torch.equal(vlm.classifier(CLASSES, "photo", cache=folder), expected)
        return Outcome.REFUSED if equal and heard.lines == 1 else equal

    def craft(dice: random.Random) -> str:
        return rewrite_tensors(file, embeddings.SCHEMA, dice, ("key",))

    return _files({file: good}, use, craft if crafted else None)


def encoding_cache(folder: Path, crafted: bool) -> Trial:
    """A shard of cached encodings is damaged, and a run uses it."""
    spec = RunSpec("tiny", f"folder:{draw_folder(folder / 'photos', 2)}", device="cpu")
    vlm = lessmore.load("tiny")

    def run() -> tuple[bytes, str]:
        options = {"quiet": True, "resume": False, "checkpoints": 0, "vlm": vlm, "cache": folder / "cache"}
        with quickly():
            run_one(spec, folder / "out", **options)
        return results(folder / "out")

    expected = run()
    shards = list((folder / "cache" / "encodings").rglob("*.safetensors"))
    files = {}
    for number, shard in enumerate(shards):
        files[shard] = folder / f"good{number}"
        files[shard].write_bytes(shard.read_bytes())

    def use() -> bool | Outcome:
        with listening(encodings.__name__) as heard:
            equal = run() == expected
        for shard in (folder / "cache" / "encodings").rglob("*.safetensors"):
            shard.unlink()
        return Outcome.REFUSED if equal and heard.lines else equal

    def craft(dice: random.Random) -> str:
        return rewrite_tensors(dice.choice(shards), encodings.SCHEMA, dice, ("ids", "tokens"))

    return _files(files, use, craft if crafted else None)
