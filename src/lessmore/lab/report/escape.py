"""Texts of unknown origin made harmless, one function per format: names of classes, files, models and data sets."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping
from typing import Any

_CONTROL = "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f"
_UNSEEN = re.compile(f"[{_CONTROL}\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, marks that change the direction of writing, and bytes of names that are not UTF-8."""


def visible(text: str) -> str:
    """The text with a `�` for every character that cannot be seen or written."""
    return _UNSEEN.sub("\ufffd", text)


def one_line(text: str) -> str:
    """The visible text on one line.

    >>> one_line("a\\nb\\x1b[31mc")
    'a b�[31mc'
    """
    return " ".join(visible(text).split())


_NUMBERS = re.compile(r"(?!.*\]\s*[\[(:])[\d\s.,:;%/()\[\]±+−–-]*")
"""Numbers, intervals and ratios: their brackets link to nothing, so they need no escape."""
_MARKS = re.compile(r"([\\|*_`<>\[\]#~$]|&(?=#?\w+;))")


def markdown(text: str) -> str:
    """One line without any special meaning in a pipe table or a paragraph of Markdown.

    >>> print(markdown("a|b [*c*](d)"), markdown("81.0 (+1.2 [0.4, 2.0])"))
    a\\|b \\[\\*c\\*\\](d) 81.0 (+1.2 [0.4, 2.0])
    """
    line = one_line(text)
    return line if _NUMBERS.fullmatch(line) else _MARKS.sub(r"\\\1", line)


_LATEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "†": r"$\dagger$",
    "‡": r"$\ddagger$",
    "λ": r"$\lambda$",
    "β": r"$\beta$",
    "→": r"$\to$",
    "–": "--",
    "−": r"$-$",
}
_OPTIONAL = re.compile(r"^[\[*]")
r"""After `\\` and `\midrule` these would begin an argument."""


def latex(text: str) -> str:
    """One line without any special meaning in a cell or a paragraph of LaTeX."""
    line = "".join(_LATEX.get(sign, sign) for sign in one_line(text))
    return _OPTIONAL.sub(lambda found: f"{{{found[0]}}}", line)


_FORMULA = re.compile("'*[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")


def harmless(value: Any) -> Any:
    """A value for a cell of CSV; a text that a spreadsheet would take for a formula gets a leading quote.

    >>> harmless("=1+1"), harmless(-1.5), harmless("plain")
    ("'=1+1", -1.5, 'plain')
    """
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value


def original(text: str) -> str:
    """The text that `harmless` was given."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


_QUOTED = "\r\n;\t"
"""Characters besides commas and quotes that make a cell quoted; some spreadsheets split at semicolons."""


def csv_line(values: Iterable[Any]) -> str:
    """One line of CSV that ends with a line feed."""
    text = io.StringIO()
    csv.writer(text, lineterminator=_QUOTED).writerow(map(harmless, values))
    return text.getvalue()[: -len(_QUOTED)] + "\n"


def csv_table(lines: Iterable[Mapping[str, Any]]) -> str:
    """Lines by column name; a line may lack columns that others have."""
    kept = list(lines)
    names = list(dict.fromkeys(name for line in kept for name in line))
    text = csv_line(names) + "".join(csv_line(line.get(name) for name in names) for line in kept)
    return text.encode("utf-8", "replace").decode()
