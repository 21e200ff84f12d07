"""What a preset is, in the words that every list, table, page and figure uses.

TCA can mean the paper's text, its authors' code, or our version of it. Only preset `paper` is the paper's TCA, so no
label says TCA without its preset.
"""

from __future__ import annotations

from collections.abc import Iterable

_WHAT = {
    "default": "TCA as we set it: late, size-aware merging and label-free debiasing",
    "labelfree": "another name of default",
    "camera": "condensed as default, with debiasing for cameras and no correction from memory",
    "mixed": "default with stronger debiasing, for streams known to show many of their classes",
    "bold": "another name of mixed",
    "fixed": "the paper's method with one setting of ours for all data, and other named differences",
    "paper": "TCA as the paper writes it",
    "released": "TCA as its authors released it",
}
_ONLY = "Only preset paper is the paper's TCA."


def preset_label(name: str) -> str:
    """What a preset is.

    >>> preset_label("released/dtd")
    'TCA as its authors released it, with their values for dtd, chosen on its test labels'
    """
    base, _, data = name.partition("/")
    tuned = f", with their values for {data}, chosen on its test labels" if data else ""
    return _WHAT.get(base, "of an installed package") + tuned


def method_label(name: str, method: str, preset: str) -> str:
    """A contender's name in which TCA is always followed by its preset; other methods keep their names.

    >>> method_label("TCA R=0.9", "tca", "fixed"), method_label("TDA", "tda", "fixed")
    ('TCA (fixed) R=0.9', 'TDA')

    Args:
        name: The name so far.
        method: The registered method.
        preset: Name of the preset.
    """
    if method != "tca" or not name.startswith("TCA"):
        return name
    return f"TCA ({preset}){name.removeprefix('TCA')}"


def preset_note(presets: Iterable[str]) -> str:
    """One sentence on the presets of a table; empty if there are none."""
    told = "; ".join(f"{name}: {preset_label(name)}" for name in dict.fromkeys(presets))
    return f"Presets: {told}. {_ONLY}" if told else ""
