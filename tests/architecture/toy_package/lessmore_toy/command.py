"""Greet whoever is named."""

from __future__ import annotations

from jsonargparse import ArgumentParser, Namespace

from lessmore.cli.common import OK, new_parser


def parser() -> ArgumentParser:
    """Arguments of `lessmore toy-hello`."""
    args = new_parser(__doc__, "examples:\n  lessmore toy-hello world\n")
    args.add_argument("who", type=str, help="a name")
    return args


def run(args: Namespace) -> int:
    """Print the greeting."""
    print(f"hello {args.who}")
    return OK
