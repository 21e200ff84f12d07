"""The contract of a method, and methods by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from lessmore.condense.source import Step
from lessmore.config import Preset
from lessmore.encoder import Encoded
from lessmore.errors import ConfigError, unknown
from lessmore.vit import ViT


@dataclass(frozen=True)
class Facts:
    """What a method declares about itself."""

    training_free: bool
    kind: Literal["online", "episodic"]
    """Online methods remember the stream; episodic ones treat every image alone."""
    views: int = 1
    needs_gradients: bool = False
    learnable_parameters: int = 0


@dataclass(frozen=True)
class Setup:
    """What every method is built from."""

    vision: ViT
    text: Tensor
    """Class embeddings, [C, E], L2-normalised, in the tower's precision or better."""
    logit_scale: float
    preset: Preset


class Outcome(NamedTuple):
    """One image, answered; tensors stay on the device."""

    logits: Tensor
    """Zero-shot logits of the (condensed) feature, [C]."""
    scores: Tensor
    """Final probabilities, [C]."""
    zero_shot: Tensor
    """softmax(logits), [C]."""
    stored: Tensor | None
    """[] bool: whether the sample entered the method's memory; None where there is no memory."""
    steps: list[Step]
    """What the condensing blocks did."""


class Method(Protocol):
    """Turns images into predictions, one at a time, holding its state as named tensors."""

    facts: Facts

    def predict(self, pixels: Tensor) -> Outcome:
        """Answer one preprocessed image [1, 3, H, W] and adapt."""

    def reset(self) -> None:
        """Forget the stream."""

    def state(self) -> dict[str, Tensor]:
        """Everything that was learnt from the stream; independent copies."""

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on exactly from a `state()`."""

    def slots(self) -> Tensor | None:
        """Which slots of the memory are in use, [C, M] bool; None where there is no memory."""


@runtime_checkable
class FromEncoded(Protocol):
    """A method that can go on from an image already encoded, so that encodings may be shared or made in batches."""

    wants: Literal["feature", "tokens"] | None
    """What `answer` reads of an encoding; None where the encoder itself must see the stream's state."""

    def answer(self, encoded: Encoded) -> Outcome:
        """What `predict` answers for the image that this is the encoding of (a batch of one)."""


Maker = Callable[[Setup], Method]
_METHODS: dict[str, Maker] = {}


def register(name: str) -> Callable[[Maker], Maker]:
    """Decorator: make a method known under a name."""

    def add(maker: Maker) -> Maker:
        _METHODS[name] = maker
        return maker

    return add


def known() -> dict[str, Maker | None]:
    """Built-in methods and those of installed packages (entry point group `lessmore.methods`), not yet imported."""
    return {**{e.name: None for e in entry_points(group="lessmore.methods")}, **_METHODS}


def list_methods() -> list[str]:
    """Names accepted by `method=`."""
    return sorted(known())


def make(name: str, setup: Setup) -> Method:
    """Build the named method."""
    makers = known()
    if name not in makers:
        raise ConfigError(unknown("method", name, makers))
    maker = makers[name]
    if maker is None:
        (entry,) = entry_points(group="lessmore.methods", name=name)
        maker = entry.load()
    return maker(setup)
