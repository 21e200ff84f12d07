"""From class names to prompts: templates and text clean-up."""

from __future__ import annotations

import functools
import json
import string
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from importlib import resources
from typing import Any

from lessmore.errors import ConfigError, unknown

Template = str | Callable[[str], str]
Templates = str | Sequence[Template]


@functools.cache
def _facts() -> Any:
    return json.loads(resources.files("lessmore").joinpath("templates.json").read_text(encoding="utf-8"))


TEMPLATES: dict[str, list[str]] = _facts()["sets"]
FAMILY = "family"
"""In place of a set's name: the one that models of the family are published with."""
FAMILY_TEMPLATES: dict[str, str] = _facts()["families"]


def templates_for(templates: Templates, family: str) -> Templates:
    """Templates as they were asked for, with `family` replaced by the name of the family's set.

    Args:
        templates: Whatever `resolve_templates` takes, or `family`.
        family: The model's family, such as `clip` or `siglip`.

    Examples:
        >>> templates_for("family", "siglip")
        'sentence'
    """
    return FAMILY_TEMPLATES[family] if templates == FAMILY else templates


def canonicalise(text: str, family: str) -> str:
    """Text in the form the family was trained on: lower-case without punctuation for SigLIP, unchanged for CLIP.

    Args:
        text: A prompt.
        family: The model's family, such as `clip` or `siglip`; only `siglip` changes the text.

    Examples:
        >>> canonicalise("A photo of a Red_Fox.", "siglip")
        'a photo of a red fox'
    """
    if family != "siglip":
        return text
    text = text.replace("_", " ").translate(str.maketrans("", "", string.punctuation))
    return " ".join(text.lower().split())


def class_names(classes: Iterable[str]) -> list[str]:
    """Class names as they were given; empty ones, and two that would make the same prompts, are refused."""
    if isinstance(classes, str):
        raise ConfigError(f"classes is the single string {classes!r}; give a list of names")
    names = list(classes)
    if not names:
        raise ConfigError("there are no classes; give at least one name")
    first: dict[str, str] = {}
    for name in names:
        if not isinstance(name, str):
            raise ConfigError(f"the class name {name!r} is not a string; convert it first")
        said = spoken(name)
        if not said:
            raise ConfigError(f"the class name {name!r} is empty; remove it or give it a name")
        if said in first:
            twice = (
                f"{name!r} appears more than once" if first[said] == name else f"{name!r} reads like {first[said]!r}"
            )
            raise ConfigError(f"the class {twice}; give every class its own name")
        first[said] = name
    return names


def spoken(name: str) -> str:
    """A class name as prompts say it: underscores become spaces, spaces are single, and accents are part of letters.

    Some file systems keep accents apart (NFD), and not every tokenizer joins them (NFC) as CLIP's does: the same name
    would be other tokens.

    Args:
        name: The name of a class or folder.

    Examples:
        >>> spoken("car_side")
        'car side'
    """
    return " ".join(unicodedata.normalize("NFC", name).replace("_", " ").split())


def template_texts(templates: Templates) -> tuple[str, ...]:
    """The templates that are strings, each with a place for the class name; functions are left out."""
    if isinstance(templates, str):
        templates = TEMPLATES.get(templates) or [templates]
    return tuple(template for template in templates if isinstance(template, str))


def resolve_templates(templates: Templates) -> list[Callable[[str], str]]:
    """Templates as functions from a class name to a prompt.

    Args:
        templates: The name of a template set, one string with `{}` or `{c}`, or a sequence of such strings and of
            functions.

    Raises:
        ConfigError: The set is unknown, there are no templates, or one has no place for the name.
    """
    if isinstance(templates, str):
        if "{" not in templates and templates not in TEMPLATES:
            raise ConfigError(unknown("template set", templates, (*TEMPLATES, FAMILY)))
        templates = TEMPLATES.get(templates) or [templates]
    if not isinstance(templates, Sequence) or not templates:
        raise ConfigError('there are no templates; give at least one, such as "a photo of a {}."')
    return [template if callable(template) else _fill(template) for template in templates]


def _fill(template: str) -> Callable[[str], str]:
    place = next((place for place in ("{}", "{c}") if place in template), None)
    if place is None:
        raise ConfigError(f"the template {template!r} has no {{}} for the class name; add one")
    return lambda name: template.replace(place, name)


def prompts(classes: Iterable[str], templates: Templates) -> list[list[str]]:
    """The prompts of every class: one list per class, in the order of `classes`, with one prompt per template.

    Args:
        classes: Class names; prompts say them as `spoken` does.
        templates: The name of a template set, or templates as `resolve_templates` takes them.

    Raises:
        ConfigError: A class name or template cannot be used.

    Examples:
        >>> prompts(["red_fox", "owl"], ["a photo of a {}."])
        [['a photo of a red fox.'], ['a photo of a owl.']]
    """
    functions = resolve_templates(templates)
    return [[function(spoken(name)) for function in functions] for name in class_names(classes)]
