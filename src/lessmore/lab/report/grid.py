"""A table of short texts, and the page it stands on: the same for every format it is written in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Text(NamedTuple):
    """What stands in a cell."""

    text: str
    strong: bool = False
    rest: str = ""
    """What follows and is never bold."""


@dataclass(frozen=True)
class TableGrid:
    """Lines of a common length, the head first."""

    title: str
    head: tuple[str, ...]
    lines: tuple[tuple[Text, ...], ...]
    words: int = 1
    """So many columns, the first ones, hold words; the others hold figures and are set to the right."""
    below: tuple[str, ...] = ()
    """A second line of the head."""


@dataclass(frozen=True)
class TablePage:
    """All that is shown of one or more tables."""

    title: str
    grids: tuple[TableGrid, ...]
    notes: tuple[str, ...]
    command: str = ""
    """What makes the tables."""
