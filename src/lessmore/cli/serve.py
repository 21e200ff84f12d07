"""Serve streams of images over HTTP; each adapts on its own and survives restarts."""

from __future__ import annotations

import os
import sys
from typing import Any

from jsonargparse import ActionConfigFile, ArgumentParser, Namespace

from lessmore.cli.common import OK, new_parser, own_classes, read_classes
from lessmore.errors import ConfigError
from lessmore.serve.settings import ServerSettings, from_environment, options

EXAMPLES = """examples:
  lessmore serve
  lessmore serve --model open_clip:ViT-B-16/openai --classes cats.txt --port 9000
  lessmore serve --host 0.0.0.0 --api-keys keys.yaml --store /var/lib/lessmore --fsync true
  lessmore serve --make-key door-camera

Without --model it serves the embedded model `tiny` on classes of its own. Every setting can also be a variable such as
LESSMORE_SERVE_PORT, or a line of the YAML file of --config. A flag overrides the file, and the file a variable.
"""


def parser() -> ArgumentParser:
    """Arguments of `lessmore serve`."""
    args = new_parser(__doc__, EXAMPLES)
    args.add_argument("--config", action=ActionConfigFile, help="YAML file with any of these settings")
    cameras = "cameras that the server watches, a list; best written in the file of --config, see docs/serve.md"
    args.add_argument("--cameras", type=Any, default=None, help=cameras)
    args.add_argument("--make-key", type=str | None, default=None, help="print a new API key of this name, and stop")
    given = from_environment(os.environ)
    for name, kind, default, text in options():
        args.add_argument(f"--{name.replace('_', '-')}", type=kind, default=given.get(name, default), help=text)
    return args


def run(args: Namespace) -> int:
    """Serve until told to stop; 0."""
    try:
        from lessmore.serve import auth, run
    except ModuleNotFoundError as error:
        raise ConfigError(f"lessmore serve needs {error.name}; pip install 'lessmore[serve]'") from error
    if args.make_key is not None:
        key, entry = auth.make_key(args.make_key)
        print(f"{key}\n\nThis is shown once. Put this into the key file, under 'keys:':\n\n{entry}", end="")
        return OK
    settings = ServerSettings(**{one.name: args[one.name] for one in options()})
    return run.serve(settings, _classes(settings), lambda address: _announce(settings, address), args.cameras)


def _classes(settings: ServerSettings) -> list[str]:
    """The class list of streams that bring none; the embedded models have one of their own."""
    if settings.classes is not None:
        return read_classes(settings.classes)
    return own_classes(settings.model)


def _announce(settings: ServerSettings, address: str) -> None:
    print(f"lessmore serves {settings.model} on {address}; see {address}/docs", flush=True)
    if not settings.loopback:
        print("warning: other machines can reach this server; keys and images travel in the clear "
              "unless a proxy adds TLS", file=sys.stderr)  # fmt: skip
