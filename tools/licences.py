"""Licences of everything that lessmore needs: what the base needs, what the extras bring, what binaries contain.

    python tools/licences.py                  # every package, one per line
    python tools/licences.py --check          # what CI asks: exit code 1 with one sentence per violation
    python tools/licences.py --write             # writes docs/licences.md

The base may contain no GPL or AGPL package and none whose licence cannot be told. Weak copyleft, and shared libraries
under copyleft that a wheel contains, must stand in docs/licences.md.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from pathlib import Path
from typing import Literal, NamedTuple

from packaging.requirements import Requirement

Kind = Literal["permissive", "weak copyleft", "strong copyleft", "proprietary", "unknown"]

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "licences.md"
# Tried in this order, so that the strictest word of a text decides; LGPL would otherwise match GPL.
_WEAK = re.compile(r"\bLGPL|lesser general public|\bMPL|mozilla public|\bEPL\b|eclipse public|\bCDDL|\bEUPL", re.I)
_STRONG = re.compile(r"\bA?GPL|(affero|gnu) general public", re.I)
_PROPRIETARY = re.compile(r"proprietary|commercial", re.I)
_PERMISSIVE = re.compile(
    r"\bMIT|\bBSD|\bZPL|apache|\bISC|\bPSF|python software foundation|zlib|\b0BSD|CC0|public domain|unlicense|"
    r"\bBSL-1|HPND",
    re.I,
)
_BUNDLED = {
    r"lib(gfortran|gomp|gcc_s|stdc\+\+)[.-]": "GPL-3.0 with the GCC runtime exception",
    r"libquadmath[.-]": "LGPL-2.1 or later",
    r"lib(avcodec|avformat|avutil|avdevice|avfilter|swscale|swresample)[.-]": "LGPL-2.1 or later",
    r"libQt5": "LGPL-3.0",
    r"libx26[45]": "GPL-2.0",
    r"libzmq[.-]": "MPL-2.0",
}
"""Shared libraries under copyleft that wheels contain, by the names of their files."""
_NVIDIA = re.compile(r"(nvidia|cuda)-")
"""Torch chooses these by machine and version, so the page speaks of them together."""

_INTRODUCTION = """# Licences

lessmore is under Apache-2.0. `tools/licences.py --write` writes this page from the metadata of what `make test` and
`make docs` install, and `make lint` checks it: no package of the base install may be under the GPL or AGPL, and every
package that is not permissive must stand here. All others are under MIT, BSD, Apache, ISC, PSF or similar licences;
`python tools/licences.py` lists them.

"""


class Package(NamedTuple):
    """An installed package."""

    name: str
    licence: str
    kind: Kind
    base: bool
    """Whether lessmore without extras needs it."""
    bundled: tuple[str, ...]
    """Shared libraries under copyleft inside it, with their licences."""


def installed() -> list[Package]:
    """Every installed package that lessmore or one of its extras needs, by name."""
    base, every = needed("lessmore"), needed("lessmore", ["dev", "all", "docs"])
    found = {key_of(one.name): one for one in distributions() if one.name and key_of(one.name) in every - {"lessmore"}}
    return [_package(one, key in base) for key, one in sorted(found.items())]


def needed(name: str, extras: Iterable[str] = ()) -> set[str]:
    """Keys of everything that a package with these extras needs on this machine, itself left out."""
    todo, seen = [(name, frozenset(extras))], set()
    while todo:
        one, extras = todo.pop()
        for requirement in _requirements(one, extras):
            state = (key_of(requirement.name), frozenset(requirement.extras))
            if state not in seen:
                seen.add(state)
                todo.append(state)
    return {key for key, _ in seen}


def _requirements(name: str, extras: Iterable[str]) -> Iterator[Requirement]:
    try:
        texts = distribution(name).requires or []
    except PackageNotFoundError:  # needed on other machines only
        return
    for requirement in map(Requirement, texts):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield requirement


def licence_of(one: Distribution) -> str:
    """What a package's metadata say, the standard expression before classifiers and free text."""
    about = one.metadata
    if "License-Expression" in about:
        return about["License-Expression"]
    classifiers = [text.split("::")[-1].strip() for text in about.get_all("Classifier", []) if "License ::" in text]
    free = about["License"].strip().splitlines() if "License" in about else []
    return "; ".join(classifiers) or (free[0] if free else "not stated")


def kind_of(licence: str) -> Kind:
    """How a licence binds.

    >>> kind_of("MPL-2.0 AND MIT"), kind_of("LGPLv3"), kind_of("AGPL-3.0"), kind_of("MIT License"), kind_of("own")
    ('weak copyleft', 'weak copyleft', 'strong copyleft', 'permissive', 'unknown')
    """
    if re.search(r"\bOR\b", licence) and any(kind_of(part) == "permissive" for part in re.split(r"\bOR\b", licence)):
        return "permissive"
    if _STRONG.search(licence):
        return "weak copyleft" if "exception" in licence else "strong copyleft"
    if _WEAK.search(licence):
        return "weak copyleft"
    if _PROPRIETARY.search(licence):
        return "proprietary"
    return "permissive" if _PERMISSIVE.search(licence) else "unknown"


def _package(one: Distribution, base: bool) -> Package:
    licence = licence_of(one)
    names = {Path(str(file)).name for file in one.files or ()}
    bundled = {
        f"{re.split(r'[.-]', name)[0]} ({said})"
        for name in names
        if ".so" in name or name.endswith((".dylib", ".dll"))
        for pattern, said in _BUNDLED.items()
        if re.match(pattern, name)
    }
    kind: Kind = "proprietary" if _NVIDIA.match(one.name) and kind_of(licence) == "unknown" else kind_of(licence)
    return Package(one.name, licence, kind, base, tuple(sorted(bundled)))


def violations(packages: Iterable[Package], page: str) -> list[str]:
    """What CI refuses, one sentence each.

    Args:
        packages: The installed packages.
        page: The text of docs/licences.md.
    """
    found = []
    for one in packages:
        if one.base and (one.kind in ("strong copyleft", "unknown") or any("(GPL-2.0)" in lib for lib in one.bundled)):
            found.append(f"{one.name} is needed by the base and has licence {one.licence!r}; replace it")
        elif is_special(one) and f"| {one.name} |" not in page:
            found.append(f"{one.name} ({one.licence}) is missing from docs/licences.md; run tools/licences.py --write")
    return found


def is_special(one: Package) -> bool:
    """Whether the page must name it."""
    return bool(one.bundled) or (one.kind != "permissive" and not _NVIDIA.match(one.name))


def page_of(packages: Iterable[Package]) -> str:
    """docs/licences.md: everything that is not simply permissive."""
    packages = list(packages)
    special = [one for one in packages if one.kind != "permissive" and is_special(one)]
    lines = [
        *_INTRODUCTION.splitlines(),
        "| package | licence | kind | in the base install |",
        "|---|---|---|---|",
        *(f"| {one.name} | {one.licence} | {one.kind} | {'yes' if one.base else 'no'} |" for one in special),
        "",
        "Wheels also contain shared libraries of other projects. These are under copyleft:",
        "",
        "| package | shared libraries | in the base install |",
        "|---|---|---|",
        *(
            f"| {one.name} | {', '.join(one.bundled)} | {'yes' if one.base else 'no'} |"
            for one in packages
            if one.bundled
        ),
        "",
        "On Linux the default build of torch also needs NVIDIA's proprietary packages (`nvidia-*`, `cuda-*`). The CPU",
        "build of torch needs none of them.",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """List, check or write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 if something may not be installed or is not listed"
    )
    parser.add_argument(
        "--write", type=Path, nargs="?", const=PAGE, help="write the page about what is not simply permissive here"
    )
    chosen = parser.parse_args()
    packages = installed()
    if chosen.write:
        chosen.write.write_text(page_of(packages), encoding="utf-8")
        return 0
    if chosen.check:
        found = violations(packages, PAGE.read_text(encoding="utf-8"))
        print(
            "\n".join(found)
            or f"{len(packages)} packages, {sum(one.base for one in packages)} of them in the base: fine"
        )
        return int(bool(found))
    for one in packages:
        print("\t".join([one.name, "base" if one.base else "extra", one.kind, one.licence, ", ".join(one.bundled)]))
    return 0


def key_of(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    sys.exit(main())
