"""Many streams on one model: S reservoirs, one batched forward pass, no loop over streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from lessmore.config import Ready
from lessmore.core.correction import affinities
from lessmore.core.debias import StreamMean
from lessmore.core.flexible import require_one_shape
from lessmore.core.reservoir import Placement, Reservoir, ready_anchors
from lessmore.core.scoring import Anchors
from lessmore.core.step import Operations, Sample, plain_admit, plain_observe, settle
from lessmore.core.stream import StreamState, apply_each_, copy_, from_named, saved
from lessmore.engines.availability import has_triton
from lessmore.engines.batching import copied, logits_of, outcome, split
from lessmore.engines.capture import capture
from lessmore.engines.split_encoder import split_encoder
from lessmore.errors import ConfigError
from lessmore.methods.registry import Outcome, Setup
from lessmore.methods.tca import TCA


def anchors_of(state: Reservoir, ready: Ready) -> Anchors:
    """The anchors of S reservoirs for a batch of S images, one per reservoir.

    Args:
        state: S reservoirs; all tensors have S in front.
        ready: When a class may serve as an anchor.
    """
    # One table of S·C anchors serves the batch; `rows` tells each image which of them are its own stream's.
    S, C = state.counts.shape
    usable = torch.vmap(lambda one: ready_anchors(one, ready).ready)(state)
    return Anchors(state.means.flatten(0, 1), usable, torch.arange(S * C, device=usable.device).view(S, C))


def affinities_of(weights: Tensor, state: StreamState, sample: Sample, token_mean: Tensor | None) -> Tensor:
    """Affinities of one image of each stream with the entries of its reservoir, `[S, C, M]`.

    Args:
        weights: Layer weights, `[L]`.
        state: S streams.
        sample: An image of each.
        token_mean: Token means to remove, `[S, L, D]`, or None.
    """
    tokens, anchors = sample.tokens, state.reservoir.anchors
    if not (weights.is_cuda and weights.dtype == torch.float32 and has_triton()):
        streams = (0, 0, None, None if token_mean is None else 0)
        return torch.vmap(affinities, in_dims=streams)(tokens, anchors, weights, token_mean)
    from lessmore.engines.kernels import reservoir

    sums = None if token_mean is None else reservoir.own_sums(tokens, token_mean)
    out = weights.new_empty(state.reservoir.ids.shape)
    return reservoir.fused_affinities(tokens, weights, anchors, out, token_mean, sums)


def operations_of(setup: Setup, weights: Tensor) -> Operations:
    """The parts of a step for S streams at once; the states change in place.

    Args:
        setup: What the method is built from.
        weights: Layer weights, `[L]`.
    """
    texts, config = setup.class_texts, setup.preset.adaptation

    def observe_each(state: StreamState, sample: Sample) -> tuple[Tensor, StreamMean]:
        return torch.vmap(partial(plain_observe, texts, config))(state, sample)

    def admit_each(state: StreamState, sample: Sample, debiased: Tensor) -> tuple[Placement, Tensor]:
        return torch.vmap(partial(plain_admit, config))(state, sample, debiased)

    return Operations(observe_each, admit_each, apply_each_, partial(affinities_of, weights))


class Turn:
    """A step of all streams as one CUDA graph; the states change in place."""

    def __init__(self, step: Callable[[Tensor, StreamState], Outcome], pixels: Tensor, state: StreamState) -> None:
        self.pixels = pixels.clone()
        self.last: Outcome

        def body() -> None:
            self.last = step(self.pixels, state)

        self.graph = capture(body, state.tensors())

    def __call__(self, pixels: Tensor) -> Outcome:
        """Answers to images [S, 3, H, W], copied out of the graph's memory."""
        self.pixels.copy_(pixels)
        self.graph.replay()
        return copied(self.last)


class Multi:
    """TCA on S independent streams; the tensors of `states` have S in front."""

    facts = TCA.facts

    def __init__(self, setup: Setup, streams: int) -> None:
        if streams < 1:
            raise ConfigError(f"streams must be at least 1, not {streams}")
        remedy = "give every stream an adapter of its own, with engine='eager' or 'cpu'"
        require_one_shape(setup.vision.shape.flexible, "engine 'multi'", remedy)
        self.setup, self.streams = setup, streams
        self.prefix, self.rest = split_encoder(setup.vision, setup.preset.condensation)
        one = TCA(setup)
        self._empty = one.stream
        self._operations = operations_of(setup, one.weights)
        self.states = self._empty.map(lambda t: t.repeat(streams, *[1] * t.ndim))
        self._turn: Turn | None = None

    def predict(
        self, pixels: Tensor, streams: Sequence[int] | None = None, floors: Tensor | None = None
    ) -> list[Outcome]:
        """Answer the next image of each stream named, or of all S in their order; the others wait.

        Args:
            pixels: Preprocessed images, `[B, 3, H, W]`.
            streams: The stream of each image, all different; None means all S streams.
            floors: The least likeness of what each stream stores, `[B]`, see `lessmore.core.unknown`; None stores
                whatever may be.

        Returns:
            One answer per image.

        Raises:
            ConfigError: Images and streams do not match, or a stream does not exist.
        """
        turn = range(self.streams) if streams is None else [self._checked(stream) for stream in streams]
        if len(set(turn)) != len(turn) or len(turn) != len(pixels):
            raise ConfigError(f"got {len(pixels)} images for streams {list(turn)}; give one image for each stream")
        if list(turn) == list(range(self.streams)):
            return split(self._everyone(pixels, floors), len(pixels))
        # Some streams wait: the others are copied out, answered and copied back. Indexing makes copies, not views.
        rows = torch.tensor(turn, device=self._empty.reservoir.ids.device)
        part = self.states.map(lambda t: t[rows])
        answers = split(self._step(pixels, part, floors), len(pixels))
        for whole, new in zip(self.states.tensors(), part.tensors(), strict=True):
            whole[rows] = new
        return answers

    def _everyone(self, pixels: Tensor, floors: Tensor | None) -> Outcome:
        """A turn of all streams; on CUDA replayed from one graph, unless images may be kept out."""
        if floors is not None or not pixels.is_cuda or self.setup.preset.condensation.rule == "sampling":
            return self._step(pixels, self.states, floors)
        if self._turn is None:
            self._turn = Turn(self._step, pixels, self.states)
        return self._turn(pixels)

    def _step(self, pixels: Tensor, state: StreamState, floors: Tensor | None = None) -> Outcome:
        """One image for each of the streams given, whose states change in place."""
        adaptation = self.setup.preset.adaptation
        encoded = self.rest(self.prefix(pixels), anchors_of(state.reservoir, adaptation.ready))
        sample = Sample(encoded.tokens, encoded.feature, logits_of(encoded, self.setup))
        settled, _ = settle(sample, state, adaptation, self._operations, floors)
        stored = settled.delta.placement.slot >= 0
        return outcome(sample.logits, settled.debiased, settled.corrected, stored, encoded.steps, self.setup)

    def reset(self, stream: int | None = None) -> None:
        """Forget one stream, or all."""
        rows = slice(None) if stream is None else self._checked(stream)
        for whole, empty in zip(self.states.tensors(), self._empty.tensors(), strict=True):
            whole[rows] = empty

    def state(self, stream: int) -> dict[str, Tensor]:
        """The state of one stream, copied; the same as any other engine's."""
        return saved(self._one(stream))

    def restore(self, stream: int, state: Mapping[str, Tensor]) -> None:
        """Let a stream continue from a state.

        Args:
            stream: The stream.
            state: A `state()` of any engine.

        Raises:
            ConfigError: The stream does not exist.
        """
        copy_(self._one(stream), from_named(state))

    def fork(self, stream: int, into: int) -> None:
        """Let another stream continue from a copy of this one's state.

        Args:
            stream: The stream to copy.
            into: The stream whose state is replaced.

        Raises:
            ConfigError: A stream does not exist.
        """
        self.restore(into, self.state(stream))

    def slots(self) -> Tensor:
        """Which slots are in use, `[S, C, M]` bool."""
        return self.states.reservoir.ids >= 0

    def stream_mean(self) -> StreamMean:
        """What debiasing remembers of the streams."""
        return self.states.stream_mean

    def _one(self, stream: int) -> StreamState:
        """A view of one stream's state."""
        row = self._checked(stream)
        return self.states.map(lambda t: t[row])

    def _checked(self, stream: int) -> int:
        if not 0 <= stream < self.streams:
            raise ConfigError(f"stream {stream} does not exist; streams are numbered from 0 to {self.streams - 1}")
        return stream
