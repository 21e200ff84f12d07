"""The token mean of a stream, by itself; in whole streams it is checked in tests/property."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lessmore.core.correction import affinities
from lessmore.core.token_mean import PAST, PRIOR, SHARE, updated_mean


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def followed(tokens: Tensor) -> list[Tensor]:
    """The mean after each of a stream's tokens [T, L, D]."""
    means = [torch.zeros_like(tokens[0])]
    for step, one in enumerate(tokens):
        means.append(updated_mean(means[-1], one, torch.tensor(step)))
    return means[1:]


def test_it_is_the_mean_of_the_unit_tokens_with_nothing_in_the_balance() -> None:
    tokens = normal(0, 30, 2, 5)
    expected = SHARE * F.normalize(tokens, dim=-1).sum(dim=0) / (30 + PRIOR)
    torch.testing.assert_close(followed(tokens)[-1], expected)


def test_it_forgets() -> None:
    tokens = torch.ones(4 * int(PAST), 1, 2, dtype=torch.float64)
    tokens[: 2 * int(PAST), :, 0] = -1
    before, after = followed(tokens)[2 * int(PAST) - 1], followed(tokens)[-1]
    assert float(before[0, 0]) < -0.6 and float(after[0, 0]) > 0.45


def test_without_a_token_mean_cosines_are_the_papers() -> None:
    tokens, stored, weights = normal(1, 3, 6), normal(2, 4, 2, 3, 6), torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    plain = (F.cosine_similarity(tokens, stored, dim=-1) * weights).sum(dim=-1)
    torch.testing.assert_close(affinities(tokens, stored, weights), plain)
    torch.testing.assert_close(affinities(tokens, stored, weights, torch.zeros_like(tokens)), plain)


def test_what_all_have_in_common_does_not_count() -> None:
    """Tokens that differ by a little from one and the same: alike with it, and told apart without it."""
    L, D = 2, 64
    common, weights = 10 * normal(3, L, D), torch.full((L,), 1 / L, dtype=torch.float64)
    tokens = common + normal(4, 400, L, D)
    mean, stored = followed(tokens)[-1], tokens[:20].view(20, 1, L, D)
    own = affinities(tokens[0], stored, weights, mean)[:, 0]
    raw = affinities(tokens[0], stored, weights)[:, 0]
    torch.testing.assert_close(own[0], torch.ones((), dtype=torch.float64))
    assert float(raw[1:].min()) > 0.95 and float(own[1:].max()) < 0.8


def test_a_stream_of_one_image_is_like_itself() -> None:
    """However often it comes, and in float32: the mean never becomes the image."""
    tokens, weights = normal(5, 2, 8).float(), torch.tensor([0.5, 0.5])
    mean = followed(tokens.repeat(2000, 1, 1))[-1]
    found = affinities(tokens, torch.stack([tokens, -tokens])[None], weights, mean)
    torch.testing.assert_close(found, torch.tensor([[1.0, -1.0]]), rtol=0, atol=1e-4)
