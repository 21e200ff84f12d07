"""The command line: one small file per command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from jsonargparse import ArgumentParser

from lessmore.cli import flops
from lessmore.errors import LessmoreError

COMMANDS = {"flops": flops}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 = done, 1 = failed with one line on stderr, 2 = wrong usage, 130 = interrupted."""
    parser = ArgumentParser(prog="lessmore", description="Zero-shot classifiers, more accurate and cheaper as they run.")
    commands = parser.add_subcommands(required=True)
    for name, command in COMMANDS.items():
        commands.add_subcommand(name, command.parser(), help=(command.__doc__ or "").splitlines()[0])
    chosen = parser.parse_args(arguments)
    try:
        return COMMANDS[chosen.subcommand].run(chosen[chosen.subcommand])
    except LessmoreError as error:
        print(f"lessmore {chosen.subcommand}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
