"""Encoding by loops in float64, for reducers that merge pairs of tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lessmore.core.vit import ViT
from tests.reference import Tower, cosine

Array = NDArray[np.float64]
Groups = list[list[int]]
"""The tokens that go out, each as a list of those it is made of; a token in none of them is dropped."""
Choose = Callable[[int, Array], Groups]
"""The block and what its tokens are compared by, [N, d] → what becomes of them."""
Join = Callable[[Array, list[int]], Array]
"""Tokens [m, D] and their sizes → the token they become, [D]."""


class Slow(NamedTuple):
    """One image, encoded by loops."""

    feature: Array
    tokens: Array
    homes: list[list[int]]
    """For each merging block, the outgoing token that holds each patch of the input, −1 where none does."""
    sizes: list[int]


def mean(tokens: Array, sizes: list[int]) -> Array:
    """The mean of the patches that tokens [m, D] stand for."""
    total: Array = sum(s * token for s, token in zip(sizes, tokens, strict=True)) / sum(sizes)
    return total


def slow_match(metric: Array, r: int, class_token: bool) -> tuple[Groups, int]:
    """ToMe's pairs, and how many there are."""
    N = len(metric)
    evens, odds = range(0, N, 2), range(1, N, 2)
    edges = []
    for a in evens:
        if class_token and a == 0:
            continue
        nearest = max(odds, key=lambda b: cosine(metric[a], metric[b]))
        edges.append((cosine(metric[a], metric[nearest]), a, nearest))
    edges.sort(key=lambda edge: -edge[0])
    r = min(r, len([*range(int(class_token), N)]) // 2)
    gone = {a: b for _, a, b in edges[:r]}
    left = [a for a in evens if a not in gone] if class_token else [a for _, a, _ in edges[r:]]
    return [[a] for a in left] + [[b, *(a for a in gone if gone[a] == b)] for b in odds], r


def slow_encode(
    vit: ViT,
    pixels: Array,
    choose: dict[int, Choose],
    metric: str = "keys",
    proportional: bool = True,
    join: Join = mean,
) -> Slow:
    """A token of size s is a key s times over, literally: proportional attention without its formula."""
    tower, first = Tower(vit), int(vit.shape.class_token)
    x = tower.embed(pixels)
    size, holds = [1] * len(x), [[i] for i in range(len(x))]
    summaries, homes = [], []
    for i in range(vit.shape.blocks.depth):
        D = x.shape[1]
        repeated = size if proportional else [1] * len(x)
        q, k, v = np.split(tower.linear(f"blocks.{i}.attn.qkv", tower.norm(f"blocks.{i}.norm1", x)), 3, axis=1)
        mixed, maps = tower.heads_attend(q, np.repeat(k, repeated, axis=0), np.repeat(v, repeated, axis=0))
        x = x + tower.linear(f"blocks.{i}.attn.out", mixed) * tower.w.get(f"blocks.{i}.scale1", 1.0)
        if i in choose:
            heads = k.reshape(len(k), tower.heads, D // tower.heads)
            groups = choose[i](i, heads.mean(axis=1) if metric == "keys" else maps.mean(axis=0))
            x = np.stack([join(x[group], [size[j] for j in group]) for group in groups])
            size = [sum(size[j] for j in group) for group in groups]
            holds = [[p for j in group for p in holds[j]] for group in groups]
            homes.append(
                [next((t for t, held in enumerate(holds) if p + first in held), first - 1) - first for p in range(36)]
            )
        x = tower.add_mlp(i, x)
        seen = np.repeat(x, size if proportional else [1] * len(x), axis=0)
        summaries.append(x[0] if first else seen.mean(axis=0))
    feature = tower.pool(seen)
    return Slow(feature / np.linalg.norm(feature), np.stack(summaries), homes, size)
