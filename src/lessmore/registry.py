"""Names of things that packages may add: methods, reducers, model families, data sets, corruptions and commands.

One helper serves them all. What is in this process registers itself, usually by a decorator; an installed package names
what it adds in its entry points and is imported only when somebody asks for it. A name belongs to one thing.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, NamedTuple, TypeVar

from lessmore.errors import ConfigError, unknown

T = TypeVar("T")


class _Entry(NamedTuple):
    thing: Any
    origin: str
    """Module and qualified name of what was registered, for messages."""


class Registry(Generic[T]):
    """Things of one kind by name.

    Args:
        kind: What one of them is called in messages, such as `method`.
        group: The entry point group in which installed packages name theirs, such as `lessmore.methods`.
        adopt: Makes a registered thing of what an entry point leads to, where importing the package has not registered
            the name already; None where the package must do that.
    """

    def __init__(self, kind: str, group: str, adopt: Callable[[Any], T] | None = None) -> None:
        self.kind, self.group, self._adopt = kind, group, adopt
        self._own: dict[str, _Entry] = {}

    def add(self, name: str, thing: T, source: Any = None) -> None:
        """Give a thing its name.

        Registering the same definition again replaces it, so that a notebook cell may be run twice.

        Args:
            name: The name users write.
            thing: What it stands for.
            source: Where `thing` comes from, if that is not `thing` itself: a function, a class, or a text.

        Raises:
            ConfigError: The name is not a text, or belongs to another thing.
        """
        if not isinstance(name, str) or not name.strip():
            raise ConfigError(f"a {self.kind} needs a name, not {name!r}")
        origin = _origin(thing if source is None else source)
        known = self._own.get(name)
        if known is not None and (known.origin != origin or "<lambda>" in origin):
            raise ConfigError(f"the {self.kind} {name!r} is already {known.origin}; give {origin} another name")
        self._own[name] = _Entry(thing, origin)

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator: give the function or class below a name.

        Args:
            name: The name users write.
        """

        def add(thing: T) -> T:
            self.add(name, thing)
            return thing

        return add

    def own(self) -> dict[str, T]:
        """What this process has registered, oldest first; installed packages count once they have been imported."""
        return {name: entry.thing for name, entry in self._own.items()}

    def installed(self) -> list[str]:
        """Names that installed packages bring, in alphabetical order; nothing is imported."""
        return sorted(self._installed())

    def names(self) -> list[str]:
        """Every name in alphabetical order; nothing is imported."""
        return sorted({*self._own, *self._installed()})

    def find(self, name: str) -> T:
        """The named thing; the package that brings it is imported now.

        Args:
            name: One of `names()`.

        Raises:
            ConfigError: The name is unknown, is claimed twice, or its package cannot be imported.
        """
        claims = self._installed().get(name, ())
        if name not in self._own and not claims:
            _scan.cache_clear()  # a notebook may have installed the package a moment ago
            claims = self._installed().get(name, ())
        if name not in self._own and not claims:
            raise ConfigError(unknown(self.kind, name, self.names()))
        self._refuse_clash(name, claims)
        if name not in self._own:
            self._load(name, claims[0])
        thing: T = self._own[name].thing
        return thing

    def all(self) -> dict[str, T]:
        """Everything by name; installed packages are imported."""
        return {name: self.find(name) for name in self.names()}

    def _installed(self) -> dict[str, tuple[EntryPoint, ...]]:
        return _scan(self.group, tuple(sys.path))

    def _refuse_clash(self, name: str, claims: tuple[EntryPoint, ...]) -> None:
        """A package may register by decorator what its entry point names; two packages may not share a name."""
        claimed = {claim.value for claim in claims}
        own = self._own.get(name)
        if own is not None:
            claimed = {value for value in claimed if _package(value) != _package(own.origin)} | {own.origin}
        if len(claimed) > 1:
            raise ConfigError(
                f"the {self.kind} {name!r} is claimed by {' and by '.join(sorted(claimed))}; uninstall one of them"
            )

    def _load(self, name: str, entry: EntryPoint) -> None:
        try:
            found = entry.load()
        except Exception as error:  # whatever a foreign package raises while it is imported
            raise ConfigError(
                f"the {self.kind} {name!r} cannot be imported from {entry.value}: {error}; reinstall that package"
            ) from error
        if name in self._own:
            return
        if self._adopt is None:
            raise ConfigError(f"importing {entry.value} registers no {self.kind} {name!r}; decorate it")
        self.add(name, self._adopt(found), source=entry.value)


@functools.lru_cache(maxsize=32)
def _scan(group: str, path: tuple[str, ...]) -> dict[str, tuple[EntryPoint, ...]]:
    """Entry points of a group by name. Looking through every installed package takes milliseconds, hence the cache."""
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for entry in entry_points(group=group):
        found[entry.name] = (*found.get(entry.name, ()), entry)
    return found


def _origin(thing: Any) -> str:
    if isinstance(thing, str):
        return thing
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{named.__module__}.{named.__qualname__}"


def _package(dotted: str) -> str:
    return dotted.partition(":")[0].partition(".")[0]
