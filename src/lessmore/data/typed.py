"""Reading what people type: text, YAML and JSON, with limits, so that no file can hang or mislead a command.

An error names the file, the line where it is known, and what to change. YAML follows the core schema of YAML 1.2: `no`,
`007` and dates are texts, not false, 7 and dates.
"""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import yaml

from lessmore.errors import ConfigError

MAX_BYTES = 64 * 2**20
"""The largest list that is read: about a million images."""
MAX_YAML = 2**20
MAX_DEPTH = 20
"""How deep lists and mappings may be nested."""
MAX_ALIASES = 100

_Base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc, valid-type]
    """Plain scalars become what YAML 1.2 says, and a key may stand once."""

    yaml_implicit_resolvers: dict[str, list[Any]] = {}  # noqa: RUF012  (filled below; PyYAML looks for it by this name)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen = set()
        for key, _ in node.value:
            if (key.tag, str(key.value)) in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {key.value!r} appears twice", problem_mark=key.start_mark)
            seen.add((key.tag, str(key.value)))
        return super().construct_mapping(node, deep)


_DIGITS = "-+0123456789"
_FLOAT = (
    r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*)([eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", r"[-+]?(0|[1-9][0-9]{0,29})", _DIGITS),
    ("float", _FLOAT, f"{_DIGITS}."),
    ("merge", r"<<", "<"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_first))


def read_text(path: Path, what: str, limit: int = MAX_BYTES) -> str:
    """The text of a file of moderate size, as UTF-8 with or without a byte-order mark.

    Args:
        path: The file; pipes and devices are refused, because they may never end.
        what: What it is, for messages, such as `the manifest`.
        limit: The largest number of bytes.

    Raises:
        ConfigError: The file is missing, too large, not a regular file, or not UTF-8.
    """
    data = _read_bytes(path, what, limit)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{what} {path} is not UTF-8 text (line {line}); save it as UTF-8") from error
    if "\0" in text:
        raise ConfigError(f"{what} {path} holds binary data (line {_line(text, text.index(chr(0)))}); give a text file")
    return text


def _read_bytes(path: Path, what: str, limit: int) -> bytes:
    try:
        # Not blocking: opening a pipe that nobody writes to would wait for ever.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with open(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise ConfigError(f"{what} {path} is not a regular file; save it as one and give its path")
            data = file.read(limit + 1)
    except FileNotFoundError as error:
        raise ConfigError(f"there is no file {path} ({what}); check the path") from error
    except (OSError, ValueError) as error:  # a name with a null byte is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{what} {path} cannot be read ({reason}); check the path and its permissions") from error
    if len(data) > limit:
        raise ConfigError(f"{what} {path} is larger than {limit:,} bytes; split it or shorten it")
    return data


def read_lines(path: Path, what: str) -> list[str]:
    """Trimmed lines of a file, without empty lines and those that begin with `#`.

    Args:
        path: The file.
        what: What it is, for messages, such as `the class list`.

    Raises:
        ConfigError: The file cannot be read; see `read_text`.
    """
    lines = (line.strip() for line in read_text(path, what).splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def read_yaml(path: Path, what: str) -> Any:
    """The content of a YAML (or JSON) file.

    Args:
        path: The file.
        what: What it is, for messages.

    Raises:
        ConfigError: The file cannot be read, is not YAML, repeats a key, or is nested too deeply.
    """
    return parse_yaml(read_text(path, what, MAX_YAML), f"{what} {path}")


def parse_yaml(text: str, where: str = "the text") -> Any:
    """The content of a YAML text.

    Args:
        text: At most `MAX_YAML` bytes; the caller checks.
        where: What to call it in errors.

    Raises:
        ConfigError: The text is not YAML, repeats a key, or is nested too deeply.
    """
    try:
        _check_events(text)
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f" (line {error.problem_mark.line + 1})"
        raise ConfigError(f"{where} is not usable YAML{line}: {error.problem or error.context}; correct it") from error
    # Characters that YAML forbids, keys that cannot be keys: PyYAML has no one error for them.
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise ConfigError(f"{where} is not usable YAML: {' '.join(str(error).split())[:200]}; correct it") from error


def _check_events(text: str) -> None:
    """Refuse, before anything is built, what could grow without bound or make objects of other types."""
    opened: list[str | None] = []
    tainted: set[str | None] = set()
    aliases = 0
    for event in yaml.parse(text, Loader=_Base):
        problem = None
        if isinstance(event, yaml.AliasEvent):
            aliases += 1
            tainted.update(opened)
            if event.anchor in tainted or aliases > MAX_ALIASES:
                problem = f"aliases (*{event.anchor}) may not be nested, and {MAX_ALIASES} are the most"
        elif isinstance(event, yaml.CollectionStartEvent):
            opened.append(event.anchor)
            if len(opened) > MAX_DEPTH:
                problem = f"lists and mappings are nested more than {MAX_DEPTH} deep"
        elif isinstance(event, yaml.CollectionEndEvent):
            opened.pop()
        if getattr(event, "tag", None) is not None:
            problem = f"tags such as {event.tag} are not supported"
        if problem:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


def parse_json(text: str, where: str) -> Any:
    """The content of a JSON text; NaN, infinity and repeated keys are refused.

    Args:
        text: The JSON.
        where: What to call it in errors.

    Raises:
        ConfigError: The text is not such JSON.
    """
    try:
        return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where} is not JSON (line {error.lineno}: {error.msg}); correct it") from error
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise ConfigError(f"{where} is not usable JSON ({reason}); correct it") from error


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a value; write a number or a text")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} appears twice")
    return content


def _line(text: str, place: int) -> int:
    return text.count("\n", 0, place) + 1
