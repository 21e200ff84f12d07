"""Files of learned contexts with a right checksum and content that cannot be: refused, each with a remedy."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import lessmore
from lessmore.assets import world
from lessmore.errors import ConfigError, LessmoreError
from lessmore.lab.train_prompt import Training, train_prompt
from lessmore.methods.context import SCHEMA, write_context
from lessmore.storage import sealed
from tests.methods.test_coop import drawn

Content = tuple[dict[str, Tensor], dict[str, Any]]
NAMES = world.world_class_names(world.test_classes(4))
NONSENSE: dict[str, Callable[[dict[str, Tensor], dict[str, Any]], Any]] = {
    "how it was learnt": lambda tensors, facts: facts.pop("words"),
    "say how it was": lambda tensors, facts: facts.update(words="\ud800"),
    "does not say how": lambda tensors, facts: facts.update(method=["coop"]),
    "no tensor 'context'": lambda tensors, facts: tensors.clear(),
    "not float32": lambda tensors, facts: tensors.update(context=tensors["context"][:2]),
    "is float16": lambda tensors, facts: tensors.update(context=tensors["context"].half()),
    "is bool": lambda tensors, facts: tensors.update(context=tensors["context"] > 0),
    "is float8": lambda tensors, facts: tensors.update(context=tensors["context"].to(torch.float8_e4m3fn)),
    "too many": lambda tensors, facts: tensors.update(more=tensors["context"].clone()),
    "out of range": lambda tensors, facts: tensors.update(context=tensors["context"] * 1e9),
    "not finite": lambda tensors, facts: tensors.update(context=tensors["context"] / 0),
    "leaves no room": lambda tensors, facts: facts.update(words=" "),
}


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Content:
    """What a finished training wrote."""
    file = tmp_path_factory.mktemp("learned") / "context.safetensors"
    training = Training(shots=1, epochs=1, batch=8, crops=False)
    train_prompt(lessmore.load("tiny"), drawn(20, 1), file, training, quiet=True)
    return sealed.read_tensors(file, SCHEMA, 1 << 30, "")


@pytest.mark.parametrize("says", NONSENSE)
def test_nonsense_is_refused(says: str, learned: Content, tmp_path: Path) -> None:
    tensors, facts = dict(learned[0]), dict(learned[1])
    NONSENSE[says](tensors, facts)
    file = tmp_path / "context.safetensors"
    sealed.write_tensors(file, {name: tensor.contiguous() for name, tensor in tensors.items()}, SCHEMA, facts)
    with pytest.raises(LessmoreError, match=f"{says}.*; "):
        lessmore.adapt("tiny", NAMES, method="coop", context=str(file), cache=False)


def test_no_ordinary_file_is_a_context(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero", tmp_path, "a\0b"):
        with pytest.raises(ConfigError, match=r"; |check the path"):
            lessmore.adapt("tiny", NAMES, method="coop", context=str(path), cache=False)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda tensors, facts: facts.pop("step"), "how far"),
        (lambda tensors, facts: facts.update(step=10**6), "how far"),
        (lambda tensors, facts: facts.update(step=-1), "how far"),
        (lambda tensors, facts: tensors.pop("momentum.context"), "no tensor 'momentum.context'"),
    ],
)
def test_a_training_goes_on_from_nothing_odd(change: Any, says: str, tmp_path: Path) -> None:
    vlm, data, file = lessmore.load("tiny"), drawn(20, 1), tmp_path / "context.safetensors"
    training = Training(shots=1, epochs=2, batch=4, crops=False)
    assert not train_prompt(vlm, data, file, training, quiet=True, stop=lambda: True)
    partial = tmp_path / "context.safetensors.partial"
    tensors, facts = sealed.read_tensors(partial, SCHEMA, 1 << 30, "")
    change(tensors, facts)
    write_context(partial, vlm, tensors, facts)
    with pytest.raises(ConfigError, match=says):
        train_prompt(vlm, data, file, training, quiet=True)
    assert train_prompt(vlm, data, file, training, quiet=True, overwrite=True)
