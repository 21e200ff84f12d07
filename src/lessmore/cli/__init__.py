"""The command line: one small file per command."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from jsonargparse import ArgumentParser

import lessmore
from lessmore.cli import (
    bench,
    build,
    classify,
    demo,
    export,
    flops,
    ls,
    report,
    reproduce,
    run,
    sweep,
    train_prompt,
    validate,
    vis,
)
from lessmore.cli.common import FAILED, INTERRUPTED, HelpFormatter
from lessmore.errors import LessmoreError

COMMANDS = {
    "demo": demo,
    "classify": classify,
    "vis": vis,
    "flops": flops,
    "bench": bench,
    "export": export,
    "run": run,
    "sweep": sweep,
    "train-prompt": train_prompt,
    "validate": validate,
    "ls": ls,
    "build": build,
    "report": report,
    "reproduce": reproduce,
}
EXAMPLES = """examples:
  lessmore demo
  lessmore classify photos/ --classes "cat,dog,bird" --model openai/clip-vit-base-patch16 --output out.csv
  lessmore classify --help

exit codes: 0 done, 1 failed, 2 wrong usage, 3 done but some inputs failed, 130 interrupted
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; an expected error is one line on stderr that says what to do."""
    chosen = _parser().parse_args(arguments)
    name = chosen.subcommand
    try:
        code: int = COMMANDS[name].run(chosen[name])
        return code
    except LessmoreError as error:
        return _fail(name, str(error))
    except BrokenPipeError:
        # The reader has gone (`| head`); Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        return _fail(name, f"{error}; check the path, its permissions and the free space")
    except KeyboardInterrupt:
        print(f"lessmore {name}: interrupted", file=sys.stderr)
        return INTERRUPTED


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="lessmore",
        description="Zero-shot image classifiers, more accurate and cheaper as they run.",
        epilog=EXAMPLES,
        formatter_class=HelpFormatter,
        version=lessmore.__version__,
    )
    commands = parser.add_subcommands(required=True)
    for name, command in COMMANDS.items():
        commands.add_subcommand(name, command.parser(), help=(command.__doc__ or "").splitlines()[0])
    return parser


def _fail(name: str, message: str) -> int:
    print(f"lessmore {name}: {' '.join(message.split())}", file=sys.stderr)
    return FAILED
