"""A model family: how a model of `lessmore_toy.host` becomes our towers."""

from __future__ import annotations

from torch import nn

from lessmore.models.towers import Towers, is_a, register_family


@register_family("toy-model", lambda model: is_a(model, "lessmore_toy", "ToyModel"))
def import_toy(model: nn.Module) -> Towers:
    """The towers as they are."""
    return Towers(model.vision, model.text, logit_scale=10.0, logit_bias=0.0, family="clip")
