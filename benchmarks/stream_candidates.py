"""The rule of preset `camera` with its constants halved and doubled, on final features, which is all it reads."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import torch
from stream_pool import Pool
from stream_rules import Answered, Rule, State
from torch import Tensor
from torch.utils import _pytree as tree

from lessmore.core import debias, novelty
from lessmore.core.debias import RULES, StreamMean
from lessmore.core.step import Sample

CHOSEN = RULES["camera"]


def by_rule(
    name: str, rule: debias.Rule = CHOSEN, light: bool = False, fade: float = novelty.FADE, **more: Any
) -> Rule:
    """The rule with some constants.

    Args:
        name: What tables call it.
        rule: What the library's rules differ in.
        light: Whether it runs on few draws and without garbage.
        fade: What is left of the mean distance after each frame.
        **more: Other constants of `lessmore.core.debias`, by name.
    """
    constants = {"RING": novelty.RING} | more

    def start(pool: Pool, S: int) -> State:
        (C, E), text = pool.texts.text.shape, pool.texts.text
        with patch.multiple(debias, **constants):
            empty = debias.empty_stream_mean(E, C, text.device)
        return tree.tree_map(lambda t: t.expand(S, *t.shape).clone(), empty)

    def step(state: State, sample: Sample, pool: Pool) -> Answered:
        def one(mean: StreamMean, feature: Tensor, logits: Tensor) -> tuple[Tensor, StreamMean]:
            return debias.observe(mean, logits, feature, pool.texts, rule)

        with patch.multiple(debias, **constants), patch.object(novelty, "FADE", fade):
            answer, mean = torch.vmap(one)(state, sample.feature, sample.logits)
        return Answered(answer, mean, mean.domain_changes)

    return Rule(name, "default", start, step, light)


CAMERA = by_rule("camera")
"""The preset. Its answers are the debiased logits, so its condensed features are all that it needs."""
_CONSTANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "new": ({"rule": CHOSEN._replace(new=CHOSEN.new / 2)}, {"rule": CHOSEN._replace(new=2 * CHOSEN.new)}),
    "most": ({"rule": CHOSEN._replace(most=CHOSEN.most / 2)}, {"rule": CHOSEN._replace(most=2 * CHOSEN.most)}),
    "few, many": ({"FEW": 0.075, "MANY": 0.125}, {"FEW": 0.3, "MANY": 0.5}),
    "ring": ({"RING": 8}, {"RING": 32}),
    "fade": ({"fade": 0.98}, {"fade": 0.995}),
    **{
        name.lower(): ({name: getattr(debias, name) / 2}, {name: 2 * getattr(debias, name)})
        for name in ("MEMORY", "OFTEN", "LIFT", "RECENT", "SLACK", "ALARM", "PAST")
    },
}
VARIANTS = tuple(
    by_rule(f"{name} {word}", light=True, **constants)
    for name, both in _CONSTANTS.items()
    for word, constants in zip(("halved", "doubled"), both, strict=True)
)
"""Each constant at half and double its value."""
PARTS = (
    by_rule("all frames new", CHOSEN._replace(new=0.0), light=True),
    by_rule("doubt at most 1", CHOSEN._replace(most=1.0), light=True),
    by_rule("both, which is default with lam=0", RULES["careful"], light=True),
)
"""The rule without one of its two parts, or both."""
CANDIDATES = (CAMERA, *VARIANTS, *PARTS)
