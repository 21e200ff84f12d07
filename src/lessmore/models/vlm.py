"""A vision-language model as this package sees it: two towers, logits, tokenizer and preprocessing."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from lessmore.core.text import TextTower
from lessmore.core.vit import ViT
from lessmore.errors import ConfigError, ImageError, ModelError
from lessmore.models.class_embeddings import class_embeddings
from lessmore.models.towers import Family
from lessmore.prompts import Templates, canonicalise

Tokenizer = Callable[[list[str]], Tensor]
Transform = Callable[[Image.Image], Tensor]
Tower = TypeVar("Tower", ViT, TextTower)


@dataclass(frozen=True, eq=False)
class VLM:
    """A model of any supported host library, in our own towers; frozen, in evaluation mode.

    Examples:
        >>> import lessmore
        >>> vlm = lessmore.load("tiny")
        >>> vlm.classifier(["red circle", "blue square"], cache=False).shape
        torch.Size([2, 128])
    """

    vision: ViT
    text: TextTower
    logit_scale: float
    """Factor of the cosine, already exponentiated."""
    logit_bias: float
    tokenizer: Tokenizer
    """Texts → token ids [B, T]."""
    preprocess: Transform
    """Pillow RGB image → pixels [3, H, W]."""
    family: Family
    name: str
    _hashes: dict[str, str] = field(default_factory=dict, init=False, repr=False)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.vision.positions.device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights."""
        return self.vision.positions.dtype

    def encode_image(self, pixels: Tensor, normalize: bool = False) -> Tensor:
        """Image features `[B, E]` of the whole, uncondensed tower.

        Args:
            pixels: Preprocessed images `[B, 3, S, S]`; of a tower that takes any shape, `[B, 3, H, W]`.
            normalize: Whether to scale every feature to length 1.

        Raises:
            ImageError: The shape is another.
        """
        shape = self.vision.shape
        if pixels.ndim != 4 or pixels.shape[1] != 3 or not shape.takes(*pixels.shape[2:]):
            wanted = f"[B, 3, {shape.size_text}]"
            raise ImageError(f"pixels have the shape {tuple(pixels.shape)}; preprocess them to {wanted}")
        features: Tensor = self.vision(pixels.to(self.device, self.dtype))
        return F.normalize(features, dim=-1) if normalize else features

    def encode_text(self, tokens: Tensor, normalize: bool = False) -> Tensor:
        """Text features `[B, E]`.

        Args:
            tokens: Token ids `[B, T]`, from `tokenize`.
            normalize: Whether to scale every feature to length 1.
        """
        features: Tensor = self.text(tokens.to(self.device))
        return F.normalize(features, dim=-1) if normalize else features

    def tokenize(self, texts: list[str]) -> Tensor:
        """Token ids `[B, T]` of texts, which are first put into the form the family was trained on.

        Raises:
            ConfigError: There are no texts.
            ModelError: The tokenizer does not belong to the model.
        """
        if not texts:
            raise ConfigError("there are no texts to tokenize; give at least one")
        texts = [canonicalise(text, self.family) for text in texts]
        tokens = self.tokenizer(texts)
        context, vocab = self.text.shape.context, self.text.shape.vocab
        if not isinstance(tokens, Tensor) or tokens.ndim != 2 or tokens.is_floating_point():
            raise ModelError("the tokenizer must return integer ids [B, T]; pass the one that belongs to the model")
        if tokens.shape[1] > context or int(tokens.max()) >= vocab:
            raise ModelError(
                f"the tokenizer gives ids up to {int(tokens.max())} in rows of {tokens.shape[1]}, the model knows "
                f"{vocab} in rows of {context}; pass the tokenizer that belongs to the model"
            )
        self._say_what_was_cut(texts, tokens)
        return tokens.long()

    def _say_what_was_cut(self, texts: list[str], tokens: Tensor) -> None:
        """Warn where the end of a text made no difference: full rows that more words change as little as fewer do."""
        full = torch.ne(tokens[:, -1], tokens[:, -2]).nonzero().flatten().tolist() if tokens.shape[1] > 1 else []
        full = [i for i in full if len(texts[i]) > 1]
        full = self._unchanged(texts, tokens, full, lambda text: f"{text} a a")
        # A text that fits may stay the same without its last letter: of two that the tokenizer does not know.
        full = self._unchanged(texts, tokens, full, lambda text: text[:-1])
        cut = [texts[i] for i in full]
        if cut:
            warnings.warn(
                f"{len(cut)} of {len(texts)} prompts are longer than the model's {tokens.shape[1]} tokens and were "
                f"cut, the first is {cut[0][:80]!r}; use shorter names or templates",
                stacklevel=4,
            )

    def _unchanged(self, texts: list[str], tokens: Tensor, rows: list[int], change: Callable[[str], str]) -> list[int]:
        """Those of some rows whose tokens stay the same when their text is changed."""
        if not rows:
            return []
        other = self.tokenizer([change(texts[i]) for i in rows])
        if other.shape[1] != tokens.shape[1]:
            return []
        return [i for i, row in zip(rows, other, strict=True) if torch.equal(row, tokens[i])]

    def classifier(
        self,
        classes: Iterable[str],
        templates: Templates = "photo",
        *,
        batch_size: int = 128,
        progress: bool | None = None,
        cache: bool | str | Path = True,
    ) -> Tensor:
        """Normalised class embeddings `[C, E]`; see `class_embeddings.class_embeddings`.

        Args:
            classes: Names of the C classes.
            templates: The name of a template set, or templates.
            batch_size: Prompts per forward pass.
            progress: Whether to show a bar; None decides by the amount of work.
            cache: Whether to keep the result on disk; a path is the directory.
        """
        return class_embeddings(self, classes, templates, batch_size=batch_size, progress=progress, cache=cache)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> VLM:
        """A model on another device or in another dtype; this one stays as it is. Unchanged weights are shared.

        Args:
            device: Where to put the weights; None leaves them where they are.
            dtype: Floating-point type of the weights; None keeps it.
        """
        return replace(self, vision=_moved(self.vision, device, dtype), text=_moved(self.text, device, dtype))

    def fingerprint(self) -> str:
        """SHA-256 over shapes and weights of both towers and the logits' scale and bias."""
        if "all" not in self._hashes:
            parts = f"{tower_hash(self.vision)} {self.text_fingerprint()} {self.logit_scale!r} {self.logit_bias!r}"
            self._hashes["all"] = hashlib.sha256(parts.encode()).hexdigest()
        return self._hashes["all"]

    def text_fingerprint(self) -> str:
        """SHA-256 over shape and weights of the text tower alone."""
        if "text" not in self._hashes:
            self._hashes["text"] = tower_hash(self.text)
        return self._hashes["text"]


def _moved(tower: Tower, device: torch.device | str | None, dtype: torch.dtype | None) -> Tower:
    with torch.device("meta"):
        moved = type(tower)(tower.shape).requires_grad_(False)
    weights = {name: tensor.to(device=device, dtype=dtype) for name, tensor in tower.state_dict().items()}
    moved.load_state_dict(weights, assign=True)
    return moved.eval()


def tower_hash(tower: nn.Module) -> str:
    """SHA-256 over shape and weights of a tower."""
    digest = hashlib.sha256(repr(tower.shape).encode())
    for name, tensor in sorted(tower.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
