"""A table of short texts and the page it is on, the same for every format they are written in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Text(NamedTuple):
    """The content of a cell."""

    text: str
    strong: bool = False
    rest: str = ""
    """What follows and is never bold."""


@dataclass(frozen=True)
class TableGrid:
    """Lines of equal length, and their head."""

    title: str
    head: tuple[str, ...]
    lines: tuple[tuple[Text, ...], ...]
    words: int = 1
    """How many of the first columns hold words; the others hold numbers and are right-aligned."""
    below: tuple[str, ...] = ()
    """A second line of the head."""


@dataclass(frozen=True)
class TablePage:
    """All that is shown of one or more tables."""

    title: str
    grids: tuple[TableGrid, ...]
    notes: tuple[str, ...]
    command: str = ""
    """The command that makes the tables."""
    lead: tuple[str, ...] = ()
    """What a reader must know before any number; the notes come after the tables."""
