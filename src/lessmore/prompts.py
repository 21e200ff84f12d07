"""From class names to class embeddings: prompt templates, text clean-up, ensembling and a cache on disk."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import string
import warnings
from collections.abc import Callable, Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from tqdm import tqdm

from lessmore.errors import ConfigError, unknown
from lessmore.files import write_safetensors

if TYPE_CHECKING:
    from lessmore.vlm import VLM

Template = str | Callable[[str], str]
Templates = str | Sequence[Template]

_LONG = 200
_CACHE_VERSION = "1"


@functools.cache
def _named_sets() -> dict[str, list[str]]:
    text = resources.files("lessmore").joinpath("templates.json").read_text(encoding="utf-8")
    sets: dict[str, list[str]] = json.loads(text)["sets"]
    return sets


TEMPLATES: dict[str, list[str]] = _named_sets()


def canonicalise(text: str, family: str) -> str:
    """Text as the family saw it in training: SigLIP lower-case and without punctuation, CLIP as it is."""
    if family != "siglip":
        return text
    text = text.replace("_", " ").translate(str.maketrans("", "", string.punctuation))
    return " ".join(text.lower().split())


def class_names(classes: Iterable[str]) -> list[str]:
    """Class names with underscores as spaces, trimmed; empty and repeated ones are refused."""
    if isinstance(classes, str):
        raise ConfigError(f"classes is the single string {classes!r}; give a list of names")
    names = [_class_name(name) for name in classes]
    if not names:
        raise ConfigError("there are no classes; give at least one name")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"the class {twice!r} appears more than once; give every class its own name")
    return names


def _class_name(name: str) -> str:
    if not isinstance(name, str):
        raise ConfigError(f"the class name {name!r} is not a string; convert it first")
    clean = " ".join(name.replace("_", " ").split())
    if not clean:
        raise ConfigError(f"the class name {name!r} is empty; remove it or give it a name")
    return clean


def template_texts(templates: Templates) -> tuple[str, ...]:
    """The templates as texts with a place for the name; functions among them are left out."""
    if isinstance(templates, str):
        templates = TEMPLATES.get(templates) or [templates]
    return tuple(template for template in templates if isinstance(template, str))


def resolve_templates(templates: Templates) -> list[Callable[[str], str]]:
    """A named set, or a list of strings with `{}` or `{c}` and functions → functions from class name to prompt."""
    if isinstance(templates, str):
        if "{" not in templates and templates not in TEMPLATES:
            raise ConfigError(unknown("template set", templates, TEMPLATES))
        templates = TEMPLATES.get(templates) or [templates]
    if not templates:
        raise ConfigError('there are no templates; give at least one, such as "a photo of a {}."')
    return [template if callable(template) else _fill(template) for template in templates]


def _fill(template: str) -> Callable[[str], str]:
    place = next((place for place in ("{}", "{c}") if place in template), None)
    if place is None:
        raise ConfigError(f"the template {template!r} has no {{}} for the class name; add one")
    return lambda name: template.replace(place, name)


def prompts(classes: Iterable[str], templates: Templates) -> list[list[str]]:
    """Prompts of every class, [C][number of templates]."""
    functions = resolve_templates(templates)
    return [[function(name) for function in functions] for name in class_names(classes)]


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
