"""What the words of a command line mean: a webcam, an address, a video file, a folder, or standard input."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal
from urllib.parse import urlsplit

from lessmore.data.formats import ENDINGS
from lessmore.errors import ConfigError

Kind = Literal["webcam", "address", "file", "folder", "stdin"]
SCHEMES = ("rtsp", "rtsps", "http", "https")
_NAMED = re.compile(r"([A-Za-z0-9][\w.-]{0,63})=(.+)", re.DOTALL | re.ASCII)
_ODD = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True)
class FrameSource:
    """Where frames come from."""

    name: str
    """Of its stream, state and rows; letters, digits, `.`, `_` and `-`."""
    kind: Kind
    address: str
    """A number, an address with its password, a path, or `-`."""

    @property
    def shown(self) -> str:
        """The address without user and password."""
        return hidden(self.address) if self.kind == "address" else self.address

    @property
    def live(self) -> bool:
        """Whether frames come at their own pace, and whoever is late misses them."""
        return self.kind in ("webcam", "address", "stdin")


def hidden(address: str) -> str:
    """An address without user and password.

    >>> hidden("rtsp://me:secret@10.0.0.5:554/cam?x=1")
    'rtsp://10.0.0.5:554/cam?x=1'
    """
    head, mark, rest = address.partition("://")
    host, slash, path = rest.partition("/")
    return f"{head}{mark}{host.rpartition('@')[2]}{slash}{path}"


def read_sources(words: Iterable[str]) -> list[FrameSource]:
    """The sources that words name, each with a name that no other has.

    Args:
        words: Sources, or `NAME=SOURCE`.

    Raises:
        ConfigError: A word names nothing that is there, or a name stands twice.
    """
    found: list[FrameSource] = []
    for word in words:
        own, given = _given(word)
        source = _source(word if own is None else given, own)
        taken = {one.name for one in found}
        if own is not None and own in taken:
            raise ConfigError(f"two sources are called {own}; give each a name of its own")
        if any((one.kind, one.address) == (source.kind, source.address) for one in found):
            raise ConfigError(f"{source.shown} stands there twice; name every source once")
        if source.name in taken:
            raise ConfigError(
                f"{word} would be called {source.name} as another source is; give it a name: NAME={source.shown}"
            )
        found.append(source)
    return found


def _given(word: str) -> tuple[str | None, str]:
    """A name and what it stands for; a path that exists is never split."""
    match = None if os.path.lexists(word) else _NAMED.fullmatch(word)
    return (None, word) if match is None else (match[1], match[2])


def _source(word: str, name: str | None) -> FrameSource:
    source = _meant(word)
    return source if name is None else replace(source, name=name)


def _meant(word: str) -> FrameSource:
    if word == "-":
        return FrameSource("stdin", "stdin", word)
    if word.isascii() and word.isdigit() and len(word) < 4:
        return FrameSource(f"camera-{int(word)}", "webcam", str(int(word)))
    scheme = word.partition("://")[0].lower()
    if "://" in word:
        return _address(word, scheme)
    if os.path.isdir(word):
        return FrameSource(_name(os.path.basename(os.path.abspath(word))), "folder", word)
    if os.path.isfile(word):
        _check_video(word)
        return FrameSource(_name(os.path.splitext(os.path.basename(word))[0]), "file", word)
    if os.path.lexists(word):
        raise ConfigError(f"{word} is no regular file; give a video file, a folder or an address")
    raise ConfigError(f"there is no file or folder {word}; give a path, a webcam's number or an address")


def _address(word: str, scheme: str) -> FrameSource:
    if scheme not in SCHEMES:
        raise ConfigError(f"{hidden(word)} has a scheme that is not read; use one of {', '.join(SCHEMES)}")
    try:
        parts = urlsplit(word)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"{hidden(word)} is no address ({error}); write scheme://host:port/path") from error
    if not host or any(sign.isspace() or not sign.isprintable() for sign in word):
        raise ConfigError(f"{hidden(word)!r} is no address; write scheme://host:port/path")
    return FrameSource(_name(f"{host}{parts.path}"), "address", word)


def _check_video(path: str) -> None:
    if path.lower().endswith(ENDINGS):
        raise ConfigError(f"{path} is a picture; give its folder, or use lessmore classify")
    if not os.access(path, os.R_OK):
        raise ConfigError(f"{path} may not be read; check its permissions")


def _name(text: str) -> str:
    return _ODD.sub("-", text).strip("-")[:64] or "source"


def check_webcams(sources: Iterable[FrameSource]) -> None:
    """Refuse webcams that are not there, where the system says which are.

    Raises:
        ConfigError: With those that are there.
    """
    if sys.platform != "linux":
        return
    found = sorted(name.removeprefix("video") for name in os.listdir("/dev") if re.fullmatch(r"video[0-9]+", name))
    for one in sources:
        if one.kind == "webcam" and one.address not in found:
            there = f"there are {', '.join(found)}" if found else "there is none"
            raise ConfigError(f"there is no webcam {one.address} on this machine; {there}, or give another source")


def check_stdin(sources: Iterable[FrameSource]) -> None:
    """Refuse standard input where it is somebody at a keyboard.

    Raises:
        ConfigError: It is a terminal.
    """
    if any(one.kind == "stdin" for one in sources) and sys.stdin is not None and sys.stdin.isatty():
        raise ConfigError("- reads JPEG frames from a pipe; pipe a camera's output into this command")
