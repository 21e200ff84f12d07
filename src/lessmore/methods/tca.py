"""TCA: condensed encoding, a reservoir of the stream's most reliable samples, and a corrected answer (section 3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from lessmore.core import stream, stream_check
from lessmore.core.class_list import ClassChange, follow_classes
from lessmore.core.condense.source import Step
from lessmore.core.correction import affinities, contributions, layer_weights, probabilities, votes
from lessmore.core.costs import Accounting, costs
from lessmore.core.debias import StreamMean, trust
from lessmore.core.encoder import Encoded, encode
from lessmore.core.novelty import followed_frames
from lessmore.core.reservoir import ready_anchors
from lessmore.core.step import Operations, Sample, plain_operations, settle
from lessmore.core.stream import Delta, StreamState
from lessmore.methods.registry import Facts, Outcome, Setup, register_method
from lessmore.methods.zeroshot import zero_shot_logits


class Answer(NamedTuple):
    """One step's answer, before anything is turned into probabilities."""

    logits: Tensor
    """Zero-shot, `[C]`."""
    debiased: Tensor
    """Debiased, `[C]`."""
    corrected: Tensor
    """Debiased and corrected, on logits or probabilities as the preset says, `[C]`."""
    delta: Delta
    """What the image does to the stream's state."""
    steps: list[Step]
    """What the condensing blocks did."""


def look(setup: Setup, pixels: Tensor, state: StreamState) -> Encoded:
    """Encode one image, guided by the anchors of the reservoir.

    Args:
        setup: The model and the settings.
        pixels: One preprocessed image, `[1, 3, H, W]`.
        state: The state before the image.
    """
    anchors = ready_anchors(state.reservoir, setup.preset.adaptation.ready)
    return encode(setup.vision, pixels, setup.preset.condensation, anchors)


def decide(
    setup: Setup, encoded: Encoded, state: StreamState, operations: Operations, floor: float | None = None
) -> tuple[Answer, StreamState]:
    """Answer an encoded image, and the state after it.

    Args:
        setup: The model, the class embeddings and the settings.
        encoded: A batch of one.
        state: The state before the image; changed in place if the operations do so.
        operations: How the parts of a step are carried out.
        floor: The least likeness of what is stored; None stores whatever may be.
    """
    logits = zero_shot_logits(encoded, setup.text, setup.logit_scale)[0]
    sample = Sample(encoded.tokens[0], encoded.feature[0], logits)
    settled, state = settle(sample, state, setup.preset.adaptation, operations, floor)
    return Answer(logits, settled.debiased, settled.corrected, settled.delta, encoded.steps), state


def step(setup: Setup, weights: Tensor, pixels: Tensor, state: StreamState) -> tuple[Answer, StreamState]:
    """One image against the state, as a pure function.

    Args:
        setup: The model, the class embeddings and the settings.
        weights: Layer weights, `[L]`.
        pixels: One preprocessed image, `[1, 3, H, W]`.
        state: The state before the image; not changed.

    Returns:
        The answer and the next state.
    """
    operations = plain_operations(setup.class_texts, weights, setup.preset.adaptation)
    return decide(setup, look(setup, pixels, state), state, operations)


def empty_state(setup: Setup) -> StreamState:
    """The state of a stream that has not begun."""
    shape, weight = setup.vision.shape, setup.vision.positions
    C, M, L, D = len(setup.text), setup.preset.adaptation.M, shape.blocks.depth, shape.blocks.width
    return stream.empty(C, M, L, D, shape.embed, dtype=weight.dtype, device=weight.device)


@register_method("tca")
class TCA:
    """Holds the state of a stream, which changes in place; `core.step.settle` does the work."""

    facts = Facts(training_free=True, kind="online")
    state_problem = staticmethod(stream_check.problem)

    @staticmethod
    def follow_classes(
        state: Mapping[str, Tensor], fresh: Mapping[str, Tensor], change: ClassChange
    ) -> dict[str, Tensor]:
        """A state on a changed class list; see `lessmore.core.class_list`.

        Args:
            state: A `state()`.
            fresh: The state of a stream that has not begun on the new list.
            change: How the list changed.
        """
        return stream.saved(follow_classes(stream.from_named(state), change))

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        # With guiding anchors the encoder looks at the stream, so an image cannot be encoded before its turn.
        condensation, adaptation = setup.preset.condensation, setup.preset.adaptation
        guided = condensation.active and condensation.uses_anchor
        self.wants: Literal["tokens"] | None = None if guided else "tokens"
        self.stream = empty_state(setup)
        depth = setup.vision.shape.blocks.depth
        self.weights = layer_weights(depth, adaptation.beta, adaptation.layer_weights, self.stream.reservoir.keys)
        self.operations = self.make_operations(stream.apply_)
        self.floor: float | None = None
        self._last: Delta | None = None

    def make_operations(self, apply: Callable[[StreamState, Delta], StreamState]) -> Operations:
        """How this engine carries out the parts of a step; `apply` changes the state in place."""
        return plain_operations(self.setup.class_texts, self.weights, self.setup.preset.adaptation, apply)

    def predict(self, pixels: Tensor) -> Outcome:
        """Answer one preprocessed image `[1, 3, H, W]` and adapt."""
        return self.answer(look(self.setup, pixels, self.stream))

    def answer(self, encoded: Encoded) -> Outcome:
        """Answer an encoded image and adapt; only where `wants` is not None."""
        answer, self.stream = decide(self.setup, encoded, self.stream, self.operations, self.floor)
        self._last = answer.delta
        return Outcome(
            logits=answer.logits,
            scores=probabilities(answer.corrected, self.setup.preset.adaptation.domain),
            zero_shot=answer.logits.softmax(dim=-1),
            stored=answer.delta.placement.slot >= 0,
            steps=answer.steps,
            evidence=answer.debiased,
        )

    def delta(self) -> dict[str, Tensor]:
        """What the last image did to the state; of tokens that were not stored, nothing is kept."""
        assert self._last is not None, "no image was answered yet"
        delta = self._last.named()
        delta["last_frames"] = delta["last_frames"][-1:]  # the others were there before
        return delta if int(delta["slot"]) >= 0 else {**delta, "tokens": delta["tokens"][:0]}

    def contributions(self) -> Tensor:
        """What each stored image added to its class's score in the last answer, `[C, M]`.

        With `order="predict_first"`, an entry that the last image took the place of is missing.
        """
        assert self._last is not None, "no image was answered yet"
        adaptation, placement, memory = self.setup.preset.adaptation, self._last.placement, self.stream.reservoir
        plain = adaptation.debias == "off"
        token_mean = None if plain else self.stream.token_mean
        affinity = affinities(placement.tokens, memory.anchors, self.weights, token_mean)
        counted = votes(memory.ids, placement.id, adaptation)
        if adaptation.order == "predict_first":
            counted = counted & (memory.ids != placement.id)
        return contributions(affinity, counted, adaptation, None if plain else trust(self.stream.stream_mean))

    def redo(self, delta: Mapping[str, Tensor]) -> None:
        """Let an image in by its `delta`.

        Raises:
            ValueError: It is the delta of no image, or not of the next one; the state stays as it is.
        """
        if reason := stream_check.delta_problem(self.stream, delta):
            raise ValueError(reason)
        # The journal leaves out what it can: tokens that were not stored, and frames that were there before.
        own = self.stream.reservoir.anchors[0, 0]
        tokens = delta["tokens"] if len(delta["tokens"]) else torch.zeros_like(own)
        frames = followed_frames(self.stream.stream_mean.last_frames, delta["last_frames"][-1])
        whole = {**delta, "tokens": tokens, "last_frames": frames}
        self.stream = self.operations.apply(self.stream, stream.delta_from_named(whole))

    def reset(self) -> None:
        """Forget the stream; the state's tensors keep their addresses."""
        stream.clear_(self.stream)

    def state(self) -> dict[str, Tensor]:
        """The state's tensors, copied, without those that follow from the others."""
        return stream.saved(self.stream)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a `state()`, from any device; the state's tensors keep their addresses."""
        stream.copy_(self.stream, stream.from_named(state))

    def slots(self) -> Tensor:
        """Which slots of the reservoir are in use, `[C, M]` bool."""
        return self.stream.reservoir.ids >= 0

    def stream_mean(self) -> StreamMean:
        """What debiasing remembers; zeros where it is off."""
        return self.stream.stream_mean

    def macs(self, accounting: Accounting = "matmul") -> int:
        """One pass of the tower and, in `matmul`, the correction.

        Args:
            accounting: See `Method.macs`.
        """
        setup, preset = self.setup, self.setup.preset
        shape, classes = setup.vision.shape, len(setup.text)
        return costs(shape, preset.condensation, preset.adaptation, classes, accounting=accounting).macs
