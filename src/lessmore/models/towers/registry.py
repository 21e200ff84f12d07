"""Who can import which model: functions registered with a test of the host object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import nn

from lessmore.core.text import TextTower
from lessmore.core.vit import ViT
from lessmore.models.towers.weights import unsupported_model

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


Importer = Callable[[nn.Module], Towers]
_IMPORTERS: list[tuple[Callable[[nn.Module], bool], Importer]] = []


def register_family(detect: Callable[[nn.Module], bool]) -> Callable[[Importer], Importer]:
    """Decorator: the function imports every model for which `detect` is true; the latest registered is asked first."""

    def add(importer: Importer) -> Importer:
        _IMPORTERS.insert(0, (detect, importer))
        return importer

    return add


def is_a(model: object, package: str, *names: str) -> bool:
    """Whether the object is an instance of one of these classes, judged by name so that nothing is imported."""
    return any(c.__name__ in names and c.__module__.split(".")[0] == package for c in type(model).__mro__)


def import_model(model: nn.Module) -> Towers:
    """Our towers around the host's weights; the host stays as it is."""
    for detect, importer in _IMPORTERS:
        if detect(model):
            return importer(model)
    raise unsupported_model(f"a {type(model).__module__}.{type(model).__qualname__}")
