"""Learned contexts: finished ones that methods use, and unfinished ones that training goes on from."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

import lessmore
from lessmore.core.encoder import encode
from lessmore.lab.train_prompt import Training, train_prompt
from lessmore.methods import FromEncoded, Setup, make_method
from lessmore.methods.context import SCHEMA
from lessmore.methods.resolve import resolve
from lessmore.storage import sealed
from tests.fuzz.craft import rewrite_tensors
from tests.fuzz.mutate import damaged
from tests.fuzz.outcomes import Outcome, Trial
from tests.fuzz.runs import quickly
from tests.fuzz.states import CLASSES, images
from tests.methods.test_coop import drawn

NAMES = ("coop", "cocoop")


class Courses:
    """A training of each method: what it wrote in the middle and at the end, and what the end answers."""

    def __init__(self, folder: Path) -> None:
        self.vlm, self.data = lessmore.load("tiny"), drawn(8, 1)
        shape, text = self.vlm.vision.shape, self.vlm.classifier(CLASSES, "photo", cache=False)
        chosen = resolve("zeroshot", shape=shape).preset
        self.setup = Setup(self.vlm.vision, text, self.vlm.logit_scale, chosen, self.vlm, tuple(CLASSES))
        with torch.no_grad():
            self.seen = encode(self.vlm.vision, images(1, 3)[0][None])
        self.files: dict[str, bytes] = {}
        for method in NAMES:
            file = folder / f"{method}.safetensors"
            self.train(file, stop=lambda: True)
            self.files[f"{method}.safetensors.partial"] = Path(f"{file}.partial").read_bytes()
            self.train(file)
            self.files[file.name] = file.read_bytes()
        self.expected = {method: self.answer(method, folder / f"{method}.safetensors") for method in NAMES}

    def train(self, file: Path, stop: Callable[[], bool] = lambda: False) -> None:
        training = Training(file.name.split(".")[0], shots=1, epochs=1, batch=4, crops=False)  # type: ignore[arg-type]
        with quickly():
            train_prompt(self.vlm, self.data, file, training, quiet=True, stop=stop)

    @torch.no_grad()
    def answer(self, method: str, file: Path) -> torch.Tensor:
        made = make_method(method, replace(self.setup, options={"context": str(file)}))
        assert isinstance(made, FromEncoded)
        return made.answer(self.seen).scores


def learned_contexts(folder: Path, crafted: bool) -> Trial:
    """A context is changed and used, or changed in the middle of its training and trained to the end."""
    courses = Courses(folder)

    def trial(dice: random.Random) -> tuple[Callable[[], bool | Outcome], str]:
        for path in folder.glob("*.safetensors*"):
            path.unlink()
        name = dice.choice(sorted(courses.files))
        changed, finished = folder / name, folder / name.removesuffix(".partial")
        changed.write_bytes(courses.files[name])
        if crafted:
            told = rewrite_tensors(changed, SCHEMA, dice, ("method", "words", "step", "text_tower"))
        else:
            told = name
            changed.write_bytes(damaged(changed.read_bytes(), dice))

        def use() -> bool:
            if changed != finished:
                courses.train(finished)
                tensors, wanted = (
                    dict(sealed.load(data)) for data in (finished.read_bytes(), courses.files[finished.name])
                )
                return all(torch.equal(tensors[one], wanted[one]) for one in wanted)
            method = name.split(".")[0]
            return torch.equal(courses.answer(method, changed), courses.expected[method])

        return use, f"{name}: {told}"

    return trial
