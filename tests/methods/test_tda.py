"""TDA: its logits and caches against a plain float64 reference, and what enters which cache."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from lessmore.config import preset
from lessmore.core.encoder import Encoded
from lessmore.errors import ConfigError
from lessmore.methods import Setup, make_method
from lessmore.methods.tda import TDA, TUNED
from tests.random_towers import make_text, make_vit

C, E, SCALE = 6, 8, 12.0
Row = NDArray[np.float64]


def new(text: Tensor | None = None, **options: Any) -> TDA:
    text = make_text(C) if text is None else text
    method = make_method("tda", Setup(make_vit(), text, SCALE, preset("default"), options=options))
    assert isinstance(method, TDA)
    return method


def stream(count: int, seed: int = 0) -> Tensor:
    """Features [count, E], some near a class, some between all."""
    generator = torch.Generator().manual_seed(seed)
    text = make_text(C)
    near = text[torch.randint(C, (count,), generator=generator)] * 2 * torch.rand(count, 1, generator=generator)
    mixed = near + torch.randn(count, E, generator=generator, dtype=torch.float64) / E**0.5
    return mixed / mixed.norm(dim=1, keepdim=True)


def answer(method: TDA, feature: Tensor) -> Tensor:
    return method.answer(Encoded(feature[None], feature.new_empty(1, 0, 0), [])).scores


class Slow:
    """The method by its formulas: lists in dictionaries, one number at a time."""

    def __init__(self, text: Row, alpha: float, beta: float, positive: bool = True, negative: bool = True) -> None:
        self.text, self.alpha, self.beta = text, alpha, beta
        self.parts = positive, negative
        self.positive: dict[int, list[Any]] = {}
        self.negative: dict[int, list[Any]] = {}

    def __call__(self, f: Row) -> Row:
        z = SCALE * self.text @ f
        p = np.exp(z - z.max())
        p /= p.sum()
        entropy, y = -sum(q * math.log(q) for q in p), int(p.argmax())
        if self.parts[0]:
            self.admit(self.positive, y, (entropy, f, p), 3)
        if self.parts[1] and 0.2 < entropy / math.log2(len(p)) < 0.5:
            self.admit(self.negative, y, (entropy, f, p), 2)
        for c, entries in self.positive.items():
            for _, key, _ in entries:
                z[c] += self.alpha * math.exp(-self.beta * (1 - f @ key))
        for entries in self.negative.values():
            for _, key, seen in entries:
                z = z - 0.117 * math.exp(-(1 - f @ key)) * ((seen > 0.03) & (seen < 1))
        out: Row = np.exp(z - z.max())
        return out / out.sum()

    def admit(self, cache: dict[int, list[Any]], y: int, entry: Any, capacity: int) -> None:
        kept = [*cache.get(y, []), entry]
        cache[y] = sorted(kept, key=lambda e: e[0])[:capacity]


@pytest.mark.parametrize("parts", [(True, True), (True, False), (False, True), (False, False)])
def test_scores_equal_the_slow_reference(parts: tuple[bool, bool]) -> None:
    method = new(alpha=3.0, beta=4.0, positive=parts[0], negative=parts[1])
    slow = Slow(make_text(C).numpy(), 3.0, 4.0, *parts)
    for feature in stream(300):
        np.testing.assert_allclose(answer(method, feature).numpy(), slow(feature.numpy()), rtol=0, atol=1e-12)
    for cache, entries in ((method.positive, slow.positive), (method.negative, slow.negative)):
        if cache is not None:
            for c in range(C):
                kept = cache.entropies[c, :, 0]
                expected = [entropy for entropy, *_ in entries.get(c, [])]
                np.testing.assert_allclose(kept[kept.isfinite()].numpy(), expected, atol=1e-12)


def test_only_unsure_samples_enter_the_negative_cache() -> None:
    method, touched, entropies = new(), [], []
    for feature in stream(200, seed=3):
        assert method.negative is not None
        before = method.negative.entropies.clone()
        p = (SCALE * make_text(C) @ feature).softmax(dim=0)
        entropy = float(torch.special.entr(p).sum()) / math.log2(C)
        answer(method, feature)
        if not torch.equal(before, method.negative.entropies):
            touched.append(entropy)
        entropies.append(entropy)
    assert touched
    assert all(0.2 < entropy < 0.5 for entropy in touched)
    assert min(entropies) < 0.2
    assert max(entropies) > 0.5


def test_masks_leave_out_what_was_hardly_believed() -> None:
    method = new()
    for feature in stream(100, seed=4):
        answer(method, feature)
    assert method.negative is not None
    p = (SCALE * method.negative.keys @ make_text(C).T).softmax(dim=-1)
    used = method.negative.entropies[..., 0].isfinite()
    assert torch.equal(method.negative.masks[used], (p > 0.03)[used])
    assert not method.negative.masks[~used].any()


def test_a_first_sample_votes_for_itself() -> None:
    """Its own entry is there already when it is answered, at distance 0."""
    method, feature = new(negative=False, alpha=2.0), stream(1)[0]
    z = SCALE * make_text(C) @ feature
    z[z.argmax()] += 2.0
    torch.testing.assert_close(answer(method, feature), z.softmax(dim=0))


def test_slots_fill_up_to_capacity() -> None:
    method = new(capacity=2)
    for feature in stream(150):
        answer(method, feature)
    slots = method.slots()
    assert slots is not None
    assert slots.shape == (C, 2)
    assert slots.all()


def test_an_answer_that_is_not_finite_is_not_kept() -> None:
    method = new()
    outcome = method.answer(Encoded(torch.full((1, E), math.nan, dtype=torch.float64), torch.empty(1, 0, 0), []))
    assert not outcome.stored
    assert not method.slots().any()  # type: ignore[union-attr]


def test_a_single_class_is_no_reason_to_fail() -> None:
    method = new(make_text(1))
    assert answer(method, stream(1)[0]).tolist() == [1.0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"capacity": 0}, "at least 1"),
        ({"beta": -1.0}, "not be negative"),
        ({"alpha": "much"}, "alpha='much' is not a finite number"),
        ({"positive": 1}, "true or false"),
        ({"alpah": 1.0}, "did you mean alpha"),
        ({"tuned_on": "eurosatt"}, "did you mean eurosat"),
        ({"tuned_on": "eurosat", "alpha": 3.0}, "not both"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        new(**options)


def test_published_settings_by_data_set() -> None:
    options = new(tuned_on="eurosat").options
    assert (options.alpha, options.beta) == TUNED["eurosat"] == (4.0, 8.0)
