"""TCA for CPUs with many classes: the stored tokens are kept normalised as well, so that a correction reads them once.

At C = 1000 the reservoir is larger than any cache, and the correction costs what reading it costs. Norms of stored
tokens change only when an entry does; with them divided out beforehand, Σ_l P_l cos(v^l, A^l) is one product of a
matrix [C·M, L·D] and a vector. The copy takes as much memory as the reservoir's anchors.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from lessmore.core import reservoir
from lessmore.core.correction import class_scores, correct
from lessmore.core.encoder import Encoded, encode
from lessmore.core.reservoir import Delta
from lessmore.core.token_mean import cosine
from lessmore.methods.registry import Outcome
from lessmore.methods.tca import TCA, Answer
from lessmore.methods.zeroshot import zero_shot_logits


class UnitTCA(TCA):
    """The same answers as `TCA`, to rounding."""

    def predict(self, pixels: Tensor) -> Outcome:
        """Answer one preprocessed image [1, 3, H, W], then let it into the reservoir."""
        preset = self.setup.preset
        anchors = reservoir.ready_anchors(self.reservoir, preset.adaptation.ready)
        return self.answer(encode(self.setup.vision, pixels, preset.condensation, anchors))

    def answer(self, encoded: Encoded) -> Outcome:
        """The same for an image that is encoded already."""
        adaptation = self.setup.preset.adaptation
        logits = zero_shot_logits(encoded, self.setup.text, self.setup.logit_scale)[0]
        tokens = encoded.tokens[0]
        believed, centre, course = reservoir.centred(self.reservoir, logits, self.setup.lean, adaptation)
        delta = reservoir.propose(self.reservoir, tokens, encoded.feature[0], believed, adaptation)
        delta = delta._replace(centre=centre, course=course)
        if adaptation.order == "update_first":
            self._let_in(delta)
        counted = self.reservoir.ids >= 0
        if adaptation.exclude_own:
            counted &= self.reservoir.ids != delta.id
        middle, trust = reservoir.correction_context(delta, adaptation)
        scores = class_scores(self._affinities(tokens, middle), counted, adaptation)
        if adaptation.order == "predict_first":
            self._let_in(delta)
        answer = Answer(logits, correct(believed, scores, adaptation, trust), delta, encoded.steps)
        return self._outcome(answer, self.reservoir)

    def _affinities(self, tokens: Tensor, middle: Tensor | None) -> Tensor:
        """`correction.affinities` of a sample's tokens [L, D] with all entries: [C, M]."""
        unit = F.normalize(tokens.to(self.weights.dtype), dim=-1)
        rows = unit[None] if middle is None else torch.stack([unit, middle])
        rows = rows * self.weights[:, None]
        # This way round what is stored is read once for both rows; the other way round once for each.
        along = (self.units.flatten(0, 1).flatten(1) @ rows.flatten(1).T).T.view(-1, *self.units.shape[:2])
        if middle is None:
            return along[0]
        return cosine(along[0], (rows[0] * middle).sum(), along[1], (rows[1] * middle).sum())

    def _let_in(self, delta: Delta) -> None:
        reservoir.apply_(self.reservoir, delta)
        at = delta.label.unsqueeze(0)
        self.units.index_copy_(0, at, self._unit(self.reservoir.anchors.index_select(0, at)))

    def _unit(self, anchors: Tensor) -> Tensor:
        wide = anchors.to(self.reservoir.keys.dtype)
        return F.normalize(wide, dim=-1, eps=torch.finfo(wide.dtype).tiny)

    def reset(self) -> None:
        """Empty the reservoir."""
        super().reset()
        self.units = self._unit(self.reservoir.anchors)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a `state()`."""
        super().restore(state)
        self.units = self._unit(self.reservoir.anchors)
