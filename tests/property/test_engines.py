"""Every engine against `eager`: options and streams drawn jointly, every answer and the state compared.

(A) float64 on the CPU: the same predictions, anchors, kept, merged and pruned sets and reservoir, scores to 1e-10.
(B) in low precision: bit for bit what one image at a time gives through the same functions at the same batch shapes.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache
from random import Random
from typing import NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from lessmore.config import Adaptation, Condensation, Preset, preset
from lessmore.core.condense.schedule import schedule
from lessmore.core.debias import StreamMean
from lessmore.core.vit import ViT
from lessmore.engines import cpu
from lessmore.engines.chunk import Chunk
from lessmore.engines.multi import Multi
from lessmore.errors import ConfigError
from lessmore.methods import Method, Outcome, Setup
from lessmore.methods.tca import TCA
from tests.property.test_against_reference import adaptations, condensations
from tests.random_towers import SHAPES, make_images, make_text, make_vit

SOAK = bool(os.environ.get("LESSMORE_SOAK"))
EXAMPLES = 2000 if SOAK else 40
LENGTH = 12
ONE_SHAPE = [name for name, shape in SHAPES.items() if not shape.flexible]
"""Batching engines refuse the others; `tests/unit/test_flexible.py` compares the engines that take them."""


class Told(NamedTuple):
    """What an engine answered to one stream, and its state at the end."""

    answers: list[Outcome]
    state: Mapping[str, Tensor]


Engine = Callable[[Setup, list[Tensor], Random, Counter[str]], list[Told]]


def chunk(setup: Setup, streams: list[Tensor], random: Random, seen: Counter[str]) -> list[Told]:
    """In chunks of random sizes, padded to random shapes; the state handed on to a new engine on the way."""
    told = []
    for images in streams:
        largest = random.choice([1, 2, 5, 8, 16])
        engine = Chunk(setup, tuple(sorted({largest, *random.sample(range(1, largest + 1), 1)})))
        batches = images.split(random.randint(1, LENGTH))
        answers = [answer for answers in engine.predict_chunks(batches[:-1]) for answer in answers]
        heir = Chunk(setup, (largest,))
        heir.restore(engine.state())
        answers += heir.predict_many(batches[-1])
        seen["again"] += engine.work.again + heir.work.again
        told.append(Told(answers, heir.state()))
    return told


def multi(setup: Setup, streams: list[Tensor], random: Random, seen: Counter[str]) -> list[Told]:
    """All streams at once, in turns in which some of them wait."""
    engine = Multi(setup, len(streams))
    answers: list[list[Outcome]] = [[] for _ in streams]
    while waiting := [s for s, images in enumerate(streams) if len(answers[s]) < len(images)]:
        turn = random.sample(waiting, random.randint(1, len(waiting)))
        images = torch.stack([streams[s][len(answers[s])] for s in turn])
        for s, answer in zip(turn, engine.predict(images, turn), strict=True):
            answers[s].append(answer)
    return [Told(answers[s], engine.state(s)) for s in range(len(streams))]


def one_by_one(build: Callable[[Setup], Method]) -> Engine:
    """An engine that knows single images only; the state handed on to a new one on the way."""

    def run(setup: Setup, streams: list[Tensor], random: Random, seen: Counter[str]) -> list[Told]:
        told = []
        for images in streams:
            first, second = build(setup), build(setup)
            half = random.randrange(len(images))
            answers = [first.predict(image[None]) for image in images[:half]]
            second.restore(first.state())
            told.append(Told(answers + [second.predict(image[None]) for image in images[half:]], second.state()))
        return told

    return run


ENGINES: dict[str, Engine] = {
    "chunk": chunk,
    "multi": multi,
    "cpu": one_by_one(lambda setup: cpu.build_cpu("tca", setup)),
}


def eager(setup: Setup, images: Tensor) -> Told:
    method = TCA(setup)
    return Told([method.predict(image[None]) for image in images], method.state())


def assert_same(expected: Told, got: Told) -> None:
    for a, b in zip(expected.answers, got.answers, strict=True):
        for field in ("logits", "scores", "zero_shot"):
            torch.testing.assert_close(getattr(a, field), getattr(b, field), rtol=0, atol=1e-10, equal_nan=True)
        assert int(a.scores.argmax()) == int(b.scores.argmax())
        assert a.stored is not None and b.stored is not None and bool(a.stored) == bool(b.stored)
        if a.scores.isnan().any():
            continue  # refused; who went where means nothing then
        for s, t in zip(a.steps, b.steps, strict=True):
            assert (s.block, s.stage, s.target.tolist()) == (t.block, t.stage, t.target.tolist())
            assert (s.anchor is None) == (t.anchor is None)
            assert s.anchor is None or t.anchor is None or s.anchor.tolist() == t.anchor.tolist()
    assert expected.state.keys() == got.state.keys()
    for name in expected.state:
        torch.testing.assert_close(expected.state[name], got.state[name], rtol=0, atol=1e-10)


@lru_cache
def tower(shape: str, seed: int) -> ViT:
    return make_vit(SHAPES[shape], seed)


def possible(vit: ViT, condensation: Condensation) -> bool:
    try:
        schedule(vit.shape.patches, len(vit.blocks), condensation)
    except ConfigError:
        return False
    return True


@pytest.mark.parametrize("name", list(ENGINES))
def test_every_engine_answers_as_eager_does(name: str) -> None:
    seen: Counter[str] = Counter()

    @settings(
        max_examples=EXAMPLES,
        derandomize=not SOAK,  # what the counts below ask for must not depend on luck
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],
    )
    @given(
        condensations(),
        adaptations(),
        st.sampled_from(ONE_SHAPE),
        st.integers(1, 4),
        st.randoms(use_true_random=False),
    )
    def check(condensation: Condensation, adaptation: Adaptation, shape: str, C: int, random: Random) -> None:
        vit = tower(shape, random.randint(0, 2))
        if not possible(vit, condensation):
            return
        text = make_text(C, vit.shape.embed, random.randrange(2**20))
        setup = Setup(vit, text, 6.0, Preset(condensation, adaptation))
        streams = [make_images(LENGTH, seed=random.randrange(2**20)) for _ in range(2)]
        if random.random() < 0.3:
            streams[0][random.randrange(LENGTH), 0, 3] = torch.nan
        expected = [eager(setup, images) for images in streams]
        for a, b in zip(expected, ENGINES[name](setup, streams, random, seen), strict=True):
            assert_same(a, b)
            seen["full"] += bool((a.state["counts"] == adaptation.M).any())
            seen["refused"] += not all(answer.scores.isfinite().all() for answer in a.answers)
            seen["centred"] += bool(a.state["strength"] > 0)
            seen["guided"] += any(s.anchor is not None and int(s.anchor) >= 0 for o in a.answers for s in o.steps)

    check()
    # The comparison is worth something only if the draws reach the interesting paths.
    assert min(seen["full"], seen["guided"], seen["refused"]) > EXAMPLES // 8 and seen["centred"] > 1, seen
    assert name != "chunk" or seen["again"] > EXAMPLES // 4, seen


PLACES = [
    pytest.param("cpu", torch.float32, id="cpu-float32"),
    pytest.param(
        "cuda",
        torch.float16,
        id="cuda-float16",
        marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    ),
]


def place(device: str, dtype: torch.dtype, shape: str, chosen: Preset, C: int) -> Setup:
    vit = make_vit(SHAPES[shape], dtype=torch.float64, spread=0.25).to(device, dtype)
    return Setup(vit, make_text(C, vit.shape.embed).to(device, dtype), 6.0, chosen)


def bits(told: Told) -> list[Tensor]:
    """All that the answers hold."""
    tensors = [t for a in told.answers for t in (a.logits, a.scores, a.zero_shot)]
    return [*tensors, *[s.target for a in told.answers for s in a.steps]]


@pytest.mark.parametrize(("device", "dtype"), PLACES)
@pytest.mark.parametrize("shape", ONE_SHAPE)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"ready": "class", "order": "predict_first", "debias": "careful"},
        {"strategy": "similarity"},
        {"proportional": True, "merge_prune": (1, 0)},
    ],
)
@pytest.mark.parametrize("name", ["labelfree", "paper", "released"])
def test_a_chunk_is_bit_for_bit_its_images(
    device: str, dtype: torch.dtype, shape: str, options: dict[str, object], name: str
) -> None:
    setup = place(device, dtype, shape, preset(name, layers=(1, 2, 3), R=0.8, **options), C=3)
    images = make_images(30, dtype=dtype).to(device)
    batched, single = Chunk(setup, sizes=(16,)), Chunk(setup, sizes=(16,))
    whole = Told(batched.predict_many(images), batched.state())
    alone = Told([single.predict(image[None]) for image in images], single.state())
    assert all(torch.equal(a, b) for a, b in zip(bits(whole), bits(alone), strict=True))
    for key in whole.state:  # a kernel sums the mean logits within a chunk, and derives them after it
        room = 1e-5 if device == "cuda" and key in StreamMean._fields else 0
        torch.testing.assert_close(whole.state[key], alone.state[key], rtol=room, atol=room)
    assert single.work.again == 0
    assert (batched.work.again > 0) == (name == "paper" or (name == "released" and "ready" in options))
