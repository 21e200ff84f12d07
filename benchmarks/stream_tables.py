"""Tables of docs/streams-evidence.md from what `streams.py` measured: harm first, then gain, garbage, covered lens."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Cell = tuple[str, str, str, list[float]]
"""Pack, condition, kind; gain, low, high and zero-shot's accuracy."""


def load_results(paths: Sequence[Path]) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """Part → packs with what was measured of them."""
    out: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for path in paths:
        found = json.loads(path.read_text(encoding="utf-8"))
        rest = "" if "default" in found["rules"] else ", rules on final features alone"
        out.setdefault(found["part"] + rest, []).append((path.stem, found))
    return out


def cells_of(packs: Iterable[tuple[str, dict[str, Any]]], rule: str) -> list[Cell]:
    """All cells of a rule."""
    return [
        (name, condition, kind, values)
        for name, found in packs
        for condition, kinds in found["rules"].get(rule, {}).get("cells", {}).items()
        for kind, values in kinds.items()
    ]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def signed(value: float) -> str:
    """A gain, with a proper minus."""
    return f"{value:+.1f}".replace("-", "−")


def name_of(packs: Iterable[tuple[str, dict[str, Any]]], rule: str) -> str:
    """The rule's name, marked where it has fewer draws or was run on compact encodings."""
    marks = {mark for _, found in packs for mark in _marks(found["rules"].get(rule, {}))}
    return rule + (f" ({', '.join(sorted(marks))})" if marks else "")


def _marks(found: dict[str, Any]) -> Iterable[str]:
    if found and not any("%" in kind for kinds in found["cells"].values() for kind in kinds):
        yield "5 draws"
    if found.get("compact"):
        yield "compact"


def harm(packs: list[tuple[str, dict[str, Any]]], rules: Sequence[str]) -> str:
    """Per rule: cells, how many lie below −1 and below −1 with their whole interval, the worst, and which it is."""
    rows = []
    for rule in rules:
        found = [cell for cell in cells_of(packs, rule) if "uncovered" not in cell[2]]
        if not found:
            continue
        below = sum(values[0] < -1 for *_, values in found)
        sure = sum(values[2] < -1 for *_, values in found)
        pack, condition, kind, values = min(found, key=lambda cell: cell[3][0])
        span = f"{signed(values[0])} [{signed(values[1])}, {signed(values[2])}]"
        counts = [str(len(found)), str(below), str(sure)]
        rows.append([name_of(packs, rule), *counts, span, f"{pack} {condition}, {kind}"])
    return table(["rule", "cells", "below −1", "surely", "worst", "where"], rows)


def by_kind(packs: list[tuple[str, dict[str, Any]]], rules: Sequence[str]) -> str:
    """Per kind and rule: mean over shifted cells / clean cells (worst cell)."""
    kinds = dict.fromkeys(cell[2] for rule in rules for cell in cells_of(packs, rule))
    plain = [kind for kind in kinds if "%" not in kind and kind != "uncovered lens"]
    rows = [
        [kind, *(_mean([cell for cell in cells_of(packs, rule) if cell[2] == kind]) for rule in rules)]
        for kind in plain
    ]
    return table(["stream", *(name_of(packs, rule) for rule in rules)], rows)


def _mean(cells: list[Cell]) -> str:
    if not cells:
        return "–"
    shifted = [values[0] for _, condition, _, values in cells if condition != "none"]
    clean = [values[0] for _, condition, _, values in cells if condition == "none"]
    means = " / ".join(signed(float(np.mean(part))) if part else "–" for part in (shifted, clean))
    return f"{means} ({signed(min(shifted + clean))})"


def besieged(packs: list[tuple[str, dict[str, Any]]], rules: Sequence[str]) -> str:
    """Per attack and rule: mean (worst) over cells of the frames that are not garbage."""
    kinds = dict.fromkeys(cell[2] for rule in rules for cell in cells_of(packs, rule) if "%" in cell[2])
    full = [rule for rule in rules if any("%" in cell[2] for cell in cells_of(packs, rule))]
    rows = []
    for kind in kinds:
        row = [kind]
        for rule in full:
            values = [cell[3][0] for cell in cells_of(packs, rule) if cell[2] == kind]
            row.append(f"{signed(float(np.mean(values)))} ({signed(min(values))})" if values else "–")
        rows.append(row)
    return table(["stream", *full], rows)


def covered(packs: list[tuple[str, dict[str, Any]]], rules: Sequence[str]) -> str:
    """Per pack and condition: covered less uncovered on images 31 to 330 after the cover."""
    rows = []
    for name, found in packs:
        for condition in found["conditions"]:
            lens = [found["rules"].get(rule, {}).get("lens", {}).get(condition) for rule in rules]
            rows.append([f"{name} {condition}", *("–" if one is None else signed(one[1]) for one in lens)])
    return table(["images 31 to 330 after the cover", *rules], rows)


TABLES = {
    "harm": (harm, "Cells with a mean below −1, and cells whose whole interval lies below −1."),
    "by kind of stream": (by_kind, "Mean over shifted cells / over clean cells (worst cell)."),
    "garbage": (besieged, "Mean (worst cell) over the clean and the first shifted condition; garbage is not scored."),
    "a covered lens": (covered, "Covered less the same stream uncovered, in points."),
}


def show(paths: Sequence[Path], asked: Sequence[str] | None = None) -> None:
    """Print every table of every part, of all rules or of those asked for."""
    for part, packs in sorted(load_results(paths).items(), reverse=True):
        known = dict.fromkeys(rule for _, found in packs for rule in found["rules"])
        rules = [rule for rule in asked if rule in known] if asked else list(known)
        print(f"## {part[0].upper() + part[1:]}\n")
        for name, (make, explained) in TABLES.items():
            print(f"### {part[0].upper() + part[1:]}: {name}\n{explained}\n\n{make(packs, rules)}\n")


def show_constants(paths: Sequence[Path]) -> None:
    """Print what each constant at half and double its value does: harm and gain beside the rule as it is."""
    packs = [pack for part in load_results(paths).values() for pack in part]
    rules = list(dict.fromkeys(rule for _, found in packs for rule in found["rules"]))
    print(
        table(
            ["constant", "i.i.d., sorted", "few classes", "day and night", "covered lens", "worst cell"],
            [[rule, *(_mean_of(packs, rule, kinds) for kinds in GROUPS), _worst(packs, rule)] for rule in rules],
        )
    )


GROUPS = (
    ("i.i.d.", "sorted", "half absent", "Zipf"),
    ("one class", "three classes", "a tenth", "camera"),
    ("day and night",),
    ("covered lens",),
)
"""Kinds of stream that a constant treats alike."""


def _mean_of(packs: list[tuple[str, dict[str, Any]]], rule: str, kinds: Sequence[str]) -> str:
    values = [cell[3][0] for cell in cells_of(packs, rule) if cell[2] in kinds]
    return signed(float(np.mean(values))) if values else "–"


def _worst(packs: list[tuple[str, dict[str, Any]]], rule: str) -> str:
    _, condition, kind, values = min(
        (cell for cell in cells_of(packs, rule) if "uncovered" not in cell[2]), key=lambda cell: cell[3][0]
    )
    return f"{signed(values[0])} ({kind}, {condition})"
