"""Options of preset and method on the command line: `--options lam=2 K=3`, `--options file.yaml`, `--options.lam 2`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path

from lessmore.data.typed import read_yaml
from lessmore.errors import ConfigError

_FLAG = "--options"
_PAIR = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_FILES = (".yaml", ".yml", ".json")


def spread_options(words: Sequence[str]) -> list[str]:
    """The command line with every `--options NAME=VALUE …` and `--options FILE` as `--options.NAME=VALUE …`.

    Args:
        words: The command line. After `--options`, every word that is a pair or a file belongs to it.

    Raises:
        ConfigError: A file cannot be read, or does not hold options.

    Examples:
        >>> spread_options(["classify", "--options", "lam=2", "K=3", "photos"])
        ['classify', '--options.lam=2', '--options.K=3', 'photos']
    """
    rest, spread = list(words), []
    while rest:
        word = rest.pop(0)
        taken = list(takewhile(_is_option, rest)) if word == _FLAG else []
        spread.extend([f"{_FLAG}.{pair}" for one in taken for pair in _pairs(one)] if taken else [word])
        del rest[: len(taken)]
    return spread


def _is_option(word: str) -> bool:
    return bool(_PAIR.fullmatch(word)) or (word.endswith(_FILES) and not word.startswith("-"))


def _pairs(word: str) -> Iterator[str]:
    if _PAIR.fullmatch(word):
        yield word
        return
    content = read_yaml(Path(word), "the options file")
    if not isinstance(content, dict) or not all(isinstance(name, str) and name.isidentifier() for name in content):
        raise ConfigError(f"{word} does not hold options; write lines such as `lam: 2`")
    for name, value in content.items():
        yield f"{name}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
