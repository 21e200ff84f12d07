"""An environment with what lessmore needs without extras, and nothing else; `make dist` tries the wheel in it.

    .venv/bin/python tools/bare_env.py .venv-dist

The packages are hard links to those of the environment that runs this, so gigabytes of torch are neither downloaded
nor copied. lessmore itself is left out, and pip, which is needed to install it, comes from Python.
"""

from __future__ import annotations

import os
import shutil
import sys
import venv
from importlib.metadata import Distribution, distributions
from pathlib import Path

from licences import key_of, needed


def make_bare_env(folder: Path) -> list[str]:
    """Make the environment anew and return the names of its packages.

    Args:
        folder: Where; what is there is removed first.
    """
    venv.create(folder, clear=True, with_pip=True, symlinks=os.name != "nt")
    wanted = needed("lessmore")
    found = {key_of(one.name): one for one in distributions() if one.name and key_of(one.name) in wanted}
    packages = next(folder.rglob("site-packages"))
    for one in found.values():
        _link(one, packages)
    return sorted(found)


def _link(one: Distribution, packages: Path) -> None:
    """The files that a distribution lists, but not its commands, which lie outside and name another Python."""
    origin, made = str(one.locate_file("")), set()
    for file in map(str, one.files or ()):
        source, target = os.path.join(origin, file), os.path.join(packages, file)
        if file.startswith("..") or not os.path.isfile(source):
            continue
        if (parent := os.path.dirname(target)) not in made:
            os.makedirs(parent, exist_ok=True)
            made.add(parent)
        try:
            os.link(source, target)
        except OSError:  # another file system
            shutil.copy2(source, target)


def main() -> int:
    """Make it where the command line says."""
    if len(sys.argv) != 2:
        print(f"usage: {sys.argv[0]} FOLDER", file=sys.stderr)
        return 2
    names = make_bare_env(Path(sys.argv[1]))
    print(f"{sys.argv[1]} has {len(names)} packages: {', '.join(names)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
