"""Encoding by loops in float64, for reducers that merge pairs of tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lessmore.core.vit import ViT
from tests.reference import Tower, cosine, mean_place

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


def beside_registers(choose: Choose, block: int, metric: Array, first: int) -> Groups:
    """What becomes of the tokens if registers, those between the class token and the patches, pass through alone."""
    if first <= 1:
        return choose(block, metric)
    known = [0, *range(first, len(metric))]
    groups = [[known[j] for j in group] for group in choose(block, metric[known])]
    return [groups[0], *([j] for j in range(1, first)), *groups[1:]]


def slow_encode(
    vit: ViT,
    pixels: Array,
    choose: dict[int, Choose],
    metric: str = "keys",
    proportional: bool = True,
    join: Join = mean,
) -> Slow:
    """A token of size s is a key s times over, literally: proportional attention without its formula."""
    tower, first = Tower(vit), vit.shape.first
    x = tower.embed(pixels)
    places = tower.places(len(x))
    size, holds = [1] * len(x), [[i] for i in range(len(x))]
    summaries, homes = [], []
    for i in range(vit.shape.blocks.depth):
        D = x.shape[1]
        repeated = size if proportional else [1] * len(x)
        q, k, v = tower.project(i, x)
        placed = i < tower.border()
        asked, keys = (tower.turned(q, places), tower.turned(k, places)) if placed else (q, k)
        mixed, maps = tower.heads_attend(asked, np.repeat(keys, repeated, axis=0), np.repeat(v, repeated, axis=0))
        x = x + tower.attention_update(i, mixed)
        if i in choose:
            heads = k.reshape(len(k), tower.heads, D // tower.heads)
            groups = beside_registers(
                choose[i], i, heads.mean(axis=1) if metric == "keys" else maps.mean(axis=0), first
            )
            places = [mean_place([places[j] for j in group], [size[j] for j in group]) for group in groups]
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
