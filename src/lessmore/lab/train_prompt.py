"""Learning a context from a few labelled images per class, for the methods `coop` and `cocoop`.

Every random choice follows from the seed and the number of the step, and a step's state is a handful of small tensors.
Training that was cut off therefore resumes exactly.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from lessmore.core.encoder import encode
from lessmore.data.dataset import Dataset
from lessmore.errors import ConfigError
from lessmore.methods.cocoop import begin_conditioned, conditioned_context
from lessmore.methods.context import (
    WORDS,
    PromptFrame,
    check_learned,
    embed_classes,
    frame_prompts,
    read_context,
    write_context,
)
from lessmore.methods.views import ViewOptions, make_views
from lessmore.models.vlm import VLM
from lessmore.prompts import class_names

_WARM_UP = 1e-5  # learning rate of the first epoch
_DECAY, _MOMENTUM = 5e-4, 0.9
_PAUSE = 20.0  # seconds between two saves
_CROP = ViewOptions(views=2)  # the plain image and the one crop that is wanted


@dataclass(frozen=True)
class Training:
    """How a context is learnt; the defaults are the published ones."""

    method: Literal["coop", "cocoop"] = "coop"
    shots: int = 16
    """Images per class."""
    epochs: int = 0
    """0 means the method's own: 50 for CoOp, 10 for CoCoOp."""
    batch: int = 0
    """Images per step; 0 means the method's own: 32 for CoOp, 1 for CoCoOp."""
    lr: float = 2e-3
    words: str = WORDS
    """What the context starts as."""
    crops: bool = True
    """Learn from random crops, as published; else from the whole images, which are then encoded only once."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Fill in what the method decides, and validate."""
        if self.method not in ("coop", "cocoop"):
            raise ConfigError(f"method={self.method!r} has nothing to train; choose coop or cocoop")
        epochs, batch = (50, 32) if self.method == "coop" else (10, 1)
        object.__setattr__(self, "epochs", self.epochs or epochs)
        object.__setattr__(self, "batch", self.batch or batch)
        if min(self.shots, self.epochs, self.batch) < 1 or not self.lr > 0:
            raise ConfigError("shots, epochs and batch are numbers from 1, and lr is positive; correct them")


@dataclass
class PromptTraining:
    """A training in progress: what is learnt, and how far it is."""

    vlm: VLM
    dataset: Dataset
    training: Training
    chosen: list[int]
    """Numbers of the images."""
    frame: PromptFrame
    learned: dict[str, Tensor]
    optimiser: torch.optim.SGD
    step: int = 0
    loss: float = math.nan
    """Of the last step."""
    encoded: dict[int, Tensor] = field(default_factory=dict)
    """Features [E] of whole images, by number."""

    @property
    def steps_per_epoch(self) -> int:
        """Batches it takes to see every image once; the last may be smaller."""
        return math.ceil(len(self.chosen) / self.training.batch)

    @property
    def steps(self) -> int:
        """Steps of the whole training."""
        return self.training.epochs * self.steps_per_epoch

    def advance(self) -> None:
        """One step."""
        epoch, batch = divmod(self.step, self.steps_per_epoch)
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate(self.training, epoch)
        order = np.random.default_rng([self.training.seed, epoch]).permutation(self.chosen)
        size = self.training.batch
        numbers = [int(i) for i in order[batch * size : (batch + 1) * size]]
        labels = torch.tensor([self.dataset.labels[i] for i in numbers], device=self.vlm.device)
        self.optimiser.zero_grad()
        loss = self._loss(self._features(numbers, epoch), labels)
        loss.backward()
        self.optimiser.step()
        self.step, self.loss = self.step + 1, loss.item()

    @torch.no_grad()
    def _features(self, numbers: list[int], epoch: int) -> Tensor:
        """Features `[B, E]` of images. Crops follow from seed and epoch; whole images are encoded once."""
        if self.training.crops:
            seed = self.training.seed * 100_003 + epoch  # a large prime keeps the epochs of two seeds apart
            return self._encode([make_views(self.vlm, self.dataset.image(i), seed, _CROP)[1] for i in numbers])
        for i in numbers:  # one by one: in a batch the others may change an image's last bits
            if i not in self.encoded:
                self.encoded[i] = self._encode([self.vlm.preprocess(self.dataset.image(i))])[0]
        return torch.stack([self.encoded[i] for i in numbers])

    def _encode(self, images: list[Tensor]) -> Tensor:
        alike = len({image.shape for image in images}) == 1
        batches = [torch.stack(images)] if alike else [image.unsqueeze(0) for image in images]
        vlm = self.vlm
        features = [encode(vlm.vision, pixels.to(vlm.device, vlm.dtype)).feature for pixels in batches]
        return torch.cat(features).to(self.frame.start.dtype)

    def _loss(self, feature: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy of labels `[B]` for images with features `[B, E]` under the learned prompts."""
        if self.training.method == "coop":
            logits = feature @ embed_classes(self.frame, self.learned["context"]).T
        else:
            text = embed_classes(self.frame, conditioned_context(self.learned, feature))
            logits = (text @ feature.unsqueeze(-1)).squeeze(-1)
        return F.cross_entropy(self.vlm.logit_scale * logits, labels)

    def tensors(self) -> dict[str, Tensor]:
        """All that the next step depends on."""
        momenta = {f"momentum.{k}": self.optimiser.state[v].get("momentum_buffer") for k, v in self.learned.items()}
        return {**self.learned, **{k: v for k, v in momenta.items() if v is not None}}

    def resume_from(self, tensors: dict[str, Tensor], step: int) -> None:
        """Resume from a saved state.

        Args:
            tensors: What `tensors()` returned.
            step: Steps done by then.
        """
        self.step = step
        for name, weight in self.learned.items():
            weight.data.copy_(tensors[name])
            if f"momentum.{name}" in tensors:
                self.optimiser.state[weight]["momentum_buffer"] = tensors[f"momentum.{name}"].to(weight, copy=True)


def few_shots(dataset: Dataset, shots: int, seed: int) -> list[int]:
    """Numbers of a few images of every class; all of them where there are fewer.

    Args:
        dataset: Where to draw from.
        shots: Images per class.
        seed: Seeds the draw.
    """
    rng = np.random.default_rng([seed, shots])
    labels = np.asarray(dataset.labels)
    drawn = (rng.permutation(np.flatnonzero(labels == c))[:shots] for c in range(len(dataset.classes)))
    return [int(i) for part in drawn for i in part]


def learning_rate(training: Training, epoch: int) -> float:
    """Learning rate of an epoch: a small one for the first, then half a cosine down to zero.

    Args:
        training: Gives the peak rate and the number of epochs.
        epoch: From 0.
    """
    return _WARM_UP if epoch == 0 else training.lr * (1 + math.cos(math.pi * epoch / training.epochs)) / 2


def begin_training(vlm: VLM, dataset: Dataset, training: Training) -> PromptTraining:
    """A training before its first step.

    Args:
        vlm: The model whose text tower the context is for; its weights stay as they are.
        dataset: Labelled images.
        training: How to learn.
    """
    framed = frame_prompts(vlm, class_names(dataset.classes), training.words)
    learned = {"context": framed.start.clone()}
    if training.method == "cocoop":
        learned = begin_conditioned(framed, vlm.vision.shape.embed, torch.Generator().manual_seed(training.seed))
    for weight in learned.values():
        weight.requires_grad_()
    optimiser = torch.optim.SGD(learned.values(), training.lr, momentum=_MOMENTUM, weight_decay=_DECAY)
    return PromptTraining(
        vlm, dataset, training, few_shots(dataset, training.shots, training.seed), framed, learned, optimiser
    )


def train_prompt(
    vlm: VLM,
    dataset: Dataset,
    output: Path,
    training: Training,
    *,
    overwrite: bool = False,
    quiet: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Learn a context and write it. A training that was cut off is resumed, and a finished one left alone.

    Args:
        vlm: The model whose text tower the context is for.
        dataset: Labelled images.
        output: File for the context; an unfinished state is kept beside it.
        training: How to learn.
        overwrite: Start over, even if the training is finished.
        quiet: No progress bar.
        stop: Asked after every step; once it is true the state is saved and the training stops.

    Returns:
        False if it was stopped.

    Raises:
        ConfigError: The output belongs to another training.
    """
    course, partial = begin_training(vlm, dataset, training), output.with_name(f"{output.name}.partial")
    facts = _facts(course)
    if overwrite:
        partial.unlink(missing_ok=True)
    elif output.exists():
        _same(output, facts, vlm)
        return True
    elif partial.exists():
        course.resume_from(*_unfinished(partial, course, facts))
    if not _run(course, lambda: _save(partial, course, facts), quiet, stop):
        return False
    write_context(output, vlm, course.learned, {**facts, "step": course.step, "loss": course.loss})
    partial.unlink(missing_ok=True)
    return True


def _run(course: PromptTraining, save: Callable[[], None], quiet: bool, stop: Callable[[], bool]) -> bool:
    """All remaining steps, saved now and then; False if stopped before the last."""
    saved = time.monotonic()
    with tqdm(total=course.steps, initial=course.step, unit="step", disable=quiet or None) as bar:
        while course.step < course.steps:
            course.advance()
            epoch = (course.step - 1) // course.steps_per_epoch + 1
            bar.set_postfix_str(f"epoch {epoch}/{course.training.epochs}, loss {course.loss:.3f}", refresh=False)
            bar.update()
            stopped = course.step < course.steps and stop()
            if stopped or time.monotonic() - saved > _PAUSE:
                save()
                saved = time.monotonic()
            if stopped:
                return False
    return True


def _facts(course: PromptTraining) -> dict[str, Any]:
    """What the file says about itself, and what a resumed training must agree with."""
    asked = asdict(course.training)
    return {**asked, "model": course.vlm.fingerprint(), "dataset": course.dataset.fingerprint()}


def _save(path: Path, course: PromptTraining, facts: dict[str, Any]) -> None:
    write_context(path, course.vlm, course.tensors(), {**facts, "step": course.step})


def _unfinished(path: Path, course: PromptTraining, facts: dict[str, Any]) -> tuple[dict[str, Tensor], int]:
    """Tensors and step of a file that `_save` wrote."""
    tensors, theirs = _same(path, facts, course.vlm)
    momenta = {f"momentum.{name}": weight for name, weight in course.learned.items()}
    check_learned(path, tensors, theirs, {**course.learned, **momenta})
    step = theirs.get("step")
    if type(step) is not int or not 0 < step < course.steps:
        raise ConfigError(f"{path} does not say how far it is; start again with --overwrite")
    return tensors, step


def _same(path: Path, facts: dict[str, Any], vlm: VLM) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and facts of a file that the same training wrote."""
    tensors, theirs = read_context(path, vlm)
    other = [name for name, value in facts.items() if theirs.get(name) != value]
    if other:
        raise ConfigError(f"{path} was trained with another {other[0]}; choose another output, or overwrite it")
    return tensors, theirs
