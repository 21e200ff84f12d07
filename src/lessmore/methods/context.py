"""Prompts whose first words are learnt: context vectors in, class embeddings out, through our own text tower.

    prompt of class c = [start mark] v₁ … vₙ [name of c] [.] [end mark]

The vectors begin as the embeddings of a few words; the tower itself stays as it is.
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
from lessmore.storage.sealed import read_tensors, write_tensors
from lessmore.storage.state import finite_problem

WORDS = "a photo of a"
"""What context vectors usually begin as."""
SCHEMA = "lessmore.context/2"
_MOST = 1 << 28  # bytes of a file
_REMEDY = "make one with lessmore train-prompt"
_ROWS = 256  # prompts whose activations are kept at a time; those of more are computed again on the way back


@dataclass(frozen=True)
class Frame:
    """All that the prompts of a class list hold besides their context."""

    tower: TextTower
    """float32 at least, so that gradients are."""
    tokens: Tensor
    """[C, T]; the ids at the context's place stand for the words it begins as."""
    first: int
    """Position of the first context vector."""
    start: Tensor
    """The vectors of those words, [n, D]."""

    def macs(self, setup: Setup, accounting: Accounting = "matmul") -> int:
        """Multiply-accumulates of all prompts, once: as long as they are or, in `paper`, at full length."""
        return self._costs(setup, accounting).text

    def gradient_macs(self, setup: Setup) -> int:
        """Those of embedding all prompts and going back to their words; many prompts are embedded twice for it."""
        spent = self._costs(setup, "matmul")
        return (1 if len(self.tokens) <= _ROWS else 2) * spent.text + spent.text_gradient

    def _costs(self, setup: Setup, accounting: Accounting) -> Costs:
        shape, (C, T) = self.tower.shape, self.tokens.shape
        shape = shape if accounting == "paper" else replace(shape, context=T)
        return costs(setup.vision.shape, PLAIN, text=shape, prompts=C, accounting=accounting)


def frame(vlm: VLM, classes: Sequence[str], words: str = WORDS) -> Frame:
    """Frame the classes for a context that begins as `words`."""
    empty, alone, twice, *rows = vlm.tokenize(["", words, f"{words} {words}", *(f"{words} {c}." for c in classes)])
    first, end = _shared(empty, alone), _shared(alone, twice)
    if not first < end < len(alone) or any(_shared(alone, row) < end for row in rows):
        raise ModelError(
            f"the tokenizer leaves no room behind {words!r}, or joins it with a name; begin with other words"
        )
    tower = widened(vlm.text)
    tokens = tower.trim(torch.stack(rows)).to(vlm.device)
    return Frame(tower, tokens, first, tower.embed(tokens[0, first:end]).detach())


def widened(tower: TextTower) -> TextTower:
    """The tower itself, or a float32 copy of one that is narrower."""
    dtype = torch.promote_types(tower.positions.dtype, torch.float32)
    return tower if dtype == tower.positions.dtype else copy.deepcopy(tower).to(dtype)


def _shared(a: Tensor, b: Tensor) -> int:
    """How many ids two rows [T] begin alike with."""
    return int(torch.eq(a, b).cumprod(dim=0).sum())


def embed_classes(frame: Frame, context: Tensor) -> Tensor:
    """Context [..., n, D] → normalised class embeddings [..., C, E]."""
    embedded = frame.tower.embed(frame.tokens).expand(*context.shape[:-2], -1, -1, -1)
    C, n = len(frame.tokens), context.shape[-2]
    vectors = context.unsqueeze(-3).expand(*context.shape[:-2], C, -1, -1)
    before, behind = embedded[..., : frame.first, :], embedded[..., frame.first + n :, :]
    x = torch.cat([before, vectors, behind], dim=-2)
    features = _encode(frame.tower, x.flatten(0, -3), frame.tokens.repeat(x.shape[:-3].numel(), 1))
    return F.normalize(features, dim=-1).view(*x.shape[:-2], -1)


def _encode(tower: TextTower, x: Tensor, tokens: Tensor) -> Tensor:
    """Embeddings [B, T, D] → features [B, E], in parts where there are many."""
    if len(x) <= _ROWS:
        return tower.encode_embeddings(x, tokens)
    parts = zip(x.split(_ROWS), tokens.split(_ROWS), strict=True)
    run = tower.encode_embeddings
    return torch.cat([checkpoint(run, *part, use_reentrant=False, preserve_rng_state=False) for part in parts])


def write_context(path: Path, vlm: VLM, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write a learned context: `context` [n, D] and what else belongs to it; `facts` name its `words`."""
    write_tensors(path, tensors, SCHEMA, {**facts, "text_tower": _identity(vlm)})


def read_context(path: Path, vlm: VLM) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and facts of a file that was learnt with this model's text tower, be it in another precision."""
    try:
        tensors, facts = read_tensors(path, SCHEMA, _MOST, _REMEDY)
    except FileNotFoundError as error:
        raise ConfigError(f"there is no context {path}; {_REMEDY}") from error
    except StateError as error:
        raise ConfigError(str(error)) from error
    ours, theirs = _identity(vlm), facts.get("text_tower")
    if not isinstance(theirs, dict) or theirs.keys() != ours.keys():
        raise ConfigError(f"{path} does not say which text tower it was learnt with; {_REMEDY}")
    reason = finite_problem(tensors)
    if reason:
        raise ConfigError(f"{path} makes no sense: {reason}; {_REMEDY}")
    comparable = ours["dtype"] == theirs["dtype"]
    if ours["shape"] != theirs["shape"] or (comparable and ours["weights"] != theirs["weights"]):
        raise ConfigError(
            f"{path} was learnt with another text tower; load that model, or train a context for this one"
        )
    return {name: tensor.to(vlm.device) for name, tensor in tensors.items()}, facts


def _identity(vlm: VLM) -> dict[str, str]:
    """What a context belongs to; weights can be told apart in the same precision only."""
    tower = vlm.text
    return {"shape": repr(tower.shape), "dtype": str(tower.positions.dtype), "weights": vlm.text_fingerprint()}
