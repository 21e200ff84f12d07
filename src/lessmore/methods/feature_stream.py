"""What online methods on final features have in common; they differ in their state and in one step of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from lessmore.core.costs import Accounting
from lessmore.core.encoder import Encoded, encode
from lessmore.errors import StateError
from lessmore.methods.registry import Facts, Outcome, Setup
from lessmore.methods.zeroshot import zero_shot_logits

S = TypeVar("S", bound=NamedTuple)
Options = TypeVar("Options")


@dataclass(frozen=True)
class Stepped(Generic[S]):
    """One image, answered and learnt from. No named tuple, because Python 3.10 has no generic ones."""

    scores: Tensor
    """Final probabilities, `[C]`."""
    state: S
    """The state after the image."""
    stored: Tensor | None = None
    """Whether the image entered a memory, `[]` bool; None where there is no memory of images."""


class FeatureStream(ABC, Generic[S, Options]):
    """Holds the state of a stream, a named tuple of tensors whose shapes never change, and the method's options."""

    facts = Facts(training_free=True, kind="online")
    wants: Literal["feature"] = "feature"

    def __init__(self, setup: Setup, options: Options) -> None:
        """Begin a stream.

        Args:
            setup: The model, the class embeddings and the settings.
            options: The method's own settings.
        """
        self.setup = setup
        self.options = options
        self.text = setup.class_texts.text
        self.stream = self.empty()

    @abstractmethod
    def empty(self) -> S:
        """The state of a stream that has not begun."""

    @abstractmethod
    def step(self, state: S, feature: Tensor, logits: Tensor) -> Stepped[S]:
        """Answer one image and learn from it.

        Args:
            state: The state before the image. Its tensors may be changed in place.
            feature: L2-normalised and finite, `[E]`.
            logits: Zero-shot, `[C]`.
        """

    def matmul_macs(self) -> int:
        """Multiply-accumulates of the matrix products of a step."""
        return 0

    def solver_macs(self) -> int:
        """Those of its factorisations, solves and sparse products, which torch's counter does not see."""
        return 0

    def predict(self, pixels: Tensor) -> Outcome:
        """Answer one preprocessed image `[1, 3, H, W]` and learn from it."""
        return self.answer(encode(self.setup.vision, pixels, self.setup.preset.condensation))

    def answer(self, encoded: Encoded) -> Outcome:
        """Answer an encoded image and learn from it. One whose feature is not finite changes nothing."""
        feature = encoded.feature[0]
        logits = zero_shot_logits(encoded, self.setup.text, self.setup.logit_scale)[0]
        zero_shot = logits.softmax(dim=-1)
        if not bool(logits.isfinite().all() & feature.isfinite().all()):
            return Outcome(logits, zero_shot, zero_shot, None, encoded.steps)
        done = self.step(self.stream, feature, logits)
        self.stream = done.state
        return Outcome(logits, done.scores, zero_shot, done.stored, encoded.steps)

    def reset(self) -> None:
        """Forget the stream."""
        self.stream = self.empty()

    def state(self) -> dict[str, Tensor]:
        """The state's tensors, copied."""
        return {name: tensor.clone() for name, tensor in self.stream._asdict().items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a `state()` of whatever device.

        Raises:
            StateError: A tensor is missing, or has another shape or type than this method's.
        """
        like = self.empty()._asdict()
        for name, tensor in like.items():
            found = state.get(name)
            if found is None or (found.shape, found.dtype) != (tensor.shape, tensor.dtype):
                raise StateError(f"the saved state's {name!r} does not fit this method; start with reset()")
        tensors: dict[str, Any] = {name: state[name].to(tensor.device, copy=True) for name, tensor in like.items()}
        self.stream = self.stream._replace(**tensors)

    def slots(self) -> Tensor | None:
        """Which slots of the memory are in use, `[C, M]` bool; None where there is no memory by class."""
        return None

    def macs(self, accounting: Accounting = "matmul") -> int:
        """One pass of the tower and, in `matmul`, one step.

        Args:
            accounting: See `Method.macs`.
        """
        own = self.matmul_macs() + self.solver_macs() if accounting == "matmul" else 0
        return self.setup.image_macs(accounting) + own

    def count(self) -> Tensor:
        """A zero for counting images, `[]` int64."""
        return torch.zeros((), dtype=torch.int64, device=self.text.device)


def stream_progress(images: Tensor, classes: int, horizon: int) -> Tensor:
    """How far a stream has come, from 0 to 1, as some methods weigh their own estimates.

    With a known number T of images it is t/T. Otherwise it is t/(t + C): the weight that t images have against one
    assumed image of every class (Laplace's rule of succession).

    Args:
        images: t, images seen so far including the present one, `[]`.
        classes: C, the number of classes.
        horizon: T, or 0 where it is unknown.
    """
    t = images.to(torch.float64)
    return (t / horizon).clamp_max(1) if horizon else t / (t + classes)
