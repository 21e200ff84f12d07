"""The data sets known by name, as facts: class names, templates, counts, layouts, licences and where to get them."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from lessmore.prompts import TEMPLATES

COMMON = {
    "coop": tuple(TEMPLATES["photo"]),
    "simple7": tuple(TEMPLATES["simple7"]),
    "imagenet80": tuple(TEMPLATES["imagenet80"]),
}
"""Template sets that every data set has."""


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What is known of a data set before a file of it is seen."""

    name: str
    title: str
    reader: str = ""
    """Which of our own readers opens it; empty for a reader decorated with `register_dataset`."""
    images: int
    """Images of the test split."""
    classes: tuple[str, ...]
    class_folders: tuple[str, ...] = ()
    """Sub-folders of the classes, in the order of `classes`, if images are sorted that way."""
    folders: tuple[str, ...] = ("",)
    """Folders of the images below the root, in the layouts of CoOp and TDA, TPT, and the TCA repository."""
    split: str | None = None
    """File that lists the test images."""
    templates: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: dict(COMMON))
    """Template sets by name; the first is the default."""
    licence: str = "not stated"
    source: str = "it from whoever made it"
    """How to obtain it."""
    aliases: tuple[str, ...] = ()


@functools.cache
def specs() -> dict[str, Spec]:
    """The published data sets that lessmore knows, by name."""
    classes, sets = _facts("classes.json"), _facts("sets.json")["sets"]
    return {name: _spec(name, entry, classes) for name, entry in sets.items()}


@functools.cache
def groups() -> dict[str, tuple[str, ...]]:
    """Groups of data sets, and the names of their members."""
    return {name: tuple(members) for name, members in _facts("sets.json")["groups"].items()}


@functools.cache
def _facts(file: str) -> Any:
    return json.loads(resources.files("lessmore.data").joinpath(file).read_text(encoding="utf-8"))


def _spec(name: str, entry: dict[str, Any], classes: dict[str, Any]) -> Spec:
    names, folders = _classes(name, classes)
    return Spec(
        name=name,
        title=entry["title"],
        reader=entry["reader"],
        images=entry["images"],
        classes=names,
        class_folders=folders,
        folders=tuple(entry["folders"]),
        split=entry["split"],
        templates=_templates(entry),
        licence=entry["licence"],
        source=entry["source"],
        aliases=tuple(entry["aliases"]),
    )


def _classes(name: str, facts: dict[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of a set's classes and, for ImageNet and its variants, their folders: WordNet ids, plain numbers in V2."""
    if name in facts["names"] and name != "imagenet":
        return tuple(facts["names"][name]), ()
    chosen = facts["subsets"].get(name, range(len(facts["wnids"])))
    folders = [str(i) if name == "imagenet_v2" else facts["wnids"][i] for i in chosen]
    return tuple(facts["names"]["imagenet"][i] for i in chosen), tuple(folders)


def _templates(entry: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """All template sets of a data set; its own go first, because the first set is the default."""
    return {"clip": tuple(entry.get("clip", COMMON["imagenet80"])), **COMMON, "coop": (entry["coop"],)}
