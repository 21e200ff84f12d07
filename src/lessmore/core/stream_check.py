"""What the numbers of a stream's state can be. A state from elsewhere is checked before it is used.

The bounds follow from how the state is made: features have length 1, answers are probabilities, sums that decay
together stay in proportion, slots fill from the left. They leave room for rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from lessmore.core.debias import MEMORY, PAST
from lessmore.core.novelty import APART, FADE
from lessmore.core.stream import StreamState
from lessmore.core.token_mean import SHARE

_ROOM = 1e-2
"""For rounding, in half precision too."""
_HIGHEST = math.log(1e9)
"""Entropy over a billion classes. An entry keeps the entropy it had over the class list of its time, longer or not."""
_LONGEST = 1e12
"""Images of a stream: thirty years at a thousand a second."""
LARGEST = 1e15
"""Above this, the square of a token overflows in single precision."""


def problem(state: Mapping[str, Tensor]) -> str | None:
    """Why tensors of the right names, types and shapes cannot be a stream's state; None if they can.

    Args:
        state: The tensors of `core.stream.saved`, on the CPU.
    """
    for name, tensor in state.items():
        if not bool(tensor.isfinite().all()):
            return f"{name} has a number that is not finite"
    wide = {
        name: tensor if name == "anchors" else tensor.double() for name, tensor in state.items()
    }  # anchors are large
    for holds, reason in (*_reservoir(wide), *_mean(wide), *_domain(wide), *_novelty(wide)):
        if not bool(holds):
            return reason
    return None


def delta_problem(state: StreamState, delta: Mapping[str, Tensor]) -> str | None:
    """Why tensors cannot be what one more image did to a state; None if they can.

    Args:
        state: The state before the image.
        delta: The tensors of `Delta.named`, of the last frames the newest alone; of an image not stored, without
            its tokens.
    """
    held = state.reservoir
    C, M, L, D = held.anchors.shape
    own = {name: tensor for name, tensor in state.named().items() if name not in held._fields}
    own["key"] = held.keys[0, 0]
    own["last_frames"] = own["last_frames"][-1:]
    forms = {name: (tensor.dtype, tensor.shape) for name, tensor in own.items()}
    forms |= {name: (torch.int64, torch.Size()) for name in ("label", "slot", "id")}
    found = {name: (tensor.dtype, tensor.shape) for name, tensor in delta.items() if name != "tokens"}
    if found != forms or "tokens" not in delta:
        return "its tensors are not those of an image"
    if not all(bool(tensor.isfinite().all()) for name, tensor in delta.items() if name != "key"):
        return "a number is not finite"
    stored = int(delta["slot"]) >= 0
    if tuple(delta["tokens"].shape) != (L if stored else 0, D) or delta["tokens"].dtype != held.anchors.dtype:
        return "its tokens are not those of an image"
    if not (0 <= int(delta["label"]) < C and -1 <= int(delta["slot"]) < M and int(delta["id"]) == int(held.step)):
        return "it names a place or an image that there is not"
    return None


def _reservoir(state: Mapping[str, Tensor]) -> Iterator[tuple[Tensor | bool, str]]:
    """Entries, their numbers and counts."""
    ids, counts, step, keys = state["ids"], state["counts"], state["step"], state["keys"]
    used, M = ids >= 0, ids.shape[1]
    known = ids[used]
    yield 0 <= step <= _LONGEST, "step counts more images than any stream has"
    yield (ids >= -1).all() and (ids < step).all(), "ids names images the stream has not seen"
    yield len(known.unique()) == len(known), "ids names an image twice"
    yield torch.equal(used.sum(dim=1).double(), counts), "counts does not count the entries"
    yield torch.equal(used, torch.arange(M) < counts[:, None]), "slots do not fill from the left"
    yield (keys >= -_ROOM).all() and (keys <= _HIGHEST).all(), "keys has an impossible entropy"
    yield not state["anchors"][~used].any() and not keys[~used].any(), "an empty slot is not empty"
    yield (state["anchors"].abs() <= LARGEST).all(), "anchors has a number that is too large"


def _mean(state: Mapping[str, Tensor]) -> Iterator[tuple[Tensor | bool, str]]:
    """What the stream has in common."""
    images, last = state["images"], state["last_answer"]
    most = images * (1 + _ROOM) + _ROOM
    yield 0 <= images <= state["step"] + _ROOM, "images counts more images than the stream has seen"
    yield state["feature_sum"].norm() <= most, "feature_sum is longer than its images can make it"
    yield state["recent_feature"].norm() <= 1 + _ROOM, "recent_feature is longer than a feature"
    for name in ("answer_counts", "standout_counts"):
        counts = state[name]
        # Fewer where classes were removed, which took their counts with them.
        yield (counts >= 0).all() and counts.sum() <= most, f"{name} does not count the images"
    empty = images == 0 and not last.any()
    yield (last >= 0).all() and (empty or (last.sum() - 1).abs() <= _ROOM), "last_answer is no probability"
    yield 0 <= state["effective_samples"] <= min(MEMORY, 2 * float(images)) + _ROOM, "effective_samples is out of range"
    yield 0 <= state["power"] <= LARGEST, "power is out of range"
    yield state["span"] <= LARGEST, "span is out of range"
    yield state["rise"].abs() <= state["span"] * (1 + _ROOM) + _ROOM, "rise is larger than span"
    yield 0 <= state["strength"] <= 1, "strength does not lie between 0 and 1"
    yield (state["token_mean"].norm(dim=-1) <= SHARE + _ROOM).all(), "token_mean is longer than a mean of tokens"


def _domain(state: Mapping[str, Tensor]) -> Iterator[tuple[Tensor | bool, str]]:
    """The detector of changes."""
    changes = state["domain_changes"]
    yield 0 <= changes <= state["step"] and changes == changes.round(), "domain_changes is no count"
    yield 0 <= state["drift_images"] <= PAST * (1 + _ROOM), "drift_images is out of range"
    yield 0 <= state["evidence"] <= LARGEST, "evidence is out of range"
    yield 0 <= state["drift_power"] <= LARGEST, "drift_power is out of range"
    yield state["drift_product"].abs() <= LARGEST, "drift_product is out of range"
    yield state["last_drift"].abs() <= LARGEST, "last_drift is out of range"


def _novelty(state: Mapping[str, Tensor]) -> Iterator[tuple[Tensor | bool, str]]:
    """What tells new frames from known ones."""
    lengths, distances = state["last_frames"].norm(dim=1), state["distances"]
    empty = lengths == 0
    yield (empty | ((lengths - 1).abs() <= _ROOM)).all(), "last_frames holds what is no feature"
    yield (empty.double().diff() <= 0).all(), "last_frames does not fill from the end"
    yield 0 <= distances <= FADE / (1 - FADE) + _ROOM, "distances is out of range"
    yield 0 <= state["distance_sum"] <= APART * distances * (1 + _ROOM) + _ROOM, "distance_sum is out of range"
