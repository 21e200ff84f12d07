"""ZERO: the confident views of an image vote, each for one class: their mean answer at temperature zero."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lessmore.core.costs import Accounting
from lessmore.errors import ConfigError
from lessmore.methods.registry import register_method
from lessmore.methods.views import ViewEnsemble, ViewOptions


@dataclass(frozen=True)
class ZeroOptions(ViewOptions):
    """ZERO's own settings, as published."""

    selection: float = 0.3
    """Share of the views that vote, those with the least entropy; one at least."""

    def __post_init__(self) -> None:
        """Validate once; every later use may trust the values."""
        super().__post_init__()
        if not 0 < self.selection <= 1:
            raise ConfigError(f"selection must lie in (0, 1], not {self.selection}")


def tally_votes(logits: Tensor, selection: float) -> Tensor:
    """Shares of the votes, `[C]`. A tie is decided by one more vote.

    That vote is cast by the most confident of the remaining views that predicts one of the tied classes. If none does,
    the most confident remaining view chooses among them.

    Args:
        logits: Of all views, `[V, C]`.
        selection: Fraction of the views that vote, rounded down; at least one does.
    """
    order = torch.special.entr(logits.softmax(dim=-1)).sum(dim=-1).sort(stable=True).indices
    choices = logits.argmax(dim=-1)[order]
    kept = max(1, int(selection * len(logits) + 1e-9))  # 0.29 · 100 is a little less than 29 in floating point
    counts = F.one_hot(choices[:kept], logits.shape[1]).sum(dim=0)
    leads = counts == counts.max()
    rest = kept % len(logits)  # where all have voted, all are asked once more
    asked = order[rest:].take(leads[choices[rest:]].int().argmax(dim=0, keepdim=True))
    favourite = logits.index_select(0, asked).where(leads, -torch.inf).argmax(dim=-1)
    extra = F.one_hot(favourite, logits.shape[1]).sum(dim=0) * (leads.sum() > 1)
    votes = (counts + extra).to(logits.dtype)
    return votes / votes.sum()


@register_method("zero", ZeroOptions)
class Zero(ViewEnsemble[ZeroOptions]):
    """The class with the most votes of confident views."""

    def combine(self, features: Tensor, logits: Tensor) -> Tensor:
        """Shares of the votes, `[C]`.

        Args:
            features: Not read.
            logits: Of all views, `[V, C]`.
        """
        return tally_votes(logits, self.options.selection)

    def macs(self, accounting: Accounting = "matmul") -> int:
        """A pass of the tower for every view.

        Args:
            accounting: See `Method.macs`.
        """
        return self.options.views * self.setup.image_macs(accounting)
