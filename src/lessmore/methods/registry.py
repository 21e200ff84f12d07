"""The contract of a method, and the registry of methods by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol, get_type_hints, runtime_checkable

from PIL import Image
from torch import Tensor

from lessmore.config import Adaptation, Condensation, Preset, check_value
from lessmore.core.class_list import by_rows
from lessmore.core.class_texts import ClassTexts
from lessmore.core.condense.source import Step
from lessmore.core.costs import Accounting, Costs, costs
from lessmore.core.debias import StreamMean
from lessmore.core.encoder import Encoded
from lessmore.core.vit import ViT
from lessmore.errors import ConfigError, unknown
from lessmore.models.vlm import VLM
from lessmore.registry import Registry


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
    vlm: VLM | None = None
    """The whole model, for methods that need its preprocessing (`views`) or its text tower (learned prompts)."""
    classes: tuple[str, ...] = ()
    """Class names, cleaned."""
    templates: tuple[str, ...] = ()
    """The templates that `text` was made from; functions among them are left out."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The method's own options that differ from their defaults."""
    groups: tuple[str, ...] = ()
    """The group of every class, where the class list has groups."""
    precision: str | None = None
    """In what an engine multiplies, see `lessmore.engines.precision`; None is the type of the weights."""
    calibration: Tensor | None = None
    """Preprocessed images that int8 is calibrated on, [N, 3, H, W]."""

    @cached_property
    def class_texts(self) -> ClassTexts:
        """The class embeddings in float32 or better, with what `lessmore.core.debias` needs to know of them."""
        return ClassTexts.of(self.text, self.logit_scale)

    @property
    def model(self) -> VLM:
        """The whole model, or an error that says it is missing."""
        if self.vlm is None:
            raise ConfigError("this method needs the whole model; give Setup its vlm, or use lessmore.adapt")
        return self.vlm

    def image_macs(self, accounting: Accounting = "matmul") -> int:
        """Multiply-accumulates of one image through the (condensing) tower, including its logits.

        Args:
            accounting: See `Method.macs`.
        """
        return self._costs(accounting).macs

    def gradient_macs(self) -> int:
        """Those of the backward pass through it, with frozen weights."""
        return self._costs("matmul").gradient

    def _costs(self, accounting: Accounting) -> Costs:
        return costs(self.vision.shape, self.preset.condensation, None, len(self.text), accounting=accounting)


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
    evidence: Tensor | None = None
    """Logits by which to judge how sure the answer is: those before any stored sample votes, [C]. None where the method
    has none."""


class Method(Protocol):
    """Turns images into predictions, one at a time, holding its state as named tensors."""

    facts: Facts

    def predict(self, pixels: Tensor) -> Outcome:
        """Answer one preprocessed image [1, 3, H, W] and adapt."""

    def reset(self) -> None:
        """Forget the stream."""

    def state(self) -> dict[str, Tensor]:
        """Everything learnt from the stream; independent copies."""

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on exactly from a `state()`."""

    def slots(self) -> Tensor | None:
        """Which slots of the memory are in use, [C, M] bool; None where there is no memory."""

    def macs(self, accounting: Accounting = "matmul") -> int:
        """Multiply-accumulates of one image.

        Args:
            accounting: `matmul` counts all that is spent: every view, backward pass and text pass, with a backward pass
                as two forward passes of what is differentiated. `paper` counts forward passes of the towers alone, like
                the paper's tables.
        """


@runtime_checkable
class FromEncoded(Protocol):
    """A method that can continue from an encoded image, so that encodings can be shared or computed in batches."""

    wants: Literal["feature", "tokens"] | None
    """What `answer` reads of an encoding; None where the encoder itself must see the stream's state."""

    def answer(self, encoded: Encoded) -> Outcome:
        """What `predict` answers for the image with this encoding (a batch of one)."""


@runtime_checkable
class KeepsOut(Protocol):
    """A method that can keep images out of its memory for being unlike all classes; see `lessmore.core.unknown`."""

    floor: float | None
    """The least likeness of the images that it stores from now on; None keeps none out."""


@runtime_checkable
class FromViews(Protocol):
    """A method that looks at several views of one image: its `predict` takes [V, 3, S, S], the plain one first."""

    def views(self, image: Image.Image | Tensor, seed: int) -> Tensor:
        """Views `[V, 3, S, S]`, the plain one first; the same arguments give the same views.

        Args:
            image: RGB, or preprocessed pixels `[3, S, S]`.
            seed: Seeds whatever is random, together with the image.
        """


@runtime_checkable
class Replayable(Protocol):
    """A method that says what an image did to its state, so that a journal of its stream stays small."""

    def delta(self) -> dict[str, Tensor]:
        """What the last image did; `redo` does it again, to the same bytes."""

    def redo(self, delta: Mapping[str, Tensor]) -> None:
        """Let an image in by its `delta`, on the state that stood before it.

        Raises:
            ValueError: It is not the delta of the next image.
        """


@runtime_checkable
class FollowsStream(Protocol):
    """A method that can debias its answers by the mean of its stream."""

    def stream_mean(self) -> StreamMean | None:
        """What debiasing remembers; zeros where it is off, None where the engine runs a method without it."""


class Episodic:
    """The part of a method that treats every image alone: there is nothing to forget, keep or restore."""

    follow_classes = staticmethod(by_rows())

    def reset(self) -> None:
        """Nothing to forget."""

    def state(self) -> dict[str, Tensor]:
        """Nothing to keep."""
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Nothing to restore."""

    def slots(self) -> None:
        """No memory."""


MethodMaker = Callable[..., Method]


class Registered(NamedTuple):
    """A method as the registry holds it.

    Its maker takes a setup and, if the method has options of its own, an instance of them.
    """

    maker: MethodMaker
    options: type | None = None


METHODS: Registry[Registered] = Registry("method", "lessmore.methods", adopt=Registered)
"""Every method by name."""

find_method = METHODS.find
"""The named method; one of an installed package is imported on first use."""


def register_method(name: str, options: type | None = None) -> Callable[[MethodMaker], MethodMaker]:
    """Decorator: register a method.

    Args:
        name: The name users write as `method=`.
        options: The frozen dataclass of the method's own settings, all of them with defaults and validated in
            `__post_init__`; an instance of it is the maker's second argument.

    Raises:
        ConfigError: The name belongs to another method.
    """

    def add(maker: MethodMaker) -> MethodMaker:
        METHODS.add(name, Registered(maker, options), source=maker)
        return maker

    return add


MethodName = (
    Literal[
        "batclip", "bca", "c-tpt", "cocoop", "coop", "deyo", "diff-tpt", "dota", "ecalp", "lsa", "mta", "neo", "oga"
    ]
    | Literal["onzeta", "sar", "stata", "tca", "tda", "tent", "tpt", "zero", "zeroshot"]
    | str
)
"""A name of `list_methods()`; those of installed packages are not spelled out."""


def list_methods() -> list[str]:
    """Names accepted by `method=`, including those of installed packages.

    Examples:
        >>> import lessmore
        >>> "tca" in lessmore.list_methods()
        True
    """
    return METHODS.names()


def split_options(name: str, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options by owner: first the method's own, then the preset's. A name that both have is the method's.

    Args:
        name: Name of the method.
        options: Options of either, by name.

    Raises:
        ConfigError: An option belongs to neither.
    """
    kind = find_method(name).options
    own = {f.name for f in fields(kind)} if kind else set()
    shared = {f.name for part in (Condensation, Adaptation) for f in fields(part)}
    for key in options:
        if key not in own | shared:
            raise ConfigError(unknown("option", key, own | shared))
    return {k: v for k, v in options.items() if k in own}, {k: v for k, v in options.items() if k not in own}


def method_options(name: str, options: Mapping[str, Any]) -> Any:
    """The method's own settings as its dataclass, or None if it has none.

    Args:
        name: Name of the method.
        options: Settings that replace defaults.

    Raises:
        ConfigError: An option is unknown, or its value has the wrong type or is out of range.
    """
    kind = find_method(name).options
    hints = get_type_hints(kind) if kind else {}
    for key, value in options.items():
        if key not in hints:
            raise ConfigError(unknown(f"option of {name}", key, hints))
        check_value(key, value, hints[key])
    return kind(**options) if kind else None


def make_method(name: str, setup: Setup) -> Method:
    """Build a method.

    Args:
        name: A name of `list_methods`.
        setup: The model, the class embeddings and the settings, including the method's own in `options`.

    Raises:
        ConfigError: The name or an option is unknown, or the setup lacks what the method needs.
    """
    found, options = find_method(name), method_options(name, setup.options)
    return found.maker(setup) if options is None else found.maker(setup, options)
