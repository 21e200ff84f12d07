"""The classes of an adapter: names, groups, prompts and embeddings, and how they change while a stream runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lessmore.core.class_list import ClassChange
from lessmore.errors import ConfigError, unknown
from lessmore.models.vlm import VLM
from lessmore.prompts import Templates, class_names, prompts, templates_for

ClassNames = Sequence[str] | Mapping[str, Sequence[str]] | Sequence[tuple[str, Sequence[str]]]
"""Class names, or groups of them by the groups' names, or pairs of both, in which a group may come again."""


@dataclass(frozen=True, eq=False)
class ClassList:
    """A class list and its embeddings. A change gives another one; embeddings of classes that stay are kept."""

    vlm: VLM
    names: tuple[str, ...]
    """As they were given, and as predictions carry them."""
    groups: tuple[str, ...]
    """The group of every class; empty where the list has none."""
    templates: Templates
    text: Tensor
    """Class embeddings, `[C, E]`."""
    cache: bool | str | Path = True
    """Where embeddings are kept on disk."""

    @property
    def written(self) -> str:
        """A hash of all prompts, which a saved state must share."""
        return hashlib.sha256(json.dumps(prompts(self.names, self.templates)).encode()).hexdigest()

    def added(self, classes: ClassNames) -> tuple[ClassList, ClassChange]:
        """The list with more classes at its end.

        Raises:
            ConfigError: A name is empty or there already, or groups are given to a list without or the other way round.
        """
        names, groups = _flat(classes)
        if bool(groups) != bool(self.groups):
            have = "groups: give {group: [names]}" if self.groups else "no groups: give a list of names"
            raise ConfigError(f"this class list has {have}")
        more = replace(self, names=tuple(class_names([*self.names, *names])), groups=self.groups + groups)
        fresh = self.vlm.classifier(names, self.templates, cache=self.cache)
        C = len(self.names)
        return replace(more, text=torch.cat([self.text, fresh])), ClassChange((*range(C), *[-1] * len(names)), C)

    def removed(self, classes: Iterable[str]) -> tuple[ClassList, ClassChange]:
        """The list without some classes; the others keep their order.

        Raises:
            ConfigError: A name is not in the list, or none would be left.
        """
        gone = {self._place(name) for name in class_names(classes)}
        kept = tuple(i for i in range(len(self.names)) if i not in gone)
        if not kept:
            raise ConfigError("no class would be left; add others first, or make another adapter")
        groups = tuple(self.groups[i] for i in kept) if self.groups else ()
        names, text = tuple(self.names[i] for i in kept), self.text[list(kept)]
        return replace(self, names=names, groups=groups, text=text), ClassChange(kept, len(self.names))

    def renamed(self, names: Mapping[str, str]) -> tuple[ClassList, ClassChange]:
        """The list with other names and embeddings for some classes, old → new; places stay.

        Raises:
            ConfigError: A name is not in the list, or a new one is empty or there already.
        """
        changed = {self._place(_one(old)): _one(new) for old, new in names.items()}
        text, after = self.text.clone(), [changed.get(i, name) for i, name in enumerate(self.names)]
        checked = tuple(class_names(after))
        if changed:
            text[list(changed)] = self.vlm.classifier(changed.values(), self.templates, cache=self.cache)
        return replace(self, names=checked, text=text), ClassChange(tuple(range(len(after))), len(after))

    def _place(self, name: str) -> int:
        if name not in self.names:
            raise ConfigError(unknown("class", name, self.names))
        return self.names.index(name)


def class_list(vlm: VLM, classes: ClassNames, templates: Templates, cache: bool | str | Path = True) -> ClassList:
    """A class list with its embeddings.

    Args:
        vlm: The model.
        classes: Names, or groups of names.
        templates: A named set of prompt templates, `family` for the one of the model's family, or strings with `{}`.
        cache: Whether to keep embeddings on disk; a path says where.

    Raises:
        ConfigError: A name or template cannot be used.
    """
    names, groups = _flat(classes)
    templates = templates_for(templates, vlm.family)
    return ClassList(vlm, names, groups, templates, vlm.classifier(names, templates, cache=cache), cache)


def _flat(classes: ClassNames) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names, and the group of each; no groups where none are given."""
    if isinstance(classes, str):
        return tuple(class_names(classes)), ()
    groups: list[Any] = list(classes.items() if isinstance(classes, Mapping) else classes)
    if not isinstance(classes, Mapping) and not any(isinstance(one, (tuple, list)) for one in groups):
        return tuple(class_names(groups)), ()
    if not all(isinstance(one, (tuple, list)) and len(one) == 2 for one in groups):
        raise ConfigError("classes are names, or groups of names, not both; give every class a group, or none")
    for group, members in groups:
        if isinstance(members, str) or not isinstance(members, Iterable):
            raise ConfigError(f"group {group!r} must hold a list of names, not {members!r}; write [{members!r}]")
        if not list(members):
            raise ConfigError(f"group {group!r} holds no class; give it one, or leave it out")
    pairs = [(name, _one(group)) for group, members in groups for name in members]
    return tuple(class_names([name for name, _ in pairs])), tuple(group for _, group in pairs)


def _one(name: str) -> str:
    return class_names([name])[0]
