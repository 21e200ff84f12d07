"""Many streams on one model: S reservoirs, one batched forward pass, no loop over streams."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from lessmore.config import Ready
from lessmore.core.correction import affinities, class_scores, correct
from lessmore.core.reservoir import (
    Delta,
    Reservoir,
    centred,
    class_mean,
    clone,
    correction_context,
    propose,
    ready_anchors,
)
from lessmore.core.scoring import Anchors
from lessmore.engines.batching import copied, logits_of, outcome, split
from lessmore.engines.capture import capture
from lessmore.engines.split_encoder import halves
from lessmore.errors import ConfigError
from lessmore.methods.registry import Outcome, Setup
from lessmore.methods.tca import TCA


def anchors_of(state: Reservoir, ready: Ready) -> Anchors:
    """The anchors of S reservoirs for a batch of S images, each of which sees its own."""
    S, C = state.counts.shape
    usable = torch.vmap(lambda one: ready_anchors(one, ready).ready)(state)
    return Anchors(state.means.flatten(0, 1), usable, torch.arange(S * C, device=usable.device).view(S, C))


def affinities_of(tokens: Tensor, state: Reservoir, weights: Tensor, middle: Tensor | None) -> Tensor:
    """Of the tokens [S, L, D] of an image of each stream with the entries of its reservoir, [S, C, M].

    middle: of the streams' tokens where it is to be taken off, [S, L, D].
    """
    fused = weights.is_cuda and weights.dtype == torch.float32 and importlib.util.find_spec("triton") is not None
    if not fused:
        streams = (0, 0, None, None if middle is None else 0)
        return torch.vmap(affinities, in_dims=streams)(tokens, state.anchors, weights, middle)
    from lessmore.engines.kernels import reservoir

    sums = None if middle is None else reservoir.own_sums(tokens, middle)
    return reservoir.fused_affinities(tokens, weights, state.anchors, weights.new_empty(state.ids.shape), middle, sums)


def apply_each_(state: Reservoir, delta: Delta) -> None:
    """`reservoir.apply_` for S reservoirs and a delta of each, all tensors with S in front."""
    stream, label, slot = torch.arange(len(delta.label), device=delta.label.device), delta.label, delta.slot
    place = stream, label, slot.clamp_min(0)

    def put(field: Tensor, value: Tensor) -> None:
        taken = (slot >= 0).view(-1, *[1] * (value.ndim - 1))
        field[place] = torch.where(taken, value.to(field.dtype), field[place])

    put(state.anchors, delta.tokens)
    put(state.features, delta.feature)
    put(state.keys, delta.key)
    put(state.ids, delta.id)
    counts = (state.ids[stream, label] >= 0).sum(dim=1)
    state.counts[stream, label] = counts
    state.means[stream, label] = class_mean(state.anchors[stream, label], counts)
    state.step.add_(1)
    state.centre.copy_(delta.centre)
    state.course.copy_(delta.course)
    state.middle.copy_(delta.middle)


class Turn:
    """A step of all streams as one CUDA graph; the reservoirs change in their places."""

    def __init__(self, step: Callable[[Tensor, Reservoir], Outcome], pixels: Tensor, state: Reservoir) -> None:
        self.pixels = pixels.clone()
        self.last: Outcome

        def body() -> None:
            self.last = step(self.pixels, state)

        self.graph = capture(body, state)

    def __call__(self, pixels: Tensor) -> Outcome:
        """Answers to images [S, 3, H, W], copied out of the graph's memory."""
        self.pixels.copy_(pixels)
        self.graph.replay()
        return copied(self.last)


class Multi:
    """TCA on S independent streams, each with a reservoir of its own; all tensors of the state have S in front."""

    facts = TCA.facts

    def __init__(self, setup: Setup, streams: int) -> None:
        if streams < 1:
            raise ConfigError(f"streams must be at least 1, not {streams}")
        self.setup, self.streams = setup, streams
        self.prefix, self.rest = halves(setup.vision, setup.preset.condensation)
        one = TCA(setup)
        self._empty, self.weights = one.reservoir, one.weights
        self.reservoir = Reservoir(*(t.repeat(streams, *[1] * t.ndim) for t in self._empty))
        self._turn: Turn | None = None

    def predict(self, pixels: Tensor, streams: Sequence[int] | None = None) -> list[Outcome]:
        """Answer the next image [B, 3, H, W] of each stream named, or of all S in their order; the others wait."""
        turn = range(self.streams) if streams is None else [self._checked(stream) for stream in streams]
        if len(set(turn)) != len(turn) or len(turn) != len(pixels):
            raise ConfigError(f"{len(pixels)} images came for streams {list(turn)}; give one image for each stream")
        if list(turn) == list(range(self.streams)):
            return split(self._everyone(pixels), len(pixels))
        rows = torch.tensor(turn, device=self._empty.ids.device)
        part = Reservoir(*(t[rows] for t in self.reservoir))
        answers = split(self._step(pixels, part), len(pixels))
        for whole, new in zip(self.reservoir, part, strict=True):
            whole[rows] = new
        return answers

    def _everyone(self, pixels: Tensor) -> Outcome:
        """A turn of all streams; on CUDA replayed from one graph."""
        if not pixels.is_cuda or self.setup.preset.condensation.rule == "sampling":
            return self._step(pixels, self.reservoir)
        if self._turn is None:
            self._turn = Turn(self._step, pixels, self.reservoir)
        return self._turn(pixels)

    def _step(self, pixels: Tensor, state: Reservoir) -> Outcome:
        """One image for each of the reservoirs given, which change in place."""
        adaptation = self.setup.preset.adaptation
        encoded = self.rest(self.prefix(pixels), anchors_of(state, adaptation.ready))
        logits = logits_of(encoded, self.setup)
        believed, centre, course = torch.vmap(centred, in_dims=(0, 0, None, None))(
            state, logits, self.setup.lean, adaptation
        )
        delta = torch.vmap(propose, in_dims=(0, 0, 0, 0, None))(
            state, encoded.tokens, encoded.feature, believed, adaptation
        )._replace(centre=centre, course=course)
        if adaptation.order == "update_first":
            apply_each_(state, delta)
        counted = state.ids >= 0
        if adaptation.exclude_own:
            counted &= state.ids != delta.id[:, None, None]
        middle, trust = correction_context(delta, adaptation)
        scores = class_scores(affinities_of(encoded.tokens, state, self.weights, middle), counted, adaptation)
        if adaptation.order == "predict_first":
            apply_each_(state, delta)
        return outcome(logits, correct(believed, scores, adaptation, trust), delta.slot >= 0, encoded.steps, self.setup)

    def reset(self, stream: int | None = None) -> None:
        """Forget one stream, or all."""
        rows = slice(None) if stream is None else self._checked(stream)
        for whole, empty in zip(self.reservoir, self._empty, strict=True):
            whole[rows] = empty

    def state(self, stream: int) -> dict[str, Tensor]:
        """One stream's reservoir, copied; the same as any other engine's."""
        one = clone(Reservoir(*(t[self._checked(stream)] for t in self.reservoir)))
        return {name: value for name, value in one._asdict().items() if name != "means"}

    def restore(self, stream: int, state: Mapping[str, Tensor]) -> None:
        """Let a stream go on from a `state`, of whichever engine."""
        stream = self._checked(stream)
        for name, value in state.items():
            getattr(self.reservoir, name)[stream] = value
        self.reservoir.means[stream] = class_mean(self.reservoir.anchors[stream], self.reservoir.counts[stream])

    def fork(self, stream: int, into: int) -> None:
        """Let another stream go on independently from where this one stands."""
        self.restore(into, self.state(stream))

    def slots(self) -> Tensor:
        """Which slots are in use, [S, C, M] bool."""
        return self.reservoir.ids >= 0

    def course(self) -> Tensor:
        """Of the streams' centres, [S, 12]."""
        return self.reservoir.course

    def _checked(self, stream: int) -> int:
        if not 0 <= stream < self.streams:
            raise ConfigError(f"there is no stream {stream}; they are numbered from 0 to {self.streams - 1}")
        return stream
