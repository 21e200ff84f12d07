"""Who is calling, and what the caller may do. Keys are random, so one SHA-256 of each is all that is kept.

A key file is YAML:

    keys:
      - name: door-camera
        sha256: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
        scopes: [read, classify]
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lessmore.data.typed import parse_yaml, read_text
from lessmore.errors import ConfigError
from lessmore.serve.errors import ForbiddenError, UnauthorisedError

SCOPES = {
    "read": "see streams, events and metrics",
    "classify": "make streams, send images, reset, fork and delete",
    "admin": "take and put states, and reach the streams of all keys",
}
_MOST = 1 << 20


@dataclass(frozen=True)
class Caller:
    """Who sent a request."""

    name: str = ""
    scopes: frozenset[str] = frozenset(SCOPES)

    @property
    def owner(self) -> str | None:
        """Whose streams the caller sees; None means all."""
        return None if "admin" in self.scopes else self.name

    def check(self, scope: str) -> None:
        """Raise a ForbiddenError unless the caller may do what the scope names."""
        if scope not in self.scopes:
            raise ForbiddenError(f"this key may not do that: it lacks the scope {scope}", "use a key that has it")


ANYONE = Caller()
"""The caller where the server has no keys: it then listens on a loopback address alone."""


@dataclass(frozen=True)
class Key:
    """An API key, as far as the server knows it."""

    caller: Caller
    digest: bytes


def find_caller(keys: Sequence[Key], headers: Mapping[str, str]) -> Caller:
    """Who sent these headers.

    Args:
        keys: The keys; where there are none, anyone may do anything.
        headers: With the key in `Authorization: Bearer KEY` or in `X-API-Key`.

    Raises:
        UnauthorisedError: There is no key, or it is wrong.
    """
    if not keys:
        return ANYONE
    scheme, _, token = headers.get("authorization", "").partition(" ")
    given = headers.get("x-api-key") or (token.strip() if scheme.lower() == "bearer" else "")
    digest = hashlib.sha256(given.encode("utf-8", "replace")).digest()
    found = None
    for key in keys:  # all of them, so that the time says nothing of which one it was
        if hmac.compare_digest(key.digest, digest):
            found = key.caller
    if not given or found is None:
        raise UnauthorisedError(
            "the API key is missing or wrong", "send it as Authorization: Bearer KEY, or as X-API-Key"
        )
    return found


def read_keys(path: Path) -> list[Key]:
    """The keys of a file.

    Raises:
        ConfigError: It cannot be read, or an entry makes no sense.
    """
    value = parse_yaml(read_text(path, "the key file", _MOST), f"the key file {path}")
    entries = value.get("keys") if isinstance(value, dict) else None
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"the key file {path} has no list 'keys'; make an entry with --make-key NAME")
    keys = [_key(entry, i, path) for i, entry in enumerate(entries, start=1)]
    names = [key.caller.name for key in keys]
    if len(set(names)) < len(names):
        raise ConfigError(f"the key file {path} gives a name twice; streams belong to a key by its name")
    return keys


def _key(entry: Any, number: int, path: Path) -> Key:
    where = f"entry {number} of the key file {path}"
    if not isinstance(entry, dict) or set(entry) != {"name", "sha256", "scopes"}:
        raise ConfigError(f"{where} does not have exactly name, sha256 and scopes; make one with --make-key NAME")
    name, digest, scopes = entry["name"], entry["sha256"], entry["scopes"]
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]{1,100}", name):
        raise ConfigError(f"{where} has the name {name!r}; take letters, digits, dots and dashes")
    if not isinstance(digest, str) or not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise ConfigError(f"{where} has no SHA-256 in hexadecimal digits; make one with --make-key NAME")
    if not isinstance(scopes, list) or not scopes or not all(one in tuple(SCOPES) for one in scopes):
        raise ConfigError(f"{where} has the scopes {scopes!r}; take some of {', '.join(SCOPES)}")
    return Key(Caller(name, frozenset(scopes)), bytes.fromhex(digest))


def make_key(name: str) -> tuple[str, str]:
    """A new key, and the entry of the key file that lets it in."""
    key = secrets.token_urlsafe(32)
    digest = hashlib.sha256(key.encode()).hexdigest()
    return key, f"  - name: {name}\n    sha256: {digest}\n    scopes: [read, classify]\n"
