"""What the commands share: help that keeps its line breaks, options of models and methods, checks before long work.

Nothing here imports torch before a command runs, so that `--help` is fast.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from jsonargparse import ArgumentParser, DefaultHelpFormatter, Namespace, set_loader

from lessmore.config import list_presets
from lessmore.data.typed import parse_yaml, read_lines
from lessmore.errors import ConfigError
from lessmore.lab.report.escape import visible
from lessmore.storage.files import alone

if TYPE_CHECKING:
    from lessmore.adapter import Adapter

OK, FAILED, SOME_FAILED, INTERRUPTED = 0, 1, 3, 130
"""Exit codes; 2, wrong usage, is the parser's own."""
_FLAGS: tuple[str, ...] = ("model", "classes", "templates", "method", "preset", "stream", "R", "reducer")
_FLAGS += ("engine", "precision", "calibrate", "device", "unknown", "dtype")
_OBJECTS = ("seed", "tokenizer", "preprocess", "cache")
"""Arguments of `adapt` that are not settings."""


class HelpFormatter(argparse.RawDescriptionHelpFormatter, DefaultHelpFormatter):  # type: ignore[misc]
    """Leaves description and examples as they are written, and says of an option without a default nothing of one."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = super()._get_help_string(action) or ""
        return text.replace(", default: %(default)s", "") if action.default is None else text


def _load(text: str) -> Any:
    """A value on the command line, held to the limits of a YAML file; `{a}` and `a:` stay text, for templates."""
    value = parse_yaml(text)
    return text if isinstance(value, dict) and value and not any(v is not None for v in value.values()) else value


set_loader("lessmore", _load, (ConfigError,))


class _Parser(ArgumentParser):  # type: ignore[misc]
    """A command's parser, which says in one line what a value has to be."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """End the process with 2 and a message.

        Args:
            message: What is wrong, as jsonargparse tells it.
            ex: What made it say so.
        """
        super().error(_plainly(message), ex)
        raise AssertionError("the line before ends the process")


def _plainly(message: str) -> str:
    """A complaint about the type of a value in our words; others as they are."""
    key = re.match(r'Parser key "([\w.]+)"', message)
    value = re.search(r"(?:Given|Got) value: (.*)\Z", message, re.DOTALL)
    kinds = [_KINDS[kind] for kind in re.findall(r"Expected a <class '(\w+)'>", message) if kind in _KINDS]
    if not (key and value and kinds):
        return message
    return f"--{key[1].replace('_', '-')} must be {' or '.join(kinds)}, not {value[1][:100]!r}"


_KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false"}


def new_parser(description: str | None, examples: str) -> ArgumentParser:
    """A command's parser.

    Args:
        description: What the command does; the module's docstring.
        examples: The end of the help, printed line by line as it is.
    """
    return _Parser(description=description, epilog=examples, formatter_class=HelpFormatter, parser_mode="lessmore")


def add_budget(args: ArgumentParser) -> None:
    """Options --preset, --stream and --R."""
    args.add_argument(
        "--preset", type=str, default="default", help=", ".join(p for p in list_presets() if "/" not in p)
    )
    stream = "camera: it shows few classes for a long time each; mixed: many, in no order; instead of --preset"
    args.add_argument("--stream", type=str | None, default=None, help=stream)
    args.add_argument(
        "--R", type=float | None, default=None, help="kept fraction of the tokens, by default the preset's"
    )


def add_method(args: ArgumentParser) -> None:
    """Options --method and --reducer."""
    args.add_argument("--method", type=str, default="tca", help="one of lessmore ls methods")
    args.add_argument(
        "--reducer", type=str, default="auto", help="one of lessmore ls reducers; auto is tca for tca, else none"
    )


def add_options(args: ArgumentParser) -> None:
    """Option --options."""
    text = "settings of preset and method, as NAME=VALUE ... or a YAML file: --options lam=2 K=3"
    args.add_argument("--options", type=dict[str, Any], default={}, help=text)


def add_engine(args: ArgumentParser) -> None:
    """Options --engine and --device."""
    engine = "eager, cpu, openvino, graph or chunk; auto picks by device and precision"
    args.add_argument("--engine", type=str, default="auto", help=engine)
    add_device(args)


def add_unknown(args: ArgumentParser) -> None:
    """Option --unknown."""
    args.add_argument(
        "--unknown",
        type=float | str,
        default="off",
        help="tell images of none of the classes from the others, and learn nothing from them: off, auto (a threshold "
        "that the stream sets, meant for one false alarm in 20 images), or a threshold for the score",
    )


def add_precision(args: ArgumentParser) -> None:
    """Options --precision and --calibrate."""
    text = "what the engine multiplies in: float32, bfloat16 or int8; default: the type of the weights"
    args.add_argument("--precision", type=str | None, default=None, help=text)
    add_calibrate(args)


def add_calibrate(args: ArgumentParser) -> None:
    """Option --calibrate."""
    text = "for int8: a folder of images to calibrate on; default: the first images of the stream"
    args.add_argument("--calibrate", type=str | None, default=None, help=text)


def add_device(args: ArgumentParser) -> None:
    """Option --device."""
    args.add_argument("--device", type=str, default="auto", help="cpu, cuda, cuda:1; auto takes a GPU if there is one")


def add_dtype(args: ArgumentParser) -> None:
    """Option --dtype."""
    text = "type of the weights: float32, bfloat16 or float16; default: float32 for models by name"
    args.add_argument("--dtype", type=str | None, default=None, help=text)


def add_json(args: ArgumentParser) -> None:
    """Option --json; docs/scripts.md describes what each command then prints."""
    args.add_argument("--json", action="store_true", help="print JSON")


def add_json_lines(args: ArgumentParser) -> None:
    """Option --json of commands that write rows."""
    text = "rows on standard output as JSON lines; those of a file are where its name ends in .jsonl"
    args.add_argument("--json", action="store_true", help=text)


def check_json_lines(args: Namespace) -> None:
    """Refuse --json where the rows go to a file.

    Args:
        args: Parsed arguments, with `output` and `json`.

    Raises:
        ConfigError: They do.
    """
    if args.json and args.output not in (None, "-"):
        raise ConfigError(f"--json prints rows, but they go to {args.output}; end its name in .jsonl instead")


def add_model(args: ArgumentParser, needed: bool = True) -> None:
    """Options --model, --classes and --templates.

    Args:
        args: The command's parser.
        needed: Whether --model and --classes must be given.
    """
    model = "an embedded model (see lessmore ls models), a hub id, a folder, or open_clip:NAME/TAG"
    classes = "a text file with one class per line, or names separated by commas"
    for flag, said in (("--model", model), ("--classes", classes)):
        kind: Any = {"type": str, "required": True} if needed else {"type": str | None, "default": None}
        args.add_argument(flag, **kind, help=said)
    templates = "photo, simple7, imagenet80, siglip8, sentence, family (the model family's own), or a text with {}"
    args.add_argument("--templates", type=str, default="photo", help=templates)


def make_adapter(args: Namespace, **more: Any) -> Adapter:
    """The adapter that the options of this module ask for.

    Args:
        args: Parsed arguments, with at least those of `add_model`, `add_budget`, `add_options`, `add_device` and
            `add_dtype`.
        **more: Further arguments of `adapt`.

    Raises:
        ConfigError: An option cannot be used, or `--options` sets what has a flag of its own.
        ModelError: The model cannot be read.
    """
    from lessmore.adapter import adapt
    from lessmore.models.devices import choose_device

    own = {"R": args.R, "preset": args.preset, "stream": args.stream, "templates": args.templates}
    flags = ("method", "reducer", "engine", "precision", "calibrate", "unknown")
    own |= {name: args[name] for name in flags if name in args}
    clash = next((name for name in args.options if name in _FLAGS + _OBJECTS), None)
    if clash is not None:
        raise ConfigError(f"--options cannot set {clash}; use --{clash} where the command has it")
    place = {"device": choose_device(args.device), "dtype": args.dtype}
    return adapt(args.model, read_classes(args.classes), **place, **(own | more), **args.options)


def own_classes(model: str) -> list[str]:
    """The class list of an embedded model; no other has one of its own.

    Args:
        model: A model's name.
    """
    from lessmore.assets import MODELS, world

    return world.world_class_names(world.test_classes()) if model in MODELS else []


def read_classes(text: str) -> list[str]:
    """Class names.

    Args:
        text: A text file with one name per line, in which lines that begin with `#` are comments; or names separated
            by commas; or one name.

    Raises:
        ConfigError: The file cannot be read or holds no names.
    """
    path = Path(text)
    if "," in text and not _is_file(path):
        return [name.strip() for name in text.split(",") if name.strip()]
    if not _is_file(path) and not _looks_like_a_path(text):
        return [text]
    try:
        names = read_lines(path, "the class list")
    except ConfigError as error:
        raise ConfigError(f"{error}; a class list has one name per line, or is given as names with commas") from error
    if not names:
        raise ConfigError(f"the class file {text} is empty; write one name per line")
    return names


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long for a name, or with a null byte
        return False


def _looks_like_a_path(text: str) -> bool:
    return os.sep in text or re.search(r"\.\w{1,5}$", text) is not None


def check_writable(path: Path, endings: Sequence[str]) -> None:
    """Refuse a file that could not be written, before any work is done for it.

    Args:
        path: The file to write.
        endings: The endings it may have, such as `.csv`, in lower case.

    Raises:
        ConfigError: The ending is another, the directory is missing, or it may not be written to.
    """
    if path.suffix.lower() not in endings:
        raise ConfigError(f"{path} does not end in {' or '.join(endings)}; give the output file that ending")
    folder = path.parent
    if path.is_dir() or not folder.is_dir():
        raise ConfigError(f"{path} cannot be a file: {path if path.is_dir() else folder} is {_what(path, folder)}")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise ConfigError(f"{path} cannot be written; choose a place you may write to")


def _what(path: Path, folder: Path) -> str:
    return "a directory; add a file name" if path.is_dir() else "not a directory; create it first"


def printable(text: str) -> str:
    """A text in which no sign can command a terminal; what cannot be seen becomes a `�`.

    >>> printable("a\\x1b[31m\\r\\n")
    'a�[31m�\\n'
    """
    return visible(text).replace("\r", "\ufffd").replace("\x85", "\ufffd")


def say(text: str, error: bool = False) -> None:
    """Print for people, whatever names are in it.

    Args:
        text: One line or several.
        error: Whether it goes to standard error.
    """
    print(printable(text), file=sys.stderr if error else sys.stdout, flush=True)


def say_json(value: object, indent: int | None = 2) -> None:
    """Print for programs.

    Args:
        value: Whatever JSON has; all signs beyond ASCII are escaped, so no name can command a terminal.
        indent: Spaces of a level; None makes one line.
    """
    print(json.dumps(value, indent=indent), flush=True)


@contextmanager
def writing(*paths: Path | None) -> Iterator[None]:
    """Hold the files that a command writes, so that no second one of lessmore writes them at the same time.

    Args:
        *paths: The files; None stands for one that is not wanted.

    Raises:
        StateError: Another process is writing one of them.
    """
    with ExitStack() as held:
        for path in paths:
            if path is not None:
                held.enter_context(alone(path))
        yield


class Stop:
    """Turns the first Ctrl-C (or SIGTERM) into a request to stop after the current image; the second acts at once.

    Giving up in the middle of an image could leave the state half updated, and such a state must not be saved.
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
