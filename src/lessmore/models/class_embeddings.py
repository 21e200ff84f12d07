"""From prompts to class embeddings: ensembling, and a cache on disk."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from tqdm import tqdm

from lessmore.prompts import Templates, prompts
from lessmore.storage.files import write_safetensors

if TYPE_CHECKING:
    from lessmore.models.vlm import VLM

_LONG = 200
_CACHE_VERSION = "1"


def class_embeddings(
    vlm: VLM,
    classes: Iterable[str],
    templates: Templates = "photo",
    *,
    batch_size: int = 128,
    progress: bool | None = None,
    cache: bool | str | Path = True,
) -> Tensor:
    """Class embeddings [C, E], each the normalised mean of its normalised prompt embeddings, as in CLIP.

    `progress`: show a bar; unless given, only for long work on a terminal. `cache`: keep the result on disk, in the
    folder given or in `$LESSMORE_CACHE` or `~/.cache/lessmore`.
    """
    table = prompts(classes, templates)
    tokens = vlm.tokenize([prompt for row in table for prompt in row])
    file = _cache_file(vlm, tokens, len(table), cache)
    shape = (len(table), vlm.text.shape.embed)
    stored = _read(file, shape) if file else None
    if stored is None:
        stored = _ensemble(_embed(vlm, tokens, batch_size, progress), len(table))
        if file:
            _write(file, stored)
    return stored.to(vlm.device, vlm.dtype)


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


def _cache_file(vlm: VLM, tokens: Tensor, classes: int, cache: bool | str | Path) -> Path | None:
    """The token ids hold all that classes and templates can change, so they and the weights name the file."""
    if cache is False:
        return None
    default = os.environ.get("LESSMORE_CACHE") or Path.home() / ".cache" / "lessmore"
    folder = Path(default if cache is True else cache) / "class-embeddings"
    digest = hashlib.sha256(f"{_CACHE_VERSION} {vlm.text_fingerprint()} {vlm.dtype} {classes}".encode())
    digest.update(f"{tuple(tokens.shape)}".encode())
    digest.update(tokens.cpu().contiguous().numpy().tobytes())
    return folder / f"{digest.hexdigest()}.safetensors"


def _read(file: Path, shape: tuple[int, int]) -> Tensor | None:
    try:
        stored = load_file(file)["embeddings"]
    except (OSError, SafetensorError, KeyError):
        return None
    usable = stored.shape == shape and bool(stored.isfinite().all())
    return stored if usable else None


def _write(file: Path, embeddings: Tensor) -> None:
    try:
        write_safetensors(file, {"embeddings": embeddings})
    except OSError as error:
        warnings.warn(
            f"class embeddings are not cached ({error}); set LESSMORE_CACHE to a writable folder", stacklevel=2
        )
