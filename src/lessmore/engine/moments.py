"""The reservoir as each image of a chunk finds it, without a reservoir for each.

Rows are numbered through: first what was there before the chunk, then the chunk's P images. What a place holds when
image i comes is the last row that went into it, so the whole history of a chunk is one running maximum, and everything
that depends on it is read off products computed for all rows at once.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lessmore.config import Adaptation, Ready
from lessmore.correction import class_scores, correct
from lessmore.encoder import Encoded
from lessmore.engine.forecast import Forecast
from lessmore.engine.walk import Newcomers, Shelf, Walk
from lessmore.reservoir import Reservoir, class_mean

COLUMNS = 32
"""Products have a multiple of so many columns."""


def figures(state: Reservoir, encoded: Encoded, logits: Tensor, keys: Tensor, config: Adaptation) -> Tensor:
    """What `Newcomers` are read from, in one tensor [P, 3 (+ M + P)] float64.

    Cosines are taken in float64, where their rounding cannot depend on how many images are looked at together.
    """
    label = logits.argmax(dim=-1)
    finite = encoded.tokens.isfinite().flatten(1).all(dim=1) & torch.cat([encoded.feature, logits], 1).isfinite().all(1)
    columns = [torch.stack([label.double(), keys.double(), finite.double()], dim=1)]
    if config.strategy in ("diversity", "similarity"):
        new = layer_mean(encoded.tokens)
        stored = layer_mean(state.anchors[label])
        columns += [(stored @ new.unsqueeze(-1)).squeeze(-1), new @ new.T]
    return torch.cat(columns, dim=1)


def layer_mean(tokens: Tensor) -> Tensor:
    """Unit vectors along the mean over layers, [..., L, D] → [..., D] float64."""
    return F.normalize(tokens.mean(dim=-2, dtype=torch.float64), dim=-1)


def newcomers(figures: Tensor, n: int) -> Newcomers:
    """The first n rows of `figures`, on the host."""
    table = figures[:n].numpy()
    label, key, finite = table[:, :3].T
    near = table[:, 3:] if table.shape[1] > 3 else None
    return Newcomers(label.astype(int).tolist(), key.tolist(), finite.astype(bool).tolist(), near)


def shelves(state: Reservoir) -> list[Shelf]:
    """The reservoir as a ledger keeps it."""
    unit = layer_mean(state.anchors)
    cosines = (unit @ unit.transpose(1, 2)).masked_fill(torch.eye(unit.shape[1], device=unit.device).bool(), 0)
    rows = zip(state.keys.tolist(), state.ids.tolist(), cosines.tolist(), state.counts.tolist(), strict=True)
    return [Shelf(k[:n], i[:n], [row[:n] for row in c[:n]], list(range(n))) for k, i, c, n in rows]


def history(places: int, place: Tensor, arrived: Tensor, delay: int) -> Tensor:
    """What each of a number of places holds as image i sees it: its own row, or `places` + t for the image t put there.

    place: where each image went, [P] int64; arrived: whether it did, [P] bool. delay: 0 to see what image i itself did,
    1 not to. Returns [P, places] int64.
    """
    P = len(place)
    time = torch.arange(P, device=place.device)
    rows = place.new_zeros(P + 1, places)
    rows[time + delay, place] = (places + time) * arrived
    rows[0] = rows[0].maximum(torch.arange(places, device=place.device))
    return rows.cummax(dim=0).values[:P]


class Moments:
    """A walk over a chunk of P images, told to the device."""

    def __init__(self, walk: Walk, state: Reservoir, P: int) -> None:
        self.state, self.all_ready = state, walk.all_ready
        C, M = self.shape = state.ids.shape
        table = np.zeros((P, 3 + M), dtype=np.int64)  # class, slot or −1, number of entries, their rows
        table[:, 1], table[:, 3:] = -1, C * M + P
        for image, label, slot, origins in walk.stored:
            table[image, :3] = label, slot, len(origins)
            table[image, 3 : 3 + len(origins)] = [label * M + o if o < M else (C - 1) * M + o for o in origins]
        told = torch.from_numpy(table).to(state.ids.device, non_blocking=True)
        self.label, self.slot, self.counts, self.held = told[:, 0], told[:, 1], told[:, 2], told[:, 3:]

    def forecast(self, tokens: Tensor, ready: Ready) -> Forecast:
        """The anchors each image finds if the chunk's tokens are these, [P, L, D]."""
        (C, _), state = self.shape, self.state
        slots = state.anchors.flatten(0, 1)
        entries = torch.cat([slots, tokens.to(slots.dtype), slots.new_zeros(2, *slots.shape[1:])])
        rows = history(C, self.label, self.slot >= 0, delay=1)
        if ready == "class":
            usable = (rows >= C) | (state.counts >= 1)
        else:
            usable = (torch.arange(len(rows), device=rows.device) >= self.all_ready).unsqueeze(1).expand_as(rows)
        return Forecast(state.means, entries, self.held, self.counts, usable, rows)

    def corrected(self, tokens: Tensor, logits: Tensor, weights: Tensor, config: Adaptation) -> Tensor:
        """p̃ of images with tokens [P, L, D] and zero-shot logits [P, C], against the entries each finds: [P, C]."""
        (C, M), state = self.shape, self.state
        held = history(C * M, self.label * M + self.slot, self.slot >= 0, delay=int(config.order == "predict_first"))
        slots = state.anchors.flatten(0, 1)
        # Filled up with zeros: a product's kernel may round its odd columns otherwise, and columns change their places.
        fill = slots.new_zeros(-(len(slots) + len(tokens)) % COLUMNS, *slots.shape[1:])
        entries = torch.cat([slots, tokens.to(slots.dtype), fill]).to(weights.dtype)
        unit = F.normalize(tokens.to(weights.dtype), dim=-1) * weights[:, None]
        affinity = unit.flatten(1) @ F.normalize(entries, dim=-1).flatten(1).T
        counted = (held >= C * M) | (state.ids >= 0).flatten()
        if config.exclude_own:
            counted &= held != torch.arange(C * M, C * M + len(tokens), device=held.device).unsqueeze(1)
        scores = class_scores(affinity.gather(1, held).unflatten(1, (C, M)), counted.unflatten(1, (C, M)), config)
        return correct(logits, scores, config)


def store_(state: Reservoir, walk: Walk, encoded: Encoded, keys: Tensor, images: int) -> None:
    """Write the end of a walk over so many images into the reservoir: only what changed, class means from the slots."""
    M, shelves = state.ids.shape[1], walk.shelves.items()
    new = [(c, m, o - M, len(s.origin)) for c, s in shelves for m, o in enumerate(s.origin) if o >= M]
    table = torch.tensor(new, dtype=torch.int64).view(-1, 4)
    label, slot, image, count = table.to(state.ids.device, non_blocking=True).unbind(1)
    state.anchors[label, slot] = encoded.tokens[image].to(state.anchors.dtype)
    state.features[label, slot] = encoded.feature[image].to(state.features.dtype)
    state.keys[label, slot] = keys[image]
    state.ids[label, slot] = state.step + image
    state.counts[label] = count
    state.means[label] = class_mean(state.anchors[label], count)
    state.step.add_(images)
