"""Typed errors. Each message says what is wrong and what to do about it; callers may rely on the types."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LessmoreError(Exception):
    """Base of every error this package raises on purpose."""


class ConfigError(LessmoreError, ValueError):
    """An option, preset, class list or template cannot be used as given."""


class ModelError(LessmoreError, ValueError):
    """The model cannot be read: unsupported architecture, missing tokenizer, missing files."""


class ImageError(LessmoreError, ValueError):
    """The image cannot be decoded or has the wrong shape, type or values."""


class ImageSizeError(ImageError):
    """The image has more bytes or pixels than are taken, or would take too much memory to decode."""


class StateError(LessmoreError, ValueError):
    """A saved state does not belong to this model, class list or version."""


class NonFiniteError(LessmoreError, ArithmeticError):
    """The model itself answers with NaN or infinity, so not even zero-shot can be trusted."""


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """One sentence for a name that does not exist, with the nearest ones that do.

    Args:
        kind: What the name stands for, such as `preset`.
        name: The name that was given.
        known: The names that exist.

    Examples:
        >>> unknown("preset", "defalt", ["default", "paper"])
        "unknown preset 'defalt'; did you mean default?"
    """
    known = sorted(known)
    near = difflib.get_close_matches(str(name), known, n=3, cutoff=0.5)
    roots = sorted({one.split("/")[0] for one in known})  # cifar100c alone has a hundred variants
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(roots)}"
    return f"unknown {kind} {name!r}; {hint}"
