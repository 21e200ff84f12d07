"""One online step as one CUDA graph: from an image to its answer and the next state without the host reading anything.

Towers with a class token run in the kernels. For other towers, and for methods without kernels, the method's own step
is captured as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from lessmore.core.costs import Accounting
from lessmore.core.debias import RULES, StreamMean
from lessmore.core.stream import StreamState
from lessmore.engines import fused_tower
from lessmore.engines.batching import copied
from lessmore.engines.capture import capture
from lessmore.engines.chunk_debias import LARGEST
from lessmore.engines.kernels.debias import scan
from lessmore.engines.kernels.elementwise import logits
from lessmore.engines.kernels.reservoir import StepBuffers, fused_affinities, fused_settle
from lessmore.engines.kernels.token_mean import follow
from lessmore.engines.packed_mean import pack
from lessmore.methods.registry import Outcome
from lessmore.methods.tca import TCA
from lessmore.methods.zeroshot import ZeroShot


class Graph:
    """Zero-shot or TCA, replayed from one captured step."""

    def __init__(self, method: TCA | ZeroShot, body: Fused | Captured | None = None) -> None:
        """Capture the step.

        Args:
            method: The method.
            body: What to capture; None takes the kernels if they can run the tower, else the method's own step.
        """
        self.method, self.facts = method, method.facts
        vision = method.setup.vision
        side = vision.shape.image_size
        self.pixels = vision.positions.new_zeros(1, 3, side, side)
        self._body = body or _fused(method) or Captured(method)
        state = method.stream.tensors() if isinstance(method, TCA) else ()
        self._graph = capture(lambda: self._body(self.pixels), state)

    def predict(self, pixels: Tensor) -> Outcome:
        """Answer one preprocessed image [1, 3, H, W] and adapt."""
        self.pixels.copy_(pixels)
        self._graph.replay()
        return self._body.outcome()

    def reset(self) -> None:
        """Forget the stream."""
        self.method.reset()

    def state(self) -> dict[str, Tensor]:
        """Copies of the state's tensors."""
        return self.method.state()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a `state()`; the tensors keep their places, which the graph uses."""
        self.method.restore(state)

    def slots(self) -> Tensor | None:
        """Which slots of the memory are in use."""
        return self.method.slots()

    def stream_mean(self) -> StreamMean | None:
        """What debiasing remembers; None for zero-shot."""
        return self.method.stream_mean() if isinstance(self.method, TCA) else None

    def macs(self, accounting: Accounting = "matmul") -> int:
        """Multiply-accumulates, counted by the method."""
        return self.method.macs(accounting)


class Captured:
    """A method's own step."""

    def __init__(self, method: TCA | ZeroShot) -> None:
        self.method = method
        self.last: Outcome

    def __call__(self, pixels: Tensor) -> None:
        """One step on fixed pixels; the results keep their places in the graph's memory."""
        self.last = self.method.predict(pixels)

    def outcome(self) -> Outcome:
        """Copies of the last results."""
        return copied(self.last)


class Fused:
    """The step in kernels: encode, compare with the class texts, and for TCA settle with the state."""

    def __init__(self, method: TCA | ZeroShot) -> None:
        self.method, setup = method, method.setup
        config, C = setup.preset.condensation, len(setup.text)
        self.guided = isinstance(method, TCA) and method.wants is None
        self.tower = fused_tower.FusedTower(setup.vision, config, self.guided, C)
        self.text = setup.text.float().contiguous()
        device, E = self.text.device, setup.vision.shape.embed
        if isinstance(method, TCA):
            method.stream, self.packed = pack(method.stream)
        M = method.stream.reservoir.keys.shape[1] if isinstance(method, TCA) else 1
        self.sample = StepBuffers.of(C, M, device)
        self.logits, self.feature = torch.zeros(1, C, device=device), torch.zeros(1, E, device=device)
        self.debiased, self.trust = torch.zeros_like(self.logits), torch.zeros_like(self.logits)
        self.mean_logits = torch.zeros(2, C, device=device)
        self.sums = torch.zeros(1, 3, setup.vision.shape.blocks.depth, device=device)
        self.one = torch.ones((), dtype=torch.int64, device=device)
        self.side = torch.cuda.Stream() if device.type == "cuda" else None

    def __call__(self, pixels: Tensor) -> None:
        """One step on fixed pixels."""
        method, setup = self.method, self.method.setup
        state = method.stream.reservoir if isinstance(method, TCA) else None
        adaptation = setup.preset.adaptation
        if isinstance(method, TCA) and adaptation.debias != "off":
            with beside(self.side):  # needs nothing of this image, so it runs beside the encoder
                torch.mm(self.packed.features, self.text.T, out=self.mean_logits)
                self.mean_logits.mul_(setup.logit_scale)
        pooled = self.tower.forward(pixels, state, adaptation.ready)
        logits(pooled, self.text, setup.logit_scale, self.feature, self.logits)
        if isinstance(method, TCA):
            self._settle(method, method.stream)
        else:
            torch.softmax(self.logits[0], dim=-1, out=self.sample.zero_shot)

    def _settle(self, method: TCA, state: StreamState) -> None:
        """`core.step.settle` in kernels."""
        setup, config = method.setup, method.setup.preset.adaptation
        tokens, debiased, token_mean, trust = self.tower.tokens, self.logits, None, None
        if config.debias != "off":
            rule, debiased, trust = RULES[config.debias], self.debiased, self.trust
            with beside(self.side):  # one small program, while others look through the reservoir
                after = self.packed, debiased, trust, rule, self.mean_logits
                frames = scan(self.logits, self.feature, self.one, setup.class_texts, self.packed, *after)
                if rule.new:
                    self.packed.last_frames.copy_(frames)
            place = state.token_mean, state.token_mean, self.sums
            token_mean = follow(tokens[None], self.feature, self.one, state.reservoir.step, *place)
        anchors = state.reservoir.anchors
        fused_affinities(tokens, method.weights, anchors, self.sample.affinity, token_mean, self.sums)
        if trust is not None and self.side is not None:
            torch.cuda.current_stream().wait_stream(self.side)
        fused_settle(self.logits[0], debiased[0], tokens, self.feature[0], state.reservoir, config, self.sample, trust)

    def outcome(self) -> Outcome:
        """Copies of the last results."""
        zero_shot = self.sample.zero_shot.clone()
        plain = isinstance(self.method, ZeroShot)
        scores = zero_shot if plain else self.sample.scores.clone()
        stored = None if plain else self.sample.slot >= 0
        evidence = None if plain else self._judged()[0].clone()
        return Outcome(self.logits[0].clone(), scores, zero_shot, stored, self.tower.steps(), evidence)

    def _judged(self) -> Tensor:
        """The logits before any stored sample votes, `[1, C]`."""
        return self.logits if self.method.setup.preset.adaptation.debias == "off" else self.debiased


@contextmanager
def beside(side: torch.cuda.Stream | None) -> Iterator[None]:
    """Launch kernels on a side stream, after everything launched so far; None launches them where they are."""
    if side is None:
        yield
        return
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        yield


def _fused(method: TCA | ZeroShot) -> Fused | None:
    setup = method.setup
    if isinstance(method, TCA) and setup.preset.adaptation.debias != "off" and len(setup.text) > LARGEST:
        return None
    return None if fused_tower.cannot_fuse(setup.vision, setup.preset.condensation) else Fused(method)
