"""Prompts whose first words are learnt: context vectors in, class embeddings out, through our own text tower.

    prompt of class c = [start mark] v₁ … vₙ [name of c] [.] [end mark]

The vectors start as the embeddings of a few words; the tower itself is frozen.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lessmore.core.costs import Accounting, Costs, costs
from lessmore.core.encoder import PLAIN
from lessmore.core.text import TextTower
from lessmore.errors import ConfigError, ModelError, StateError
from lessmore.methods.registry import Setup
from lessmore.models.vlm import VLM
from lessmore.prompts import spoken
from lessmore.storage.sealed import read_tensors, write_tensors
from lessmore.storage.state import Form, finite_problem, form_problem

WORDS = "a photo of a"
"""What context vectors usually start as."""
SCHEMA = "lessmore.context/2"
MOST_BYTES = 1 << 28
"""The largest file of a context."""
_LARGEST = 1e6  # embeddings of words are of the order of 0.1, and learning moves them by little
_REMEDY = "make one with lessmore train-prompt"
_ROWS = 256  # prompts whose activations are kept at a time; beyond that they are recomputed for the gradient


@dataclass(frozen=True)
class PromptFrame:
    """Everything in the prompts of a class list except their context."""

    tower: TextTower
    """In float32 or wider, so that gradients are too."""
    tokens: Tensor
    """`[C, T]`; at the context's place, the ids of the words it starts as."""
    first: int
    """Position of the first context vector."""
    start: Tensor
    """The vectors of those words, [n, D]."""

    def macs(self, setup: Setup, accounting: Accounting = "matmul") -> int:
        """Multiply-accumulates of all prompts through the text tower, once.

        Args:
            setup: Gives the vision tower, which the count needs for its shape only.
            accounting: `matmul` counts prompts at their own length, `paper` at the tower's full context length.
        """
        return self._costs(setup, accounting).text

    def gradient_macs(self, setup: Setup) -> int:
        """Those of embedding all prompts and backpropagating to their words.

        More prompts than are kept in memory at a time are embedded twice, because their activations are recomputed.
        """
        spent = self._costs(setup, "matmul")
        return (1 if len(self.tokens) <= _ROWS else 2) * spent.text + spent.text_gradient

    def _costs(self, setup: Setup, accounting: Accounting) -> Costs:
        shape, (C, T) = self.tower.shape, self.tokens.shape
        shape = shape if accounting == "paper" else replace(shape, context=T)
        return costs(setup.vision.shape, PLAIN, text=shape, prompts=C, accounting=accounting)


def frame_prompts(vlm: VLM, classes: Sequence[str], words: str = WORDS) -> PromptFrame:
    """Prompts of a class list with room for a context.

    Args:
        vlm: The model; its tokenizer and text tower are used.
        classes: Class names.
        words: What the context starts as; its token count is the context's length n.

    Raises:
        ModelError: The tokenizer cuts the words off, or merges them with a class name.
    """
    # The tokenizer is a black box: where these rows begin to differ tells where the words start and end.
    empty, alone, twice, *rows = vlm.tokenize(
        ["", words, f"{words} {words}", *(f"{words} {spoken(c)}." for c in classes)]
    )
    first, end = _shared(empty, alone), _shared(alone, twice)
    if not first < end < len(alone) or any(_shared(alone, row) < end for row in rows):
        raise ModelError(
            f"the tokenizer leaves no room after {words!r}, or joins it with a name; begin with other words"
        )
    tower = at_least_float32(vlm.text)
    tokens = tower.trim(torch.stack(rows)).to(vlm.device)
    return PromptFrame(tower, tokens, first, tower.embed(tokens[0, first:end]).detach())


def at_least_float32(tower: TextTower) -> TextTower:
    """The tower itself, or a float32 copy of a half-precision one."""
    dtype = torch.promote_types(tower.positions.dtype, torch.float32)
    return tower if dtype == tower.positions.dtype else copy.deepcopy(tower).to(dtype)


def _shared(a: Tensor, b: Tensor) -> int:
    """Length of the common prefix of two rows of ids `[T]`."""
    return int(torch.eq(a, b).cumprod(dim=0).sum())


def embed_classes(frame: PromptFrame, context: Tensor) -> Tensor:
    """Normalised class embeddings, `[..., C, E]`.

    Args:
        frame: The class list's prompts.
        context: Context vectors, `[..., n, D]`; leading dimensions are images with a context each.
    """
    embedded = frame.tower.embed(frame.tokens).expand(*context.shape[:-2], -1, -1, -1)
    C, n = len(frame.tokens), context.shape[-2]
    vectors = context.unsqueeze(-3).expand(*context.shape[:-2], C, -1, -1)
    before, after = embedded[..., : frame.first, :], embedded[..., frame.first + n :, :]
    x = torch.cat([before, vectors, after], dim=-2)
    features = _encode(frame.tower, x.flatten(0, -3), frame.tokens.repeat(x.shape[:-3].numel(), 1))
    return F.normalize(features, dim=-1).view(*x.shape[:-2], -1)


def _encode(tower: TextTower, x: Tensor, tokens: Tensor) -> Tensor:
    """Embeddings `[B, T, D]` → features `[B, E]`; many are encoded in parts."""
    if len(x) <= _ROWS:
        return tower.encode_embeddings(x, tokens)
    parts = zip(x.split(_ROWS), tokens.split(_ROWS), strict=True)
    run = tower.encode_embeddings
    return torch.cat([checkpoint(run, *part, use_reentrant=False, preserve_rng_state=False) for part in parts])


def write_context(path: Path, vlm: VLM, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write a learned context to a sealed file.

    Args:
        path: The file.
        vlm: The model it was learnt with, named in the file by its text tower.
        tensors: `context` `[n, D]` and what else belongs to it.
        facts: At least `method` and `words`.

    Raises:
        OSError: The file cannot be written.
    """
    write_tensors(path, tensors, SCHEMA, {**facts, "text_tower": _identity(vlm)})


def read_context(path: Path, vlm: VLM) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors, for `check_learned`, and facts of a file that was learnt with this model's text tower.

    Args:
        path: A file of `write_context`.
        vlm: The model; tensors are put on its device.

    Raises:
        ConfigError: The file is missing, damaged, or belongs to another text tower.
    """
    try:
        tensors, facts = read_tensors(path, SCHEMA, MOST_BYTES, _REMEDY)
    except FileNotFoundError as error:
        raise ConfigError(f"there is no context {path}; {_REMEDY}") from error
    except StateError as error:
        raise ConfigError(str(error)) from error
    ours, theirs = _identity(vlm), facts.get("text_tower")
    if not isinstance(theirs, dict) or theirs.keys() != ours.keys():
        raise ConfigError(f"{path} does not say which text tower it was learnt with; {_REMEDY}")
    comparable = ours["dtype"] == theirs["dtype"]
    if ours["shape"] != theirs["shape"] or (comparable and ours["weights"] != theirs["weights"]):
        raise ConfigError(
            f"{path} was learnt with another text tower; load that model, or train a context for this one"
        )
    told = [facts.get(name) for name in ("method", "words")]
    if not all(isinstance(one, str) and one and one.isprintable() for one in told):  # half a letter is not printable
        raise ConfigError(f"{path} does not say how it was learnt; {_REMEDY}")
    return {name: tensor.to(vlm.device) for name, tensor in tensors.items()}, facts


def check_learned(
    path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], like: Mapping[str, Tensor]
) -> None:
    """Refuse tensors of a context that cannot be what was learnt.

    Args:
        path: The file, for the error.
        tensors: What `read_context` found.
        facts: What it said of them.
        like: Tensors of the names and shapes that they must have.

    Raises:
        ConfigError: They are others, or no learning gets there.
    """
    written = torch.float64 if facts["text_tower"]["dtype"] == "torch.float64" else torch.float32
    forms = {name: Form(written, tuple(tensor.shape)) for name, tensor in like.items()}
    # The forms come first: of some types torch cannot even say whether they are finite.
    told = {name: tensor for name, tensor in tensors.items() if not tensor.is_meta}  # a blank model has no numbers
    if reason := form_problem(tensors, forms) or finite_problem(told) or _range_problem(told):
        raise ConfigError(f"{path} makes no sense: {reason}; {_REMEDY}")


def _range_problem(tensors: Mapping[str, Tensor]) -> str | None:
    far = next((name for name, tensor in tensors.items() if bool((tensor.abs() > _LARGEST).any())), None)
    return None if far is None else f"{far} has a number out of range"


def _identity(vlm: VLM) -> dict[str, str]:
    """The text tower a context belongs to; weights can be compared only at the same precision."""
    tower = vlm.text
    return {"shape": repr(tower.shape), "dtype": str(tower.positions.dtype), "weights": vlm.text_fingerprint()}
