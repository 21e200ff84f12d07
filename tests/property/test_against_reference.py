"""The fast code against tests/reference.py: options and streams drawn jointly, everything compared, step by step."""

from __future__ import annotations

import os
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from lessmore.config import Adaptation, Condensation, Preset
from lessmore.core.condense.source import KEPT, MERGED, PRUNED, fate_of
from lessmore.core.condense.source import Step as CondensingStep
from lessmore.core.correction import layer_weights
from lessmore.core.vit import ViT
from lessmore.errors import ConfigError
from lessmore.methods import Setup
from lessmore.methods.tca import empty_state, step
from tests.random_towers import SHAPES, make_images, make_mixed, make_text, make_vit
from tests.reference import Condensed, Reference

SOAK = bool(os.environ.get("LESSMORE_SOAK"))
EXAMPLES = 5000 if SOAK else 300


@st.composite
def condensations(draw: st.DrawFn) -> Condensation:
    counts = draw(st.sampled_from(["table", "rate", "exact", "keep"]))
    merged = draw(st.integers(0, 2))
    try:
        return Condensation(
            R=draw(st.sampled_from([1.0, 0.95, 0.9, 0.85, 0.7, 0.6])),
            layers=tuple(draw(st.sets(st.integers(0, 4), min_size=1, max_size=3))),
            counts=counts,
            rate=draw(st.sampled_from([0.0, 0.03, 0.1])) if counts == "rate" else None,
            merge_prune=(merged, draw(st.integers(0 if merged else 1, 2))),
            K=draw(st.integers(1 if merged else 0, 4)),
            merge=draw(st.sampled_from(["mean", "inverse_distance"])),
            pruned=draw(st.sampled_from(["fuse", "drop"])),
            score=draw(st.sampled_from(["rank", "mean"])),
            rows=draw(st.sampled_from(["class", "anchor", "both"])),
            anchor_kv=draw(st.booleans()),
            summary=draw(st.sampled_from(["mean", "attn_pool"])),
            proportional=draw(st.booleans()),
            place=draw(st.sampled_from(["mean", "centre", "first"])),
        )
    except ConfigError:
        assume(False)
        raise


@st.composite
def adaptations(draw: st.DrawFn) -> Adaptation:
    return Adaptation(
        M=draw(st.integers(2, 4)),
        strategy=draw(st.sampled_from(["fifo", "uncertainty", "similarity", "diversity"])),
        key=draw(st.sampled_from(["entropy", "class_term"])),
        ready=draw(st.sampled_from(["class", "all"])),
        lam=draw(st.sampled_from([0.0, 0.5, 3.0, 8.0])),
        beta=draw(st.sampled_from([0.01, 0.1, 1.0, 5.0])),
        sharpness=draw(st.sampled_from([2.0, 5.0, 9.0])),
        kernel=draw(st.sampled_from(["exp", "linear"])),
        over=draw(st.sampled_from(["mean", "sum"])),
        domain=draw(st.sampled_from(["logits", "probabilities"])),
        layer_weights=draw(st.sampled_from(["linspace", "index"])),
        order=draw(st.sampled_from(["predict_first", "update_first"])),
        exclude_own=draw(st.booleans()),
        debias=draw(st.sampled_from(["off", "careful", "bold", "camera"])),
    )


@lru_cache
def tower(shape: str, seed: int) -> ViT:
    return make_vit(SHAPES[shape], seed)


def sets_of(fast: CondensingStep) -> tuple[list[int], list[list[int]], list[int], int | None]:
    """Kept patches in order, clusters in order, pruned patches, anchor class."""
    target, stage = fast.target[0], fast.stage
    fate = fate_of(target, stage)
    kept = [int((target == slot).nonzero()) for slot in range(stage.keep)]
    assert sorted(kept) == (fate == KEPT).nonzero().flatten().tolist()
    clusters = [(target == stage.keep + k).nonzero().flatten().tolist() for k in range(stage.centres)]
    assert sum(map(len, clusters)) == int((fate == MERGED).sum())
    anchor = None if fast.anchor is None or int(fast.anchor) < 0 else int(fast.anchor)
    return kept, clusters, (fate == PRUNED).nonzero().flatten().tolist(), anchor


def slow_sets(slow: Condensed) -> tuple[list[int], list[list[int]], list[int], int | None]:
    return slow.kept, [sorted(c.members) for c in slow.merged], sorted(slow.pruned), slow.anchor


@pytest.mark.parametrize("shape", list(SHAPES))
def test_every_step_equals_the_reference(shape: str) -> None:
    compared = {"condensed": 0, "anchored": 0, "evicted": 0, "centred": 0}

    @settings(
        max_examples=EXAMPLES // 6,
        derandomize=not SOAK,  # what the counts below ask for must not depend on luck
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.reuse, Phase.generate],  # a failing stream is small enough without shrinking
    )
    @given(condensations(), adaptations(), st.integers(1, 5), st.integers(0, 2), st.integers(0, 2**20))
    def check(condensation: Condensation, adaptation: Adaptation, C: int, weights_seed: int, seed: int) -> None:
        vit = tower(shape, weights_seed)
        text = make_text(C, vit.shape.embed, seed)
        images = make_mixed(9, seed) if vit.shape.flexible else list(make_images(9, seed=seed))
        setup = Setup(vit, text, 6.0, Preset(condensation, adaptation))
        slow = Reference(vit, text, 6.0, condensation, adaptation)
        depth, state = vit.shape.blocks.depth, empty_state(setup)
        weights = layer_weights(depth, adaptation.beta, adaptation.layer_weights, state.token_mean)
        for image in images:
            try:
                expected = slow.step(image)
            except ValueError:
                with pytest.raises(ConfigError, match="keeps no token"):
                    step(setup, weights, image[None], state)
                return
            full = int(state.reservoir.counts.max()) == adaptation.M
            answer, state = step(setup, weights, image[None], state)
            assert [sets_of(s) for s in answer.steps] == [slow_sets(s) for s in expected.condensed]
            assert [[i for i in row if i >= 0] for row in state.reservoir.ids.tolist()] == expected.ids
            np.testing.assert_allclose(answer.logits, expected.logits, rtol=0, atol=1e-10)
            np.testing.assert_allclose(answer.corrected, expected.corrected, rtol=0, atol=1e-10)
            assert int(answer.corrected.argmax()) == expected.index
            compared["condensed"] += bool(expected.condensed)
            compared["anchored"] += any(s.anchor is not None for s in expected.condensed)
            compared["evicted"] += full
            compared["centred"] += slow.centre.w > 0

    check()
    # The comparison is worth something only if the draws reach the interesting paths.
    assert all(count > EXAMPLES // 12 for count in compared.values()), compared
