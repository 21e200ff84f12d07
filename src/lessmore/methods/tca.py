"""TCA: condensed encoding, a reservoir of the stream's most reliable samples, and a corrected answer (section 3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from torch import Tensor

from lessmore.core import reservoir
from lessmore.core.condense.source import Step
from lessmore.core.correction import correct, layer_weights, probabilities, token_scores
from lessmore.core.costs import Accounting, costs
from lessmore.core.encoder import Encoded, encode
from lessmore.core.reservoir import Delta, Reservoir
from lessmore.methods.registry import Facts, Outcome, Setup, register_method
from lessmore.methods.zeroshot import zero_shot_logits


class Answer(NamedTuple):
    """One step's answer, before anything is turned into probabilities."""

    logits: Tensor
    """Zero-shot, [C]."""
    corrected: Tensor
    """Without the stream's centre and with the correction, on logits or probabilities as the preset says, [C]."""
    delta: Delta
    """What the image does to the reservoir."""
    steps: list[Step]


Update = Callable[[Reservoir, Delta], Reservoir]


def step(
    setup: Setup, weights: Tensor, pixels: Tensor, state: Reservoir, update: Update = reservoir.apply
) -> tuple[Answer, Reservoir]:
    """One image [1, 3, H, W] against the reservoir as it stands → the answer and the next reservoir.

    Pure with the default `update`; with `reservoir.apply_` the reservoir changes in place. weights: layer weights [L].
    """
    anchors = reservoir.ready_anchors(state, setup.preset.adaptation.ready)
    encoded = encode(setup.vision, pixels, setup.preset.condensation, anchors)
    return settle(setup, weights, encoded, state, update)


def settle(
    setup: Setup, weights: Tensor, encoded: Encoded, state: Reservoir, update: Update = reservoir.apply
) -> tuple[Answer, Reservoir]:
    """The second half of a `step`: what an encoded image (a batch of one) does to the reservoir, and its answer."""
    adaptation = setup.preset.adaptation
    logits = zero_shot_logits(encoded, setup.text, setup.logit_scale)[0]
    tokens = encoded.tokens[0]
    believed, centre, course = reservoir.centred(state, logits, setup.lean, adaptation)
    delta = reservoir.propose(state, tokens, encoded.feature[0], believed, adaptation)
    delta = delta._replace(centre=centre, course=course)
    if adaptation.order == "update_first":
        state = update(state, delta)
    middle, trust = reservoir.correction_context(delta, adaptation)
    scores = token_scores(tokens, weights, state, delta.id, adaptation, middle)
    if adaptation.order == "predict_first":
        state = update(state, delta)
    return Answer(logits, correct(believed, scores, adaptation, trust), delta, encoded.steps), state


@register_method("tca")
class TCA:
    """Holds the reservoir; `step` does the work."""

    facts = Facts(training_free=True, kind="online")

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        condensation = setup.preset.condensation
        guided = condensation.active and condensation.uses_anchor
        self.wants: Literal["tokens"] | None = None if guided else "tokens"
        self.reservoir: Reservoir
        self.reset()
        adaptation = setup.preset.adaptation
        depth = setup.vision.shape.blocks.depth
        self.weights = layer_weights(depth, adaptation.beta, adaptation.layer_weights, self.reservoir.keys)

    def predict(self, pixels: Tensor) -> Outcome:
        """Answer one preprocessed image [1, 3, H, W], then let it into the reservoir."""
        return self._outcome(*step(self.setup, self.weights, pixels, self.reservoir, reservoir.apply_))

    def answer(self, encoded: Encoded) -> Outcome:
        """The same for an image that is encoded already; only where `wants` is not None."""
        return self._outcome(*settle(self.setup, self.weights, encoded, self.reservoir, reservoir.apply_))

    def _outcome(self, answer: Answer, state: Reservoir) -> Outcome:
        self.reservoir = state
        return Outcome(
            logits=answer.logits,
            scores=probabilities(answer.corrected, self.setup.preset.adaptation.domain),
            zero_shot=answer.logits.softmax(dim=-1),
            stored=answer.delta.slot >= 0,
            steps=answer.steps,
        )

    def reset(self) -> None:
        """Empty the reservoir."""
        shape, weight = self.setup.vision.shape, self.setup.vision.positions
        C, M, E = len(self.setup.text), self.setup.preset.adaptation.M, shape.embed
        self.reservoir = reservoir.empty(
            C, M, shape.blocks.depth, shape.blocks.width, E, dtype=weight.dtype, device=weight.device
        )

    def state(self) -> dict[str, Tensor]:
        """The reservoir's tensors, copied; the class means follow from the rest."""
        return {k: v for k, v in reservoir.clone(self.reservoir)._asdict().items() if k != "means"}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a `state()`, on whatever device this method runs."""
        like = self.reservoir.anchors
        values = {k: v.to(like.device, copy=True) for k, v in state.items()}
        means = reservoir.class_mean(values["anchors"], values["counts"])
        self.reservoir = Reservoir(**values, means=means)

    def slots(self) -> Tensor:
        """Which slots of the reservoir are in use, [C, M] bool."""
        return self.reservoir.ids >= 0

    def course(self) -> Tensor:
        """Of the stream's centre, [12]; zeros where that is not asked for."""
        return self.reservoir.course

    def macs(self, accounting: Accounting = "matmul") -> int:
        """One pass of the tower and, in `matmul`, the correction."""
        setup, preset = self.setup, self.setup.preset
        shape, classes = setup.vision.shape, len(setup.text)
        return costs(shape, preset.condensation, preset.adaptation, classes, accounting=accounting).macs
