"""C-TPT's dispersion and its step against slow float64 references."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lessmore.core.encoder import encode
from lessmore.errors import ConfigError
from lessmore.methods import make_method
from lessmore.methods.ctpt import CTPT, CTPTOptions, dispersion
from tests.methods.test_tpt import PROBES, WORDS, random_setup, slow_choice, slow_loss, slow_step, slow_text
from tests.random_towers import make_images, make_text


def slow_dispersion(text: list[Tensor]) -> float:
    rows = [t.tolist() for t in text]
    mean = [sum(row[i] for row in rows) / len(rows) for i in range(len(rows[0]))]
    return sum(math.sqrt(sum((x - m) ** 2 for x, m in zip(row, mean, strict=True))) for row in rows) / len(rows)


def test_dispersion() -> None:
    text = make_text(7)
    assert float(dispersion(text)) == pytest.approx(slow_dispersion(list(text)), abs=1e-12)


def test_one_class_disperses_nothing_and_has_a_gradient() -> None:
    text = make_text(1).requires_grad_()
    dispersion(text).backward()
    assert text.grad is not None and torch.equal(text.grad, torch.zeros_like(text))


def test_the_prompt_after_one_step() -> None:
    weight = 3.0
    given = random_setup(words=WORDS, views=8, selection=0.3, dispersion=weight)
    ctpt = make_method("c-tpt", given)
    assert isinstance(ctpt, CTPT)
    features = encode(given.vision, make_images(8)).feature
    start = ctpt.frame.start
    chosen = slow_choice(features, slow_text(given, start), given.logit_scale, 0.3)

    def loss(features: Tensor, chosen: list[int], text: list[Tensor], scale: float) -> float:
        return slow_loss(features, chosen, text, scale) - weight * slow_dispersion(text)

    with torch.enable_grad():
        tuned = ctpt.tuned(features)
    for at in PROBES:
        assert float(tuned[at]) == pytest.approx(slow_step(given, features, chosen, start, at, loss), abs=1e-7)


def test_without_weight_it_is_tpt_and_with_it_the_classes_spread() -> None:
    options = {"words": WORDS, "views": 4}
    images = make_images(4)
    plain = make_method("tpt", random_setup(**options)).predict(images).scores
    assert torch.equal(make_method("c-tpt", random_setup(**options, dispersion=0.0)).predict(images).scores, plain)
    spread = make_method("c-tpt", random_setup(**options, dispersion=1e3, lr=1e-3))
    assert isinstance(spread, CTPT)
    with torch.enable_grad():
        tuned = spread.tuned(encode(spread.setup.vision, images).feature)
    before, after = (torch.stack(slow_text(spread.setup, c)) for c in (spread.frame.start, tuned))
    assert dispersion(after) > dispersion(before)
    with pytest.raises(ConfigError, match="plain TPT"):
        CTPTOptions(dispersion=-1.0)
