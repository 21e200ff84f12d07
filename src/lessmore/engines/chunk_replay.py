"""The reservoir that each image of a chunk finds, without keeping a reservoir per image.

Rows are numbered consecutively: first the slots before the chunk, then the chunk's P images. When image i arrives, a
place holds the last row that went into it. So the history of a chunk is one running maximum, and everything that
depends on it is gathered from products computed for all rows at once. All shapes are fixed by C, M and P.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lessmore.config import Adaptation, Ready
from lessmore.core.correction import class_scores, correct
from lessmore.core.encoder import Encoded
from lessmore.core.reservoir import Reservoir, class_mean
from lessmore.core.token_mean import debiased_cosine
from lessmore.engines.admission import Arrivals, ClassEntries, admit_all
from lessmore.engines.anchor_prediction import Forecast
from lessmore.engines.availability import has_triton
from lessmore.engines.chunk_debias import ChunkDebiased

COLUMNS = 32
"""Products have a multiple of so many columns."""


class ChunkInputs(NamedTuple):
    """What the decisions about P images depend on; `admission.Arrivals` on the device."""

    label: Tensor
    """[P] int64"""
    key: Tensor
    """[P]"""
    sound: Tensor
    """[P] bool"""
    near: Tensor | None
    """[P, M + P] float64"""
    cosines: Tensor | None
    """Between the entries of a class before the chunk, 0 on the diagonal; predicted classes only: [C, M, M] float64."""


class Admissions(NamedTuple):
    """What P images do to the reservoir, all int64."""

    label: Tensor
    """Predicted class, [P]."""
    slot: Tensor
    """The slot that each takes, −1 where it is not stored, [P]."""
    counts: Tensor
    """Entries of its class after it, 0 where it is not stored, [P]."""
    held: Tensor
    """The rows of these entries, [P, M]: class · M + slot before the chunk, C·M + j for image j, C·M + P for none."""
    all_ready: Tensor
    """The first image that finds two entries in every class, []; larger than any index if there is none."""

    @property
    def stored(self) -> Tensor:
        """[P] bool"""
        return self.slot >= 0


def chunk_inputs(
    state: Reservoir, encoded: Encoded, logits: Tensor, key: Tensor, images: Tensor, config: Adaptation
) -> ChunkInputs:
    """What decisions about a chunk depend on.

    Cosines are computed in float64, so that their rounding cannot depend on the size of the chunk.

    Args:
        state: The reservoir before the chunk.
        encoded: The chunk's encodings.
        logits: Debiased logits, `[P, C]`.
        key: Reliabilities, `[P]`.
        images: How many of the images are real, `[]`; the others fill the chunk up and are never stored.
        config: The adaptation.
    """
    label = logits.argmax(dim=-1)
    sound = encoded.tokens.isfinite().flatten(1).all(dim=1) & torch.cat([encoded.feature, logits], 1).isfinite().all(1)
    sound &= torch.arange(len(label), device=label.device) < images
    # Other strategies decide by numbers alone; all these cosines would be computed for nothing.
    if config.strategy not in ("diversity", "similarity"):
        return ChunkInputs(label, key, sound, None, None)
    new, unit = layer_mean(encoded.tokens), layer_mean(state.anchors[label])
    near = torch.cat([(unit @ new.unsqueeze(-1)).squeeze(-1), new @ new.T], dim=1)
    C, M = state.ids.shape
    cosines = new.new_zeros(C, M, M)
    cosines[label] = (unit @ unit.transpose(1, 2)) * (1 - torch.eye(M, dtype=unit.dtype, device=unit.device))
    return ChunkInputs(label, key, sound, near, cosines)


def layer_mean(tokens: Tensor) -> Tensor:
    """Unit vectors along the mean over layers, [..., L, D] → [..., D] float64."""
    return F.normalize(tokens.mean(dim=-2, dtype=torch.float64), dim=-1)


def decide_all(state: Reservoir, chunk_inputs: ChunkInputs, config: Adaptation) -> Admissions:
    """Admit the images one after another: in a kernel on CUDA, else on the host.

    Args:
        state: The reservoir before the chunk; it stays as it is.
        chunk_inputs: What the decisions depend on.
        config: The adaptation.
    """
    if not chunk_inputs.label.is_cuda or not has_triton():
        return admit_on_host(state, chunk_inputs, config)
    from lessmore.engines.kernels import admission as kernel

    slot, counts, held, ready = kernel.fused_admit(state, config.strategy, *chunk_inputs)
    return Admissions(chunk_inputs.label, slot, counts, held, ready.amax())


def admit_on_host(state: Reservoir, chunk_inputs: ChunkInputs, config: Adaptation) -> Admissions:
    """The same on the host, by `admission.admit_all`.

    Args:
        state: The reservoir before the chunk; it stays as it is.
        chunk_inputs: What the decisions depend on.
        config: The adaptation.
    """
    (C, M), P = state.ids.shape, len(chunk_inputs.label)
    near = None if chunk_inputs.near is None else chunk_inputs.near.cpu().numpy()
    newcomers = Arrivals(chunk_inputs.label.tolist(), chunk_inputs.key.tolist(), chunk_inputs.sound.tolist(), near)
    stored, all_ready = admit_all(
        class_entries(state, chunk_inputs.cosines), M, config.strategy, int(state.step), newcomers
    )
    # One table crosses to the device in one copy; three small ones would each cost a transfer.
    table = np.zeros((P, 2 + M), dtype=np.int64)
    table[:, 0], table[:, 2:] = -1, C * M + P
    for image, label, slot, origins in stored:
        table[image, :2] = slot, len(origins)
        table[image, 2 : 2 + len(origins)] = [label * M + o if o < M else (C - 1) * M + o for o in origins]
    told = torch.from_numpy(table).to(state.ids.device)
    return Admissions(chunk_inputs.label, told[:, 0], told[:, 1], told[:, 2:], state.step.new_tensor(all_ready))


def class_entries(state: Reservoir, cosines: Tensor | None) -> list[ClassEntries]:
    """The entries of every class in the form that `admission.admit_all` takes.

    Args:
        state: The reservoir.
        cosines: `ChunkInputs.cosines`, `[C, M, M]`; None for strategies that do not look at them.
    """
    M = state.ids.shape[1]
    near = state.keys.new_zeros(len(state.ids), M, M) if cosines is None else cosines
    rows = zip(state.keys.tolist(), state.ids.tolist(), near.tolist(), state.counts.tolist(), strict=True)
    return [ClassEntries(k[:n], i[:n], [row[:n] for row in c[:n]], list(range(n))) for k, i, c, n in rows]


def history(places: int, place: Tensor, arrived: Tensor, delay: int) -> Tensor:
    """What each place holds when image i looks.

    Args:
        places: Number of places.
        place: Where each image went, `[P]` int64.
        arrived: Whether it went there at all, `[P]` bool.
        delay: 0 if image i sees itself, 1 if it does not.

    Returns:
        `[P, places]` int64: the place's own row, or `places` + t if image t went there last.
    """
    P = len(place)
    time = torch.arange(P, device=place.device)
    rows = place.new_zeros(places, P + 1)  # a place's history is contiguous, which makes the scan much faster
    rows[place, time + delay] = (places + time) * arrived
    rows[:, 0] = rows[:, 0].maximum(torch.arange(places, device=place.device))
    return rows.cummax(dim=1).values[:, :P].T.contiguous()


def forecast(state: Reservoir, decisions: Admissions, tokens: Tensor, ready: Ready) -> Forecast:
    """The anchors that each image finds, if the chunk's tokens are right.

    Args:
        state: The reservoir before the chunk.
        decisions: Which images are stored where.
        tokens: The chunk's summary tokens, `[P, L, D]`.
        ready: When a class may serve as an anchor.
    """
    C = len(state.counts)
    # The row of zeros stands for an empty slot. So every class is a sum of M rows, however many entries it has.
    slots = state.anchors.flatten(0, 1)
    entries = torch.cat([slots, tokens.to(slots.dtype), slots.new_zeros(1, *slots.shape[1:])])
    later = class_mean(entries[decisions.held], decisions.counts)
    rows = history(C, decisions.label, decisions.stored, delay=1)
    if ready == "class":
        usable = (rows >= C) | (state.counts >= 1)
    else:
        late = torch.arange(len(rows), device=rows.device) >= decisions.all_ready
        usable = late.unsqueeze(1).expand_as(rows).contiguous()
    return Forecast(state.means, later, entries, decisions.held, decisions.counts, usable, rows)


def corrected(
    state: Reservoir,
    decisions: Admissions,
    tokens: Tensor,
    debiased: ChunkDebiased,
    token_means: Tensor | None,
    weights: Tensor,
    config: Adaptation,
) -> Tensor:
    """p̃ of P images against the entries that each finds, `[P, C]`.

    Args:
        state: The reservoir before the chunk.
        decisions: What the images do to it.
        tokens: Summary tokens, `[P, L, D]`.
        debiased: What debiasing makes of the images.
        token_means: The token mean that each image finds, `[P, L, D]`; None removes nothing.
        weights: Layer weights, `[L]`.
        config: The adaptation.
    """
    C, M = state.ids.shape
    place = decisions.label * M + decisions.slot
    held = history(C * M, place, decisions.stored, delay=int(config.order == "predict_first"))
    slots = state.anchors.flatten(0, 1)
    # Padded with zeros: a matrix product may round its last odd columns differently, and columns change places.
    fill = slots.new_zeros(-(len(slots) + len(tokens)) % COLUMNS, *slots.shape[1:])
    entries = torch.cat([slots, tokens.to(slots.dtype), fill]).to(weights.dtype)
    unit, stored = F.normalize(tokens.to(weights.dtype), dim=-1), F.normalize(entries, dim=-1).flatten(1).T
    affinity = (unit * weights[:, None]).flatten(1) @ stored
    if token_means is not None:
        along = token_means * weights[:, None]
        ours, square = ((other * along).flatten(1).sum(dim=1, keepdim=True) for other in (unit, token_means))
        affinity = debiased_cosine(affinity, ours, along.flatten(1) @ stored, square)
    counted = (held >= C * M) | (state.ids >= 0).flatten()
    if config.exclude_own:
        counted &= held != torch.arange(C * M, C * M + len(tokens), device=held.device).unsqueeze(1)
    scores = class_scores(affinity.gather(1, held).unflatten(1, (C, M)), counted.unflatten(1, (C, M)), config)
    return correct(debiased.logits, scores, config, debiased.trust)


def store_all_(state: Reservoir, decisions: Admissions, encoded: Encoded, key: Tensor, images: Tensor) -> None:
    """Let a chunk into the reservoir, in place.

    Every image writes to its place what the place holds in the end, even if it was not stored itself. So no shape
    depends on who is stored.

    Args:
        state: The reservoir.
        decisions: Which images are stored where.
        encoded: The chunk's encodings.
        key: Reliabilities, `[P]`.
        images: How many of the images are real, `[]`.
    """
    # Several images may go to one place. All of them write the last one's values, so the order of writing is of no
    # account; GPUs promise none.
    label, slot = decisions.label, decisions.slot.clamp_min(0)
    places, time = state.ids.numel(), torch.arange(len(label), device=label.device)
    place = label * state.ids.shape[1] + slot
    last = torch.zeros_like(state.ids).flatten().scatter_reduce(0, place, (time + 1) * decisions.stored, "amax")[place]
    changed, image = last > 0, (last - 1).clamp_min(0)

    def put(field: Tensor, values: Tensor) -> None:
        flat = field.view(places, *field.shape[2:])
        new = changed.view(-1, *[1] * (values.ndim - 1))
        flat[place] = torch.where(new, values[image].to(field.dtype), flat[place])

    put(state.anchors, encoded.tokens)
    put(state.keys, key)
    put(state.ids, state.step + time)
    state.counts.copy_((state.ids >= 0).sum(dim=1))
    state.means[label] = class_mean(state.anchors[label], state.counts[label])
    state.step.add_(images)
