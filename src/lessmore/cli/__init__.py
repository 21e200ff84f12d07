"""The command line: one small file per command, imported only when that command is used.

A command is a module with `parser()`, which must not import torch, and `run(args)`, which returns an exit code. The
first line of its docstring is its help. `COMMANDS` names the modules of this folder; installed packages name theirs in
the entry point group `lessmore.commands`. This room may import every other, and none imports it.
Read `classify.py` first.
"""

from __future__ import annotations

import ast
import os
import pkgutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from types import ModuleType

from jsonargparse import ArgumentParser, Namespace

import lessmore
from lessmore.cli.common import FAILED, INTERRUPTED, HelpFormatter, say
from lessmore.cli.options import spread_options
from lessmore.errors import LessmoreError, unknown
from lessmore.registry import Registry

COMMANDS = (
    "demo",
    "classify",
    "watch",
    "vis",
    "flops",
    "bench",
    "export",
    "run",
    "sweep",
    "train-prompt",
    "validate",
    "ls",
    "build",
    "report",
    "compare",
    "reproduce",
    "serve",
    "doctor",
    "completion",
)
REGISTRY: Registry[Callable[[], ModuleType]] = Registry(
    "command", "lessmore.commands", adopt=lambda module: lambda: module
)
"""Every command by name, as a function that imports its module."""
for _name in COMMANDS:
    _home = f"{__name__}.{_name.replace('-', '_')}"
    REGISTRY.add(_name, partial(import_module, _home), source=_home)
_COMPUTING = ("classify", "watch", "vis", "export", "run", "bench", "train-prompt", "report", "serve", "doctor")
"""Commands that run a model in this process; the others start processes, which limit their own threads."""
EXAMPLES = """examples:
  lessmore demo
  lessmore classify photos/ --classes "cat,dog,bird" --model openai/clip-vit-base-patch16 --output out.csv
  lessmore classify --help

exit codes: 0 done, 1 failed, 2 wrong usage, 3 done but some inputs failed, 130 interrupted
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; an expected error is one line on stderr that says what to do."""
    _let_threads_sleep()
    # bench counts memory with torch's profiler, which reads this once, when torch is imported, and else logs to stderr.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    name = "lessmore"
    try:
        chosen = parse(sys.argv[1:] if arguments is None else arguments)
        name = f"lessmore {chosen.subcommand}"
        return _run(chosen.subcommand, chosen[chosen.subcommand])
    except LessmoreError as error:
        return _fail(name, str(error))
    except BrokenPipeError:
        # The reader has gone (`| head`); Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        return _fail(name, f"{error}; check the path, its permissions and the free space")
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return INTERRUPTED


def parse(words: Sequence[str]) -> Namespace:
    """The command in `subcommand`, and its arguments under its name; wrong usage ends the process with 2."""
    name = next((word for word in words if not word.startswith("-")), None)
    parser = _parser(name)
    if name is not None and name not in _names():
        parser.error(unknown("command", name, _names()))
    return parser.parse_args(spread_options(words))


def find_command(name: str) -> ModuleType:
    """The module of a command."""
    return REGISTRY.find(name)()


def _names() -> list[str]:
    """Our own commands in the order of a newcomer's way, then those of installed packages."""
    return list(dict.fromkeys([*COMMANDS, *REGISTRY.names()]))


def _parser(chosen: str | None) -> ArgumentParser:
    """All commands by name and help, and the arguments of the chosen one."""
    parser = ArgumentParser(
        prog="lessmore",
        description="Zero-shot image classifiers, more accurate and cheaper as they run.",
        epilog=EXAMPLES,
        formatter_class=HelpFormatter,
        version=lessmore.__version__,
    )
    commands = parser.add_subcommands(required=True)
    for name in _names():
        own = find_command(name).parser() if name == chosen else ArgumentParser()
        commands.add_subcommand(name, own, help=_help(name))
    return parser


def whole_parser() -> ArgumentParser:
    """All commands with all their arguments, for what has to know every option."""
    parser = ArgumentParser(prog="lessmore", version=lessmore.__version__)
    commands = parser.add_subcommands(required=True)
    for name in _names():
        commands.add_subcommand(name, find_command(name).parser(), help=_help(name))
    return parser


def _help(name: str) -> str:
    """The first line of a command's docstring, read without importing the command and all it needs."""
    if name not in COMMANDS:
        return "of an installed package"
    source = pkgutil.get_data(__name__, f"{name.replace('-', '_')}.py") or b""
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


def _let_threads_sleep() -> None:
    """Let OpenMP's threads sleep while they wait, in a process that is ours: on busy cores spinning costs most.

    OpenMP reads this when torch loads it. Whoever has set it, or has torch already, keeps what they have.
    """
    if "torch" not in sys.modules:
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def _run(name: str, args: Namespace) -> int:
    if getattr(args, "quiet", False):
        os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"  # transformers looks at it, too, when it loads weights
    if name in _COMPUTING:
        from lessmore.engines.cores import limit_threads

        limit_threads()
    code: int = find_command(name).run(args)
    return code


def _fail(name: str, message: str) -> int:
    say(f"{name}: {' '.join(message.split())}", error=True)
    return FAILED
