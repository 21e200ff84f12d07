"""A library that lessmore knows nothing of. Its model holds towers in our layout, so there is nothing to rename."""

from __future__ import annotations

from torch import nn


class ToyModel(nn.Module):
    """A model with two towers."""

    def __init__(self, vision: nn.Module, text: nn.Module) -> None:
        super().__init__()
        self.vision, self.text = vision, text
