"""Say what is installed, which engines work here, and whether the embedded model gives its golden answers."""

from __future__ import annotations

from dataclasses import asdict

from jsonargparse import ArgumentParser, Namespace

from lessmore.cli.common import FAILED, OK, add_json, new_parser, say, say_json

EXAMPLES = """examples:
  lessmore doctor
  lessmore doctor --json
  lessmore doctor --json | grep works

Nothing is downloaded. The exit code is 1 if an engine that should work on every machine (eager, cpu, chunk) gives other
answers than the golden ones.
"""
_EVERYWHERE = ("eager", "cpu", "chunk")


def parser() -> ArgumentParser:
    """Arguments of `lessmore doctor`."""
    args = new_parser(__doc__, EXAMPLES)
    add_json(args)
    return args


def run(args: Namespace) -> int:
    """Check and print."""
    from lessmore.lab import doctor

    facts, packages, engines = doctor.machine(), doctor.installed(), doctor.check_engines()
    if args.json:
        say_json({"machine": facts, "extras": packages, "engines": [asdict(one) for one in engines]})
    else:
        say("\n".join(f"{name}\t{'none' if value is None else value}" for name, value in facts.items()))
        for extra, of in packages.items():
            missing = [name for name, number in of.items() if number is None]
            have = ", ".join(f"{name} {number}" for name, number in of.items() if number is not None)
            say(
                f"extra {extra}\t"
                + (f"missing {', '.join(missing)}: pip install 'lessmore[{extra}]'" if missing else have)
            )
        for one in engines:
            say(f"engine {one.name}\t{'works' if one.works else 'cannot be used'}: {one.says}")
    return OK if all(one.works for one in engines if one.name in _EVERYWHERE) else FAILED
