"""CoOp: zero-shot classification with a context learnt from a few labelled images (`lessmore train-prompt`)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import Tensor

from lessmore.core.costs import Accounting
from lessmore.core.encoder import Encoded, encode
from lessmore.errors import ConfigError, StateError
from lessmore.methods.context import (
    MOST_BYTES,
    PromptFrame,
    check_learned,
    embed_classes,
    frame_prompts,
    read_context,
)
from lessmore.methods.registry import Episodic, Facts, Outcome, Setup, register_method
from lessmore.methods.zeroshot import zero_shot_logits
from lessmore.storage.files import read_file


@dataclass(frozen=True)
class CoOpOptions:
    """What CoOp and CoCoOp need."""

    context: str = ""
    """File of the learned context; it serves any class list of the model it was learnt with."""
    sha256: str = ""
    """Hash of that file, which goes into results. Computed if not given; if given, it must match."""

    def __post_init__(self) -> None:
        """Validate once; every later use may trust the values."""
        if not self.context:
            raise ConfigError(
                "this method needs a learned context; make one with lessmore train-prompt and give its file as context="
            )
        try:
            found = hashlib.sha256(read_file(Path(self.context), MOST_BYTES)).hexdigest()
        except (OSError, ValueError) as error:  # a name with a null byte is a ValueError
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"the context {self.context!r} cannot be read ({reason}); check the path") from error
        except StateError as error:
            raise ConfigError(str(error)) from error
        if self.sha256 not in ("", found):
            raise ConfigError(f"{self.context} is not the file of that sha256; give the right one, or no sha256")
        object.__setattr__(self, "sha256", found)  # the dataclass is frozen


Beginning = Callable[[PromptFrame, int], dict[str, Tensor]]
"""Makes tensors of the names and shapes that a method learns, from the prompts and E, the length of features."""


def load_learned(setup: Setup, path: str, method: str, begin: Beginning) -> tuple[PromptFrame, dict[str, Tensor]]:
    """The prompts of the setup's classes, and the learned tensors.

    Args:
        setup: Gives the model and the class names.
        path: A file of `lessmore train-prompt`.
        method: The method that must have learnt it, `coop` or `cocoop`.
        begin: What it learns, before it has learnt.

    Raises:
        ConfigError: The file cannot be used, or another method wrote it.
    """
    tensors, facts = read_context(Path(path), setup.model)
    if facts["method"] != method:
        raise ConfigError(f"{path} was learnt by {facts['method']}, not {method}; choose that method, or train again")
    framed = frame_prompts(setup.model, setup.classes, facts["words"])
    check_learned(Path(path), tensors, facts, begin(framed, setup.model.vision.shape.embed))
    return framed, {name: tensor.to(framed.start) for name, tensor in tensors.items()}


@register_method("coop", CoOpOptions)
class CoOp(Episodic):
    """The class whose learned prompt is nearest; nothing is remembered."""

    method = "coop"
    wants: Literal["feature"] = "feature"

    def __init__(self, setup: Setup, options: CoOpOptions) -> None:
        self.setup = setup
        self.frame, self.learned = load_learned(setup, options.context, self.method, self.begin)
        weights = sum(v.numel() for k, v in self.learned.items() if not k.endswith("bias"))
        self.facts = Facts(training_free=False, kind="episodic", learnable_parameters=weights)
        self.prepare()

    @staticmethod
    def begin(frame: PromptFrame, embed: int) -> dict[str, Tensor]:
        """The context before it has learnt.

        Args:
            frame: The prompts.
            embed: E, length of the features; not looked at.
        """
        return {"context": frame.start.clone()}

    def prepare(self) -> None:
        """Embed the classes once."""
        self.text = embed_classes(self.frame, self.learned["context"])

    def embeddings(self, feature: Tensor) -> Tensor:
        """Class embeddings [C, E] for an image's feature [E]."""
        return self.text

    def predict(self, pixels: Tensor) -> Outcome:
        """Answer one preprocessed image [1, 3, H, W]."""
        return self.answer(encode(self.setup.vision, pixels, self.setup.preset.condensation))

    def answer(self, encoded: Encoded) -> Outcome:
        """Answer an encoded image."""
        logits = zero_shot_logits(encoded, self.setup.text, self.setup.logit_scale)[0]
        learned = zero_shot_logits(encoded, self.embeddings(encoded.feature[0]), self.setup.logit_scale)[0]
        return Outcome(logits, learned.softmax(dim=-1), logits.softmax(dim=-1), None, encoded.steps)

    def macs(self, accounting: Accounting = "matmul") -> int:
        """One pass of the tower, and the learned logits in addition to the zero-shot ones.

        Args:
            accounting: See `Method.macs`.
        """
        beside = self.setup.text.numel() if accounting == "matmul" else 0
        return self.setup.image_macs(accounting) + beside
