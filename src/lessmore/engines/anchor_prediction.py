"""The class anchors that each image of a chunk will find, predicted before the chunk has been admitted."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lessmore.core.encoder import Encoded
from lessmore.core.reservoir import class_mean
from lessmore.core.scoring import Anchor, AnchorProvider, Candidates, anchor_cosines
from lessmore.engines.availability import has_triton


class NearestAnchors(NamedTuple):
    """The nearest class anchors of a batch."""

    label: Tensor
    """[B] int64, −1 where no class is ready."""
    token: Tensor
    """[B, D], arbitrary where `label` is −1."""
    lead: Tensor
    """How far its cosine lies above the second nearest's, [B]."""


class Forecast(NamedTuple):
    """A `scoring.AnchorProvider` for a batch of B images out of a chunk of P.

    Candidates are the C class means before the chunk and, for each of its images, the mean of its class after it.
    """

    means: Tensor
    """Before the chunk, [C, L, D]."""
    later: Tensor
    """After each image, as far as is known before the batch is encoded, [P, L, D]."""
    entries: Tensor
    """The C·M slots, the P images and a row of zeros: [C·M + P + 1, L, D]."""
    held: Tensor
    """The rows of `entries` that the class of each image consists of after it, [P, M] int64."""
    counts: Tensor
    """How many of them are entries, [P]."""
    ready: Tensor
    """Which classes each image of the batch may use, [B, C] bool."""
    rows: Tensor
    """The candidate that stands for each class, [B, C] int64."""
    fresh: Tensor | None = None
    """The image of the batch that provides a held row while it is being encoded, −1 if none does, [P, M] int64."""

    def at(self, layer: int, summary: Tensor) -> Candidates:
        """The anchors after a block.

        Args:
            layer: The block, counted from 0.
            summary: The batch's summary tokens after it, `[B, D]`; they replace the rows that `fresh` names.
        """
        # Images of the batch may be entries of the anchors that others of the batch look for. Their tokens are taken as
        # this pass makes them, or each pass would be one behind and the forecast would take longer to settle.
        later = self.later[:, layer]
        if self.fresh is not None:
            new = summary.to(later.dtype)[self.fresh.clamp_min(0)]
            entries = torch.where((self.fresh >= 0).unsqueeze(2), new, self.entries[self.held, layer])
            later = class_mean(entries.unsqueeze(2), self.counts).squeeze(1)
        return Candidates(torch.cat([self.means[:, layer], later]), self.ready, self.rows)

    def to(self, images: Tensor, source: Tensor) -> Forecast:
        """The same forecast for another batch out of the chunk.

        Args:
            images: The images of the batch, as places in the chunk, `[B]` int64.
            source: The place of each image of the chunk in the batch, −1 if it is not there, `[P]` int64.
        """
        slots = len(self.entries) - 1 - len(source)
        fresh = torch.cat([source.new_full((slots,), -1), source, source.new_full((1,), -1)])[self.held]
        return self._replace(ready=self.ready[images], rows=self.rows[images], fresh=fresh)

    def fits(self, encoded: Encoded, used: list[Tensor]) -> Tensor:
        """Whether images would be encoded the same by this forecast: the same nearest class and the same token.

        If the nearest class leads by so little that rounding could reverse it, the image counts as a misfit and is
        encoded again.

        Args:
            encoded: The chunk's encodings.
            used: The anchors `[P, D]` that each condensing block took.

        Returns:
            `[P]` bool.
        """
        alike = torch.ones_like(self.ready[:, 0])
        for (layer, label), token in zip(anchors_taken(encoded), used, strict=True):
            summary = encoded.tokens[:, layer]
            found = look_up(summary, self.at(layer, summary))
            unsure = found.lead <= 64 * torch.finfo(found.lead.dtype).eps
            same = (found.token == token).all(dim=1) & ~unsure
            alike &= (found.label == label) & ((label < 0) | same)
        return alike


def look_up(summary: Tensor, anchors: Candidates) -> NearestAnchors:
    """The nearest anchors: in a kernel on CUDA, else by plain functions.

    Args:
        summary: Summary tokens, `[B, D]`.
        anchors: The anchors to choose from.
    """
    if summary.is_cuda and summary.dtype != torch.float64 and has_triton():
        from lessmore.engines.kernels import nearest_anchor as kernel

        return NearestAnchors(*kernel.fused_look_up(summary, anchors))
    cosine = anchor_cosines(summary, anchors)
    index = cosine.argmax(dim=1, keepdim=True)
    lead = cosine.gather(1, index).squeeze(1) - cosine.scatter(1, index, -torch.inf).amax(dim=1)
    index = index.squeeze(1)
    return NearestAnchors(torch.where(anchors.ready.any(dim=-1), index, -1), anchors.tokens(index), lead)


def nearest(summary: Tensor, anchors: Candidates) -> Anchor:
    """`scoring.nearest_anchor`, carried out by `look_up`.

    Args:
        summary: Summary tokens, `[B, D]`.
        anchors: The anchors to choose from.
    """
    found = look_up(summary, anchors)
    return Anchor(found.token.unsqueeze(1).to(summary.dtype), found.label)


def used(encoded: Encoded, guide: AnchorProvider) -> list[Tensor]:
    """The anchors that the condensing blocks took, `[B, D]` each.

    Args:
        encoded: A batch.
        guide: The anchors it was encoded with.
    """
    return [guide.at(i, encoded.tokens[:, i]).tokens(label.clamp_min(0)) for i, label in anchors_taken(encoded)]


def anchors_taken(encoded: Encoded) -> list[tuple[int, Tensor]]:
    """For each block that looked for an anchor: the layer it compared with, and the class it took or −1, [B]."""
    return [(step.block - 1, step.anchor) for step in encoded.steps if step.anchor is not None]
