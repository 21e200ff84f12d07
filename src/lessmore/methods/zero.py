"""ZERO: the confident views of an image vote, each for one class: their mean answer at temperature zero."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from lessmore.core.costs import Accounting
from lessmore.core.encoder import encode
from lessmore.errors import ConfigError
from lessmore.methods.registry import Episodic, Facts, Outcome, Setup, register_method
from lessmore.methods.views import ViewOptions, make_views, of_plain
from lessmore.methods.zeroshot import zero_shot_logits


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


def ballot(logits: Tensor, selection: float) -> Tensor:
    """Logits [V, C] of all views → shares of the votes [C]; classes that lead together are told apart by one more vote.

    That vote is cast by the most confident of the other views that are for a leader; if none is, the most confident of
    the others chooses among the leaders.
    """
    order = torch.special.entr(logits.softmax(dim=-1)).sum(dim=-1).sort(stable=True).indices
    choices = logits.argmax(dim=-1)[order]
    kept = max(1, int(selection * len(logits) + 1e-9))
    counts = F.one_hot(choices[:kept], logits.shape[1]).sum(dim=0)
    leads = counts == counts.max()
    rest = kept % len(logits)  # where all have voted, all are asked once more
    asked = order[rest:].take(leads[choices[rest:]].int().argmax(dim=0, keepdim=True))
    favourite = logits.index_select(0, asked).where(leads, -torch.inf).argmax(dim=-1)
    extra = F.one_hot(favourite, logits.shape[1]).sum(dim=0) * (leads.sum() > 1)
    votes = (counts + extra).to(logits.dtype)
    return votes / votes.sum()


@register_method("zero", ZeroOptions)
class Zero(Episodic):
    """Every image alone; nothing is remembered."""

    def __init__(self, setup: Setup, options: ZeroOptions) -> None:
        self.setup = setup
        self.options = options
        self.facts = Facts(training_free=True, kind="episodic", views=options.views)

    def views(self, image: Image.Image | Tensor, seed: int) -> Tensor:
        """The plain image and random crops of it, [V, 3, S, S]."""
        return make_views(self.setup.model, image, seed, self.options)

    def predict(self, pixels: Tensor) -> Outcome:
        """Answer one image, given its views [V, 3, S, S]."""
        encoded = encode(self.setup.vision, pixels, self.setup.preset.condensation)
        logits = zero_shot_logits(encoded, self.setup.text, self.setup.logit_scale)
        scores = ballot(logits, self.options.selection)
        return Outcome(logits[0], scores, logits[0].softmax(dim=-1), None, of_plain(encoded.steps))

    def macs(self, accounting: Accounting = "matmul") -> int:
        """A pass of the tower for every view."""
        return self.options.views * self.setup.image_macs(accounting)
