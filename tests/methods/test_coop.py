"""CoOp: learning a context, going on exactly after a stop, and the learned context against the hand-written prompt."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

import lessmore
from lessmore.assets import shifts, world
from lessmore.cli import main
from lessmore.config import preset
from lessmore.core.encoder import encode
from lessmore.data.dataset import Dataset
from lessmore.errors import ConfigError
from lessmore.lab.report.tokens import as_picture
from lessmore.lab.train_prompt import PromptTraining, Training, begin_training, few_shots, learning_rate, train_prompt
from lessmore.methods import FromEncoded, Setup, make_method
from lessmore.methods.context import embed_classes, frame_prompts
from lessmore.methods.coop import CoOp

COMBINATIONS = world.test_classes(8, 2)


@dataclass(frozen=True)
class Drawn:
    pictures: tuple[Image.Image, ...]

    def load(self, index: int) -> Image.Image:
        return self.pictures[index]


@lru_cache
def drawn(count: int, seed: int, shift: str = "blur", severity: int = 3) -> Dataset:
    scene = world.world_sample(count, seed, COMBINATIONS)
    pictures = tuple(as_picture(image) for image in shifts.draw_shifted(scene, shift, severity)[0])
    names, ids = tuple(world.world_class_names(COMBINATIONS)), tuple(str(i) for i in range(count))
    return Dataset("drawn", names, ids, tuple(scene.index.tolist()), Drawn(pictures))


def given(name: str = "tiny", classes: tuple[str, ...] | None = None, **options: Any) -> Setup:
    vlm = lessmore.load(name)
    names = classes or drawn(80, 1).classes
    text = vlm.classifier(names, ["a photo of a {}."], cache=False)
    return Setup(vlm.vision, text, vlm.logit_scale, preset("default", R=1.0), vlm, names, (), options)


@torch.no_grad()
def right(setup: Setup, dataset: Dataset, method: str) -> Tensor:
    """Whether each image is answered rightly, [n]."""
    chosen = make_method(method, setup)
    assert isinstance(chosen, FromEncoded)
    encoded = encode(setup.vision, torch.stack([setup.model.preprocess(dataset.image(i)) for i in range(len(dataset))]))
    answers = [chosen.answer(encoded._replace(feature=f[None])).scores.argmax() for f in encoded.feature]
    return (torch.stack(answers) == torch.tensor(dataset.labels)).double()


def stopper(after: int) -> Iterator[bool]:
    yield from [False] * (after - 1)
    while True:
        yield True


def test_the_learned_context_beats_the_hand_written_prompt_on_held_out_images(tmp_path: Path) -> None:
    file = tmp_path / "ctx.safetensors"
    setup = given(context=str(file))
    assert train_prompt(setup.model, drawn(80, 1), file, Training(shots=6, epochs=10, lr=0.05, crops=False), quiet=True)
    held_out = drawn(120, 2)
    gap = (right(setup, held_out, "coop") - right(given(), held_out, "zeroshot")).numpy()
    picks = np.random.default_rng(0).integers(0, len(gap), (2000, len(gap)))
    assert np.quantile(gap[picks].mean(axis=1), 0.025) > 0
    assert gap.mean() > 0.03


@pytest.mark.parametrize("method", ["coop", "cocoop"])
@pytest.mark.parametrize("name", ["tiny", "tiny-siglip"])
def test_learning_lowers_the_loss(name: str, method: str) -> None:
    training = Training(method, shots=1, batch=8, crops=False, lr=0.2)  # type: ignore[arg-type]
    course = begin_training(lessmore.load(name), drawn(80, 1), training)
    course.step = 1  # behind the warm-up
    losses = []
    for _ in range(8):
        course.advance()
        losses.append(course.loss)
    assert losses[-1] < 0.9 * losses[0]


def test_a_step_is_descent_on_the_cross_entropy() -> None:
    """Against finite differences in float64, decay and momentum included."""
    vlm, data = lessmore.load("tiny").to(dtype=torch.float64), drawn(20, 1)
    course = begin_training(vlm, data, Training(shots=1, batch=3, epochs=2, crops=False, lr=0.1))
    course.step = course.steps_per_epoch  # the first epoch only warms up

    def loss(context: Tensor) -> float:
        text = embed_classes(frame_prompts(vlm, data.classes), context)
        order = np.random.default_rng([0, 1]).permutation(course.chosen)[:3]
        total = 0.0
        for i in order.tolist():
            with torch.no_grad():
                feature = encode(vlm.vision, vlm.preprocess(data.image(i))[None].double()).feature[0]
            p = (vlm.logit_scale * (text @ feature)).softmax(-1)
            total -= float(p[data.labels[i]].log())
        return total / 3

    start = course.learned["context"].detach().clone()
    course.advance()
    assert course.loss == pytest.approx(loss(start), abs=1e-9)
    for at in [(0, 0), (2, 64), (3, 127)]:
        moved = [start.clone(), start.clone()]
        moved[0][at] += 1e-5
        moved[1][at] -= 1e-5
        g = (loss(moved[0]) - loss(moved[1])) / 2e-5 + 5e-4 * float(start[at])
        found = course.learned["context"].detach()[at].item()
        assert found == pytest.approx(float(start[at]) - 0.05 * g, abs=1e-8)  # half way down the cosine


@pytest.mark.parametrize("crops", [True, False])
def test_it_goes_on_exactly_where_it_was(crops: bool, tmp_path: Path) -> None:
    vlm, data = lessmore.load("tiny"), drawn(30, 1)
    training = Training(shots=2, epochs=2, batch=5, crops=crops, lr=0.05)
    whole, parts = tmp_path / "whole.safetensors", tmp_path / "parts.safetensors"
    assert train_prompt(vlm, data, whole, training, quiet=True)
    for after in (1, 3):
        stop = stopper(after)
        assert not train_prompt(vlm, data, parts, training, quiet=True, stop=lambda stop=stop: next(stop))
        assert not parts.exists()
    assert train_prompt(vlm, data, parts, training, quiet=True)
    assert torch.equal(load_file(whole)["context"], load_file(parts)["context"])
    assert not torch.equal(load_file(whole)["context"], frame_prompts(vlm, data.classes).start)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["parts.safetensors", "whole.safetensors"]


def test_what_is_done_is_left_alone_unless_overwritten(tmp_path: Path) -> None:
    vlm, data, file = lessmore.load("tiny"), drawn(20, 1), tmp_path / "c.safetensors"
    training = Training(shots=1, epochs=1, crops=False)
    train_prompt(vlm, data, file, training, quiet=True)
    before = file.stat().st_mtime_ns
    assert train_prompt(vlm, data, file, training, quiet=True) and file.stat().st_mtime_ns == before
    with pytest.raises(ConfigError, match="another shots"):
        train_prompt(vlm, data, file, replace(training, shots=2), quiet=True)
    assert train_prompt(vlm, data, file, replace(training, shots=2), quiet=True, overwrite=True)


def test_few_shots_are_drawn_class_by_class() -> None:
    data = drawn(80, 1)
    chosen = few_shots(data, 3, 0)
    labels = [data.labels[i] for i in chosen]
    assert [labels.count(c) for c in range(8)] == [min(3, data.labels.count(c)) for c in range(8)]
    assert chosen == few_shots(data, 3, 0) != few_shots(data, 3, 1)
    assert len(few_shots(data, 1000, 0)) == 80


def test_the_published_course() -> None:
    assert (Training().epochs, Training().batch) == (50, 32)
    assert (Training("cocoop").epochs, Training("cocoop").batch) == (10, 1)
    rates = [learning_rate(Training(), epoch) for epoch in range(50)]
    assert rates[0] == 1e-5 and rates[25] == pytest.approx(1e-3) and rates[49] < 1e-5
    assert all(a > b for a, b in itertools.pairwise(rates[1:]))
    with pytest.raises(ConfigError, match="nothing to train"):
        Training("tca")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="from 1"):
        Training(shots=0)


def untrained(file: Path, method: str = "coop") -> PromptTraining:
    """A context as it begins, written as if it had been learnt."""
    vlm, data = lessmore.load("tiny"), drawn(20, 1)
    train_prompt(vlm, data, file, Training(method, shots=1, epochs=1, batch=8, crops=False), quiet=True)  # type: ignore[arg-type]
    return begin_training(vlm, data, Training(method))  # type: ignore[arg-type]


def test_a_context_serves_other_classes_and_is_known_by_its_content(tmp_path: Path) -> None:
    file = tmp_path / "c.safetensors"
    untrained(file)
    coop = make_method("coop", given(classes=("red plain star", "blue plain ring"), context=str(file)))
    assert isinstance(coop, CoOp) and coop.text.shape == (2, 128) and coop.facts.learnable_parameters == 512
    assert coop.macs() == coop.setup.image_macs() + 2 * 128
    image = torch.zeros(1, 3, 64, 64)
    assert torch.equal(coop.predict(image).scores, coop.answer(encode(coop.setup.vision, image)).scores)
    with pytest.raises(ConfigError, match="sha256"):
        make_method("coop", given(context=str(file), sha256="0" * 64))


def test_files_that_do_not_belong_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "c.safetensors"
    untrained(file)
    with pytest.raises(ConfigError, match="train-prompt"):
        make_method("coop", given())
    with pytest.raises(ConfigError, match="check the path"):
        make_method("coop", given(context=str(tmp_path / "none")))
    with pytest.raises(ConfigError, match="another text tower"):
        make_method("coop", given("tiny-siglip", context=str(file)))
    with pytest.raises(ConfigError, match="learnt by coop, not cocoop"):
        make_method("cocoop", given(context=str(file)))
    (tmp_path / "text").write_text("no")
    with pytest.raises(ConfigError, match="not a readable file of the form lessmore.context"):
        make_method("coop", given(context=str(tmp_path / "text")))
    save_file({"context": torch.zeros(4, 128)}, tmp_path / "bare")
    with pytest.raises(ConfigError, match="not a readable file of the form lessmore.context"):
        make_method("coop", given(context=str(tmp_path / "bare")))
    half = given(context=str(file))
    narrow = half.model.to(dtype=torch.bfloat16)
    loaded = make_method("coop", replace(half, vlm=narrow, vision=narrow.vision))
    assert isinstance(loaded, CoOp) and loaded.text.dtype == torch.float32


def test_the_command_trains_and_the_context_classifies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = drawn(24, 1)
    for i in range(len(data)):
        place = tmp_path / "train" / data.classes[data.labels[i]].replace(" ", "_")
        place.mkdir(parents=True, exist_ok=True)
        data.image(i).save(place / f"{i}.png")
    file = tmp_path / "ctx.safetensors"
    train = ["train-prompt", "--model", "tiny", "--dataset", f"folder:{tmp_path}/train", "--shots", "1"]
    assert main([*train, "--epochs", "2", "--crops", "false", "--output", str(file)]) == 0
    assert "coop on 1 images" in capsys.readouterr().out
    with safe_open(file, framework="pt") as opened:
        assert opened.metadata()["schema"] == "lessmore.context/2"
    adapter = lessmore.adapt("tiny", data.classes, method="coop", context=str(file), cache=False)
    assert adapter(data.image(0)).label in data.classes
    assert main([*train, "--output", str(tmp_path / "ctx.pt")]) == 1
    assert main(["train-prompt", "--model", "tiny", "--dataset", "imagenet", "--output", str(file)]) == 1
    assert "folder:PATH" in capsys.readouterr().err
