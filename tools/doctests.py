"""The examples in docstrings, run as they stand with whatever is installed.

    python -I tools/doctests.py               # of the installed lessmore; exit code 1 if an example fails

Examples use the embedded model and nothing from the network. The base install is enough for all but those of
`EXTRAS`, which are left out where what they need is missing.
"""

from __future__ import annotations

import doctest
import os
import sys
import tempfile
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import lessmore

EXTRAS = {"lessmore.lab.results": ("pandas", "scipy")}
"""Modules whose examples need more than the base install, and the packages that they need."""


def modules_with_examples() -> list[str]:
    """Names of the modules of lessmore that have an example."""
    source = Path(lessmore.__file__).parent
    return [
        "lessmore." + ".".join(file.relative_to(source).with_suffix("").parts).removesuffix(".__init__")
        for file in sorted(source.rglob("*.py"))
        if ">>> " in file.read_text(encoding="utf-8")
    ]


def try_examples(module: str) -> doctest.TestResults:
    """Run a module's examples; what an example should have printed goes to standard output."""
    return doctest.testmod(import_module(module), optionflags=doctest.ELLIPSIS)


def main() -> int:
    """Run all of them in an empty folder, because an example may write files."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        lacking = {name for name, needs in EXTRAS.items() if not all(map(find_spec, needs))}
        results = [try_examples(name) for name in modules_with_examples() if name not in lacking]
        os.chdir(os.sep)  # a folder in use cannot be removed everywhere
    failed, tried = sum(r.failed for r in results), sum(r.attempted for r in results)
    print(f"{tried} examples in {len(results)} modules, {failed} failed, in {Path(lessmore.__file__).parent}")
    print(f"left out, because packages are missing: {', '.join(sorted(lacking)) or 'none'}")
    return int(failed > 0 or tried == 0)


if __name__ == "__main__":
    sys.exit(main())
