"""From prompts to class embeddings: ensembling, and a cache on disk."""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from lessmore.core.algorithm import CLASS_EMBEDDING
from lessmore.errors import StateError
from lessmore.prompts import Templates, class_names, prompts, spoken, templates_for
from lessmore.storage.cache import Cache, cache_folder, drop, warn_uncached
from lessmore.storage.sealed import read_tensors, write_tensors

if TYPE_CHECKING:
    from lessmore.models.vlm import VLM

_log = logging.getLogger(__name__)
_LONG = 200
SCHEMA = "lessmore.class-embeddings/2"
_HEADER = 1 << 16


def class_embeddings(
    vlm: VLM,
    classes: Iterable[str],
    templates: Templates = "photo",
    *,
    batch_size: int = 128,
    progress: bool | None = None,
    cache: Cache = True,
) -> Tensor:
    """Class embeddings `[C, E]`, each the normalised mean of its normalised prompt embeddings, as in CLIP.

    Args:
        vlm: The model whose text tower embeds the prompts.
        classes: Names of the C classes.
        templates: The name of a template set, `family` for the one of the model's family, or templates as
            `prompts.resolve_templates` takes them.
        batch_size: Prompts per forward pass.
        progress: Whether to show a bar; None shows one on a terminal if there are more than 200 prompts.
        cache: Whether to keep the result on disk, in `$LESSMORE_CACHE` or `~/.cache/lessmore`; a path is the directory.

    Raises:
        ConfigError: A class name or template cannot be used.
        ModelError: The tokenizer does not fit the model.
    """
    names = class_names(classes)
    table = prompts(names, templates_for(templates, vlm.family))
    _warn_of_strange_names(vlm, names)
    tokens = vlm.tokenize([prompt for row in table for prompt in row])
    file = _cache_file(vlm, tokens, len(table), cache)
    shape = (len(table), vlm.text.shape.embed)
    stored = _read(file, shape) if file else None
    if stored is None:
        stored = _ensemble(_embed(vlm, tokens, batch_size, progress), len(table))
        if file:
            _write(file, stored)
    return stored.to(vlm.device, vlm.dtype)


_NO_WORD = ("zqxjkvw", "\u16a0\u16ce")
"""Letters that no vocabulary has as a word: what a tokenizer makes of them, it makes of every word it does not know."""


def _warn_of_strange_names(vlm: VLM, names: Sequence[str]) -> None:
    """Say which names the tokenizer does not know: they get embeddings that mean nothing, and with them high scores."""
    words = sorted({word for name in names for word in spoken(name).split()})
    said = [tuple(row) for row in vlm.tokenize([*_NO_WORD, *words]).tolist()]
    unknown = set(said[: len(_NO_WORD)])
    strange = {word for word, row in zip(words, said[len(_NO_WORD) :], strict=True) if row in unknown}
    lost = [name for name in names if strange.intersection(spoken(name).split())]
    if lost:
        shown = ", ".join(map(repr, lost[:5])) + (", ..." if len(lost) > 5 else "")
        warnings.warn(
            f"the model's tokenizer does not know every word of {len(lost)} of {len(names)} class names ({shown}); "
            "answers about them mean nothing: use other words",
            stacklevel=5,
        )


@torch.no_grad()
def _embed(vlm: VLM, tokens: Tensor, batch_size: int, progress: bool | None) -> Tensor:
    """Token ids [P, T] → normalised float32 embeddings [P, E] on the CPU."""
    hidden = not progress if progress is not None else (None if len(tokens) > _LONG else True)
    bar = tqdm(total=len(tokens), desc="class prompts", unit="prompt", disable=hidden)
    out = []
    with bar:
        for batch in torch.split(tokens, batch_size):
            out.append(F.normalize(vlm.encode_text(vlm.text.trim(batch)).float(), dim=-1).cpu())
            bar.update(len(batch))
    return torch.cat(out)


def _ensemble(embeddings: Tensor, classes: int) -> Tensor:
    """Prompt embeddings [C·templates, E] → class embeddings [C, E]."""
    return F.normalize(embeddings.view(classes, -1, embeddings.shape[1]).mean(dim=1), dim=-1)


def _cache_file(vlm: VLM, tokens: Tensor, classes: int, cache: Cache) -> Path | None:
    """The token ids hold everything that classes and templates can change, so they and the weights name the file."""
    folder = cache_folder(cache, "class-embeddings")
    if folder is None:
        return None
    digest = hashlib.sha256(f"{SCHEMA} {CLASS_EMBEDDING} {vlm.text_fingerprint()} {vlm.dtype} {classes}".encode())
    digest.update(f"{tuple(tokens.shape)}".encode())
    digest.update(tokens.cpu().contiguous().numpy().tobytes())
    return folder / f"{digest.hexdigest()}.safetensors"


def _read(file: Path, shape: tuple[int, int]) -> Tensor | None:
    """Normalised embeddings as `_ensemble` made them; None if the file is missing or holds something else."""
    try:
        tensors, facts = read_tensors(file, SCHEMA, 4 * shape[0] * shape[1] + _HEADER, "it is made again")
    except FileNotFoundError:
        return None
    except StateError as error:
        _log.warning("%s", error)
        drop(file)
        return None
    found = tensors.get("embeddings")
    misplaced = facts.get("key") != file.stem or found is None or found.shape != shape or found.dtype != torch.float32
    if misplaced or not _normalised(found):
        _log.warning("%s does not hold the class embeddings it is named for; it is made again", file)
        return None
    return found


def _normalised(embeddings: Tensor | None) -> bool:
    return embeddings is not None and bool(((embeddings.norm(dim=-1) - 1).abs() < 1e-3).all())


def _write(file: Path, embeddings: Tensor) -> None:
    """Keep the embeddings, unless some are not finite and so not normalised."""
    if not _normalised(embeddings):
        return
    try:
        write_tensors(file, {"embeddings": embeddings}, SCHEMA, {"key": file.stem})
    except OSError as error:
        warn_uncached("class embeddings", error)
