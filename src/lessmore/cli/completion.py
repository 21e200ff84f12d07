"""Print a script that completes lessmore's commands and options in a shell."""

from __future__ import annotations

import importlib
import sys

from jsonargparse import ArgumentParser, Namespace

from lessmore.cli.common import OK, new_parser
from lessmore.errors import ConfigError

EXAMPLES = """examples:
  lessmore completion bash > ~/.local/share/bash-completion/completions/lessmore
  lessmore completion zsh > ~/.zfunc/_lessmore
  lessmore completion tcsh > ~/.lessmore.completion.csh

Needs pip install 'lessmore[completion]'. Write the script again after an update.
"""


def parser() -> ArgumentParser:
    """Arguments of `lessmore completion`."""
    args = new_parser(__doc__, EXAMPLES)
    args.add_argument("shell", choices=["bash", "zsh", "tcsh"], help="the shell")
    return args


def run(args: Namespace) -> int:
    """Print the script."""
    from lessmore.cli import whole_parser

    try:
        shtab = importlib.import_module("shtab")
    except ImportError as error:
        raise ConfigError("this needs shtab; install it with: pip install 'lessmore[completion]'") from error
    sys.stdout.write(shtab.complete(whole_parser(), shell=args.shell) + "\n")
    return OK
