"""A class list that changes while a stream runs: what becomes of everything that was learned.

- **Rows.** What belongs to a class goes with it, bit for bit: its entries, how often it was answered, how often it
  stood out. A new class has the rows of an empty state. A removed class takes its rows with it.
- **What names no class stays**: the mean feature, from which the mean logit of a new class follows, the mean token,
  the numbers of images.
- **Entropies of entries** stay those over the list of their time. An entry that was sure among fewer classes looks
  surer than a later one, and holds its slot longer.
- **What was summed over images from all classes at once stays too**: `power`, `rise` and `span` are means and extremes
  over the classes. They cannot be had again without the images, depend little on a single class, and fade.
- **The detector of changes** stays, unless the list becomes more than twice or less than half as long. Distances
  between logits grow with the number of classes, so it then learns afresh what is usual.
- **The last answer** is a softmax. Without the removed classes it is the same, divided by what is left of it.

Adding classes and removing them again, with no image in between, gives back every bit of the rest, short of a list
that more than doubled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lessmore.core.stream import EMPTY, StreamState, from_named

BY_CLASS = ("anchors", "keys", "ids", "counts", "means", "answer_counts", "standout_counts", "last_answer")
"""Tensors of a stream's state that have a row for every class."""
DETECTOR = ("evidence", "last_drift", "drift_power", "drift_product", "drift_images")
"""What the detector of changes remembers of the distances between logits."""
OTHERWISE = 2
"""From lists that are so many times as long, distances differ too much to be compared."""
LEAST = 1e-6
"""If less is left of the last answer, it says nothing about the classes that stay."""

NamedTensors = dict[str, Tensor]
FollowClasses = Callable[[Mapping[str, Tensor], Mapping[str, Tensor], "ClassChange"], NamedTensors]
"""(a method's state, the state with which the method starts on the new list, the change) → its state on that list."""


class ClassChange(NamedTuple):
    """How one class list became another."""

    source: tuple[int, ...]
    """Place in the old list of each class of the new one; −1 for a new class."""
    before: int
    """Length of the old list."""

    @property
    def gone(self) -> list[int]:
        """Places in the old list of the classes that were removed."""
        return sorted(set(range(self.before)) - set(self.source))

    def rows(self, old: Tensor, fresh: Tensor, axes: Sequence[int] = (0,)) -> Tensor:
        """What belongs to the new list: of classes that stay from `old`, of new ones from `fresh`.

        Args:
            old: A tensor of the old list.
            fresh: The same of the new list, before any image.
            axes: Where the classes lie, in ascending order.
        """
        if not axes:
            return old
        axis, further = axes[0], axes[1:]
        kept = torch.tensor([i for i, place in enumerate(self.source) if place >= 0], dtype=torch.int64)
        taken = torch.tensor([place for place in self.source if place >= 0], dtype=torch.int64)
        kept, taken = kept.to(old.device), taken.to(old.device)
        part = self.rows(old.index_select(axis, taken), fresh.index_select(axis, kept), further)
        return fresh.index_copy(axis, kept, part)


def follow_classes(state: StreamState, change: ClassChange) -> StreamState:
    """The state of a stream after a change of its class list.

    Args:
        state: The state with the old list; it stays as it is.
        change: How the list changed.
    """
    tensors, C = state.named(), len(change.source)
    for name in BY_CLASS:
        old = tensors[name]
        tensors[name] = change.rows(old, old.new_full((C, *old.shape[1:]), EMPTY.get(name, 0)))
    tensors["last_answer"] = _what_is_left(state.stream_mean.last_answer, tensors["last_answer"], change)
    if max(C, change.before) > OTHERWISE * min(C, change.before):
        tensors |= {name: torch.zeros_like(tensors[name]) for name in DETECTOR}
    return from_named(tensors)


def _what_is_left(before: Tensor, after: Tensor, change: ClassChange) -> Tensor:
    """The last answer, `[C]` over the old list and cut to the new one `[C']`, as a distribution again."""
    if not bool(before[change.gone].any()):
        return after
    stayed = after.new_tensor([place >= 0 for place in change.source])
    rest = after if bool(after.sum() > LEAST) else stayed
    return rest / rest.sum().clamp_min(LEAST)


def by_rows(**axes: tuple[int, ...]) -> FollowClasses:
    """The rule of a method whose state has rows of classes, and nothing else that depends on the list.

    Args:
        **axes: Where the classes lie in tensors of its state, by their names, with `_` for a dot. Others stay as they
            are, as does a tensor that all classes share and that therefore has no rows.
    """

    def follow(state: Mapping[str, Tensor], fresh: Mapping[str, Tensor], change: ClassChange) -> NamedTensors:
        lengths = change.before, len(change.source)
        own = {name: axes.get(name.replace(".", "_"), ()) for name in state}
        rows = {k: [a for a in v if (state[k].shape[a], fresh[k].shape[a]) == lengths] for k, v in own.items()}
        return {name: change.rows(old, fresh[name].to(old.device), rows[name]) for name, old in state.items()}

    return follow
