"""Streams of features for tests of the methods that read nothing else, and slow references to hold them against."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lessmore.config import preset
from lessmore.core.encoder import Encoded
from lessmore.methods import FromEncoded, Outcome, Setup, make_method
from tests.random_towers import make_text, make_vit

C, E, SCALE = 6, 8, 12.0
Row = NDArray[np.float64]
Slow = Callable[[Row], Row]
"""A reference: a feature [E] → probabilities [C], remembering the stream."""


def new(name: str, text: Tensor | None = None, dtype: torch.dtype = torch.float64, **options: Any) -> Any:
    """The named method on a random tower of that precision."""
    text = make_text(C) if text is None else text
    return make_method(name, Setup(make_vit(dtype=dtype), text.to(dtype), SCALE, preset("default"), options=options))


def stream(count: int, seed: int = 0, classes: int = C, noise: float = 1.0) -> Tensor:
    """Features [count, E], some near a class, some between all."""
    generator = torch.Generator().manual_seed(seed)
    text = make_text(classes)
    near = text[torch.randint(classes, (count,), generator=generator)] * 2 * torch.rand(count, 1, generator=generator)
    mixed = near + noise * torch.randn(count, E, generator=generator, dtype=torch.float64) / E**0.5
    return mixed / mixed.norm(dim=1, keepdim=True)


def give(method: FromEncoded, feature: Tensor) -> Outcome:
    """The outcome of one feature [E]."""
    return method.answer(Encoded(feature[None], feature.new_empty(1, 0, 0), []))


def answer(method: FromEncoded, feature: Tensor) -> Tensor:
    """Probabilities [C] of one feature [E]."""
    return give(method, feature).scores


def softmax(z: Row) -> Row:
    """Probabilities of logits [C]."""
    p: Row = np.exp(z - z.max())
    return p / p.sum()


def assert_equal_streams(method: FromEncoded, slow: Slow, features: Tensor, atol: float = 1e-10) -> None:
    """A method and its reference answer alike, all along a stream."""
    for number, feature in enumerate(features):
        np.testing.assert_allclose(
            answer(method, feature).numpy(), slow(feature.numpy()), rtol=0, atol=atol, err_msg=f"image {number}"
        )
