"""Who can import which model: functions registered with a test of the host object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import nn

from lessmore.core.text import TextTower
from lessmore.core.vit import ViT
from lessmore.models.preprocess import Preprocess
from lessmore.models.towers.refused import refusal_of
from lessmore.models.towers.weights import unsupported_model
from lessmore.registry import Registry

Family = Literal["clip", "siglip"]


@dataclass(frozen=True)
class Towers:
    """What an importer returns: both towers and how their features become logits."""

    vision: ViT
    text: TextTower
    logit_scale: float
    """Already exponentiated."""
    logit_bias: float
    family: Family
    preprocess: Preprocess | None = None
    """What the definition of the model does to images; None where only the host object or its files say that."""


Importer = Callable[[nn.Module], Towers]


class ModelFamily(NamedTuple):
    """One kind of host model."""

    detect: Callable[[nn.Module], bool]
    """Whether a model is of this kind; it must judge without importing the host's library."""
    importer: Importer


FAMILIES: Registry[ModelFamily] = Registry("model family", "lessmore.families")
"""Every model family by name. An entry point leads to an importer that `register_family` decorates."""


def register_family(name: str, detect: Callable[[nn.Module], bool]) -> Callable[[Importer], Importer]:
    """Decorator: the function imports every model for which `detect` is true.

    Args:
        name: The name of the family.
        detect: Whether a model is of this kind. Families registered later are asked first.

    Raises:
        ConfigError: The name belongs to another family.
    """

    def add(importer: Importer) -> Importer:
        FAMILIES.add(name, ModelFamily(detect, importer), source=importer)
        return importer

    return add


def is_a(model: object, package: str, *names: str) -> bool:
    """Whether an object is an instance of one of these classes, judged by name so that nothing is imported.

    Args:
        model: Any object.
        package: The top package that defines the classes, such as `transformers`.
        *names: Names of the classes, without modules.
    """
    return any(c.__name__ in names and c.__module__.split(".")[0] == package for c in type(model).__mro__)


def import_model(model: nn.Module) -> Towers:
    """Our towers around the host's weights; the host stays as it is.

    Raises:
        ModelError: No family knows the model.
    """
    own = FAMILIES.own()
    for family in reversed(own.values()):
        if family.detect(model):
            return family.importer(model)
    # Packages are imported only for a model that nobody else knows.
    for family in (FAMILIES.find(name) for name in FAMILIES.names() if name not in own):
        if family.detect(model):
            return family.importer(model)
    kind = type(model)
    raise unsupported_model(refusal_of(kind.__name__, f"a {kind.__module__}.{kind.__qualname__}"))
