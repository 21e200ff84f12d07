"""The class anchors as each image of a chunk will find them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lessmore.encoder import Encoded
from lessmore.reservoir import class_mean
from lessmore.scoring import Candidates, anchor_cosines


class Forecast(NamedTuple):
    """A `scoring.Guide` for a batch of B images out of a chunk of P.

    Candidates are the C class means before the chunk and, for each of its images, the mean of its class from then on.
    """

    means: Tensor
    """Before the chunk, [C, L, D]."""
    entries: Tensor
    """The C·M slots, the P images, a row of zeros and a spare one: [C·M + P + 2, L, D]."""
    held: Tensor
    """The rows of `entries` that the class of each image consists of from then on, [P, M] int64."""
    counts: Tensor
    """How many of them are entries, [P]."""
    ready: Tensor
    """Which classes may serve, for each image of the batch, [B, C] bool."""
    rows: Tensor
    """The candidate that stands for each class, [B, C] int64."""
    batch: Tensor | None = None
    """The rows of `entries` that the images of the batch replace while they are encoded, [B] int64."""

    def at(self, layer: int, summary: Tensor) -> Candidates:
        """The anchors after block `layer`; the batch contributes to them what has just left the block, [B, D]."""
        entries = self.entries[:, layer]
        if self.batch is not None:
            entries = entries.index_copy(0, self.batch, summary.to(entries.dtype))
        later = class_mean(entries[self.held].unsqueeze(2), self.counts).squeeze(1)
        return Candidates(torch.cat([self.means[:, layer], later]), self.ready, self.rows)

    def to(self, images: Tensor, real: int) -> Forecast:
        """For a batch of images [B] of the chunk, of which those after the first `real` only fill it up."""
        spare = len(self.entries) - 1
        batch = images + (spare - 1 - len(self.held))
        batch[real:] = spare
        return self._replace(ready=self.ready[images], rows=self.rows[images], batch=batch)

    def used(self, encoded: Encoded) -> list[Tensor]:
        """The anchors [P, D] that the blocks of a chunk took if it was encoded by this forecast."""
        return [self.at(layer, encoded.tokens[:, layer]).tokens(label.clamp_min(0)) for layer, label in taken(encoded)]

    def fits(self, encoded: Encoded, used: list[Tensor]) -> Tensor:
        """Whether images would be encoded alike by this forecast, [P] bool: the same nearest class, the same token.

        A lead too small to be safe from rounding does not count: such an image is encoded again for certainty.
        """
        alike = torch.ones_like(self.ready[:, 0])
        for (layer, label), token in zip(taken(encoded), used, strict=True):
            candidates = self.at(layer, encoded.tokens[:, layer])
            cosine = anchor_cosines(encoded.tokens[:, layer], candidates)
            index = label.clamp_min(0).unsqueeze(1)
            mine, rival = cosine.gather(1, index).squeeze(1), cosine.scatter(1, index, -torch.inf).amax(dim=1)
            unsure = rival >= mine - 64 * torch.finfo(cosine.dtype).eps
            same = (candidates.tokens(label.clamp_min(0)) == token).all(dim=1) & (cosine.argmax(dim=1) == label)
            alike &= torch.where(label >= 0, same & ~unsure, ~self.ready.any(dim=1))
        return alike


def taken(encoded: Encoded) -> list[tuple[int, Tensor]]:
    """For each block that looked for an anchor: the layer it looked in, and the class it took or −1, [B]."""
    return [(step.block - 1, step.anchor) for step in encoded.steps if step.anchor is not None]
