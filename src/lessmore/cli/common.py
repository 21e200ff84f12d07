"""What the commands share: help that keeps its line breaks, options of models and methods, checks before long work."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from jsonargparse import ArgumentParser, DefaultHelpFormatter, Namespace

from lessmore.adapter import Adapter, adapt
from lessmore.config import list_presets
from lessmore.core.condense.registry import list_reducers
from lessmore.errors import ConfigError
from lessmore.methods import list_methods

OK, FAILED, SOME_FAILED, INTERRUPTED = 0, 1, 3, 130
"""Exit codes; 2, wrong usage, is the parser's own."""


class HelpFormatter(argparse.RawDescriptionHelpFormatter, DefaultHelpFormatter):  # type: ignore[misc]
    """Leaves description and examples as they are written."""


def new_parser(description: str | None, examples: str) -> ArgumentParser:
    """A command's parser; its help ends with `examples`, line by line."""
    return ArgumentParser(description=description, epilog=examples, formatter_class=HelpFormatter)


def add_budget(args: ArgumentParser) -> None:
    """Options --preset and --R."""
    args.add_argument(
        "--preset", type=str, default="default", help=", ".join(p for p in list_presets() if "/" not in p)
    )
    args.add_argument(
        "--R", type=float | None, default=None, help="kept fraction of the tokens, by default the preset's"
    )


def add_method(args: ArgumentParser) -> None:
    """Options --method and --reducer."""
    args.add_argument("--method", type=str, default="tca", help=", ".join(list_methods()))
    args.add_argument(
        "--reducer", type=str, default="auto", help="auto (tca for tca, else none), " + ", ".join(list_reducers())
    )


def add_model(args: ArgumentParser) -> None:
    """Options --model, --classes and --templates."""
    model = "an embedded model (see lessmore ls models), a hub id, a folder, or open_clip:NAME/TAG"
    args.add_argument("--model", type=str, required=True, help=model)
    args.add_argument(
        "--classes", type=str, required=True, help="a text file with one class per line, or names separated by commas"
    )
    args.add_argument("--templates", type=str, default="photo", help="photo, simple7, imagenet80, or a text with {}")


def make_adapter(args: Namespace, **more: Any) -> Adapter:
    """The adapter that --model, --classes, --templates, --preset and --R ask for; more: further options of `adapt`."""
    classes = read_classes(args.classes)
    return adapt(args.model, classes, templates=args.templates, preset=args.preset, R=args.R, **more)


def read_classes(text: str) -> list[str]:
    """Class names: of a text with commas its parts, else the lines of the file it names."""
    path = Path(text)
    if "," in text and not path.is_file():
        return [name.strip() for name in text.split(",") if name.strip()]
    try:
        names = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(
            f"no class names in {text!r} ({reason}); give a text file with one name per line, or names with commas"
        ) from error
    if not names:
        raise ConfigError(f"the class file {text} is empty; write one name per line")
    return names


def check_writable(path: Path, endings: Sequence[str]) -> None:
    """Refuse a file that could not be written, before any work is done for it."""
    if path.suffix.lower() not in endings:
        raise ConfigError(f"{path} does not end in {' or '.join(endings)}; give the output file that ending")
    folder = path.parent
    if path.is_dir() or not folder.is_dir():
        raise ConfigError(f"{path} cannot be a file: {path if path.is_dir() else folder} is {_what(path, folder)}")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise ConfigError(f"{path} cannot be written; choose a place you may write to")


def _what(path: Path, folder: Path) -> str:
    return "a folder; add a file name" if path.is_dir() else "no folder; make it first"


class Stop:
    """Turns the first Ctrl-C (or SIGTERM) into a wish to stop after the current image; the second one acts at once.

    An image that is given up halfway could leave a memory that is half updated, and that must not be saved.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Stop:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        self.__exit__()
