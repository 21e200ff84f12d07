"""Rotary positions: queries and keys are turned by where their token lies, and a condensed token lies somewhere too.

Class tokens, registers and whatever else is no part of the picture lie at the origin, where nothing is turned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lessmore.config import Condensation
from lessmore.core.condense.coreset import Condensed


@dataclass(frozen=True)
class Rope:
    """How a tower turns queries and keys; the patch in row r and column c lies at (start + step·r, start + step·c)."""

    start: float
    step: float
    columns_first: bool = False
    """The first half of a head turns by the column and the second by the row; otherwise the other way round."""
    base: float = 10_000.0
    """Pair j of the h/2 pairs in such a half turns by base^(−2j/h) of its coordinate."""
    turns: tuple[float, ...] | None = None
    """Pair j turns by this multiple of its coordinate instead; None goes by the base."""

    def grid(self, side: int, first: int, like: Tensor) -> Tensor:
        """Where the tokens of one picture lie, `[1, N, 2]`.

        Args:
            side: Patches in a row and in a column.
            first: Tokens before the patches, which lie at the origin.
            like: A tensor of the tower; places are in its type, float32 at least, and on its device.
        """
        wide = torch.promote_types(like.dtype, torch.float32)
        line = self.start + self.step * torch.arange(side, dtype=wide, device=like.device)
        rows, columns = line.repeat_interleave(side), line.repeat(side)
        patches = torch.stack((columns, rows) if self.columns_first else (rows, columns), dim=-1)
        return torch.cat([patches.new_zeros(first, 2), patches]).unsqueeze(0)


class Places(NamedTuple):
    """Where the tokens of a batch lie, and how far that turns them."""

    rope: Rope
    at: Tensor
    """[B, N, 2], or [1, N, 2] while all images share their places."""
    cos: Tensor
    """[B or 1, 1, N, d/2], as `sin`; d is the length of a head."""
    sin: Tensor

    @classmethod
    def of(cls, rope: Rope, at: Tensor, length: int) -> Places:
        """Tokens at given places.

        Args:
            rope: How the tower turns.
            at: Where the tokens lie, `[B, N, 2]`.
            length: Length d of a head.
        """
        pairs = torch.arange(length // 4, dtype=at.dtype, device=at.device)
        turns = rope.base ** (-4 * pairs / length) if rope.turns is None else at.new_tensor(rope.turns)
        angles = (at.unsqueeze(-1) * turns).flatten(2).unsqueeze(1)
        return cls(rope, at, angles.cos(), angles.sin())

    def moved(self, at: Tensor) -> Places:
        """The same heads with tokens at [B, N, 2]."""
        return Places.of(self.rope, at, 2 * self.cos.shape[-1])

    def rotate(self, x: Tensor) -> Tensor:
        """Queries or keys [B, H, N, d], each pair of neighbouring numbers turned by its angle."""
        a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
        turned = torch.stack([a * self.cos - b * self.sin, a * self.sin + b * self.cos], dim=-1)
        return turned.flatten(-2).to(x.dtype)

    def with_anchor(self, first: int, size: Tensor | None) -> Places:
        """The same with an anchor in front: where the class token lies, or without one in the middle of all tokens.

        Args:
            first: Tokens before the patches.
            size: How many patches each token stands for, `[B, N]`; None if all count as 1.
        """
        place = self.at[:, :1] if first else mean_place(self.at, size)
        return self.moved(torch.cat([place, self.at.expand(len(place), -1, -1)], dim=1))

    def condensed(self, done: Condensed, first: int, size: Tensor | None, config: Condensation) -> Places:
        """Where the tokens lie that leave a condensing block.

        Args:
            done: Where the patches went.
            first: Tokens before the patches, which stay where they lie.
            size: How many patches each token stood for before, `[B, N]`; None if all count as 1.
            config: The choice, `place`.
        """
        at = self.at.expand(len(done.target), -1, -1)
        patches = at[:, first:]
        if config.place == "centre" and done.centre is not None:
            places = patches.gather(1, done.centre.unsqueeze(-1).expand(-1, -1, 2))
        else:
            out = done.tokens.shape[1] - first
            weight = patches.new_ones(patches.shape[:2]) if size is None else size[:, first:]
            if config.place == "first":
                weight = first_members(done.target, out)
            places = members_mean(patches, done.target, weight, out)
        return self.moved(torch.cat([at[:, :first], places], dim=1))


def mean_place(at: Tensor, size: Tensor | None) -> Tensor:
    """The mean place of all tokens, `[B, 1, 2]`.

    Args:
        at: Where they lie, `[B, N, 2]`.
        size: How much each counts, `[B, N]`; None counts all alike.
    """
    if size is None:
        return at.mean(dim=1, keepdim=True)
    share = size / size.sum(dim=1, keepdim=True)
    return share.to(at.dtype).unsqueeze(1) @ at


def first_members(target: Tensor, out: int) -> Tensor:
    """True for the patch that comes first among those that went to the same token, `[B, n]` bool.

    Args:
        target: Which token each patch went to, `[B, n]`; −1 for none.
        out: Number of tokens.
    """
    slot, at = target.clamp_min(0), torch.arange(target.shape[1], device=target.device).expand_as(target)
    earliest = at.new_full((len(at), out), target.shape[1])
    earliest.scatter_reduce_(1, slot, at.masked_fill(target < 0, target.shape[1]), "amin")
    return torch.eq(earliest.gather(1, slot), at)


def members_mean(at: Tensor, target: Tensor, weight: Tensor, out: int) -> Tensor:
    """The mean place of the patches that went to each token, `[B, out, 2]`.

    Args:
        at: Where the patches lie, `[B, n, 2]`.
        target: Which token each went to, `[B, n]`; −1 for none.
        weight: How much each counts, `[B, n]`.
        out: Number of tokens.
    """
    slot, weight = target.clamp_min(0), weight.to(at.dtype).masked_fill(target < 0, 0)
    total = weight.new_zeros(len(at), out).scatter_add_(1, slot, weight)
    sums = at.new_zeros(len(at), out, 2)
    sums.scatter_add_(1, slot.unsqueeze(-1).expand(-1, -1, 2), at * weight.unsqueeze(-1))
    return sums / total.clamp_min(torch.finfo(at.dtype).tiny).unsqueeze(-1)
