"""How many tokens each block keeps, merges and prunes: computed once, before anything runs (section 3.4)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

from lessmore.config import Condensation
from lessmore.errors import ConfigError

MARGIN = 0.9
"""The margin in the first block; it falls evenly towards 0 at the last one."""

# R against the released code's rate; the pairs reproduce the paper's printed costs.
_RATES = ((1.0, 0.0), (0.95, 0.0175), (0.9, 0.035), (0.8, 0.07), (0.7, 0.10), (0.6, 0.14))


@dataclass(frozen=True)
class Stage:
    """What one condensing block does with the n patch tokens that enter it."""

    patches: int
    """n, patch tokens that enter."""
    keep: int
    """Tokens that stay as they are; with rule=`sampling`, at most."""
    ambiguous: int
    """Tokens that are merged into centres or into other tokens."""
    pruned: int
    """Tokens that are dropped, or fused into one."""
    centres: int
    """Coreset centres the ambiguous tokens are merged into."""
    fused: int
    """1 if the pruned tokens leave as one token, else 0."""
    margin: float = 0.0
    """With rule=`energy`: the cosine below which two tokens count as different."""

    @property
    def out(self) -> int:
        """Patch tokens that leave the block."""
        return self.keep + self.centres + self.fused


Schedule = tuple[Stage | None, ...]
"""One entry per block; None where the block is a plain one."""


def rate_of(R: float) -> float:
    """The released code's rate for a kept fraction R: linear between the table's points, the last segment extended."""
    for (R1, r1), (R0, r0) in pairwise(_RATES):
        if R >= R0 or (R0, r0) == _RATES[-1]:
            return r1 + (R1 - R) * (r0 - r1) / (R1 - R0)
    raise AssertionError("unreachable")


def stage(n: int, config: Condensation) -> Stage:
    """Counts of a block; for matching, `ambiguous` are merged into the kept ones, for sampling `keep` is a cap.

    `table` and `rate` follow the released code, whose m = n + 1 − left counts the class token among the pruned ones:
    of 3m − 1 tokens that are not kept, 2m are merged and m − 1 pruned. `exact` lets floor(R·n) tokens leave, `keep`
    keeps ceil(R·n) and adds what the rest is condensed to (EViT's rule). `merge` counts the class token, as released.

    Args:
        n: Patch tokens that enter the block.
        config: R and the rules.

    Raises:
        ConfigError: No token would be kept.
    """
    # Products are rounded to nine digits before they are floored: 0.7·10 is a little less than 7 in binary.
    if config.rule == "matching":
        return matched(n, math.floor(round((1 - config.R) * (n + 1), 9)))
    if config.rule == "sampling":
        keep = math.ceil(round(config.R * n, 9))
        return Stage(patches=n, keep=keep, ambiguous=0, pruned=n - keep, centres=0, fused=0)
    merged, dropped = config.merge_prune
    least, spare = 0, 0
    if config.counts == "exact":
        least, spare = config.K if merged else 0, int(config.pruned == "fuse" and dropped > 0)
        rest = parts = n - (math.floor(round(config.R * n, 9)) - least - spare)
    elif config.counts == "keep":
        rest = parts = n - math.ceil(round(config.R * n, 9))
    else:
        rate = rate_of(config.R) if config.rate is None else config.rate
        m = n + 1 - math.ceil(round((1 - rate) * n, 9))
        rest, parts = 3 * m - 1, 3 * m
    share = (2 * parts * merged + merged + dropped) // (2 * (merged + dropped))  # parts · merged/(both), half up
    ambiguous = max(least, min(rest - spare, share))
    pruned = rest - ambiguous
    if n - rest < 1:
        given, remedy = (
            (f"R={config.R}", "larger R") if config.rate is None else (f"rate={config.rate}", "smaller rate")
        )
        raise ConfigError(f"{given} keeps no token of {n}; choose a {remedy}, fewer layers or a smaller K")
    return Stage(
        patches=n,
        keep=n - rest,
        ambiguous=ambiguous,
        pruned=pruned,
        centres=min(config.K, ambiguous),
        fused=int(config.pruned == "fuse" and pruned > 0),
    )


def matched(n: int, r: int) -> Stage:
    """Counts of a block that merges tokens into other tokens.

    Args:
        n: Patch tokens that enter the block.
        r: Tokens to merge; at most half of them can be.
    """
    r = min(r, n // 2)
    return Stage(patches=n, keep=n - r, ambiguous=r, pruned=0, centres=0, fused=0)


def mean_left(depth: int, config: Condensation) -> float:
    """The share of the tokens left, averaged over blocks, if the fraction R survived each of `layers`.

    Reducers that work in every block leave as many on average, so that the same R costs about the same for all.

    Args:
        depth: Number of blocks.
        config: R and the blocks.
    """
    return sum(config.R ** sum(i <= j for i in config.layers) for j in range(depth)) / depth


def even_merges(patches: int, depth: int, config: Condensation) -> int:
    """Tokens r to merge in every block: `config.r`, or else what `mean_left` comes to.

    Args:
        patches: Patch tokens that enter the first block.
        depth: Number of blocks.
        config: r, or R and the blocks.
    """
    if config.r is not None:
        return config.r
    return max(1, round(patches * (1 - mean_left(depth, config)) / ((depth + 1) / 2)))


def share_left(depth: int, config: Condensation) -> float:
    """The share ρ of its tokens that every block leaves, such that ρ + ρ² + … averaged over blocks is `mean_left`.

    Args:
        depth: Number of blocks.
        config: R and the blocks.
    """
    # By bisection: the left side grows with ρ, and fifty halvings leave less than a float can tell.
    low, high, wanted = 0.0, 1.0, mean_left(depth, config)
    for _ in range(50):
        half = (low + high) / 2
        less = sum(half ** (j + 1) for j in range(depth)) / depth < wanted
        low, high = (half, high) if less else (low, half)
    return high


def in_every_block(patches: int, depth: int, config: Condensation) -> Schedule:
    """The stages of a reducer that works in all blocks.

    Args:
        patches: Patch tokens that enter the first block.
        depth: Number of blocks.
        config: The reducer, with counts=`even` or `share`.
    """
    stages: list[Stage] = []
    even = config.counts == "even"
    r, rho = (even_merges(patches, depth, config), 1.0) if even else (0, share_left(depth, config))
    for i in range(depth):
        one = matched(patches, r if even else max(1, round(patches * (1 - rho))))
        if config.rule == "fusion" and i < config.drop_first * depth:
            one = replace(one, ambiguous=0, pruned=one.ambiguous)
        elif config.rule == "energy":
            one = replace(one, margin=MARGIN * (1 - i / depth))
        stages.append(one)
        patches = one.out
    return tuple(stages)


@lru_cache(maxsize=256)
def schedule(patches: int, depth: int, config: Condensation) -> Schedule:
    """One `Stage` for every condensing block of a tower, None for the others.

    Args:
        patches: Patch tokens that enter the first block.
        depth: Number of blocks.
        config: The reducer.

    Raises:
        ConfigError: A condensing block does not exist, or a block would keep no token.
    """
    if config.active and config.layers[-1] >= depth:
        raise ConfigError(
            f"block {config.layers[-1]} of layers={config.layers} does not exist: the tower has {depth} blocks, "
            f"counted from 0; give layers below {depth}, such as layers=({depth // 2},), or use preset 'default', "
            "which follows the depth"
        )
    if config.active and config.counts in ("even", "share"):
        return in_every_block(patches, depth, config)
    stages: list[Stage | None] = []
    for i in range(depth):
        one = stage(patches, config) if config.active and i in config.layers else None
        stages.append(one)
        patches = patches if one is None else one.out
    return tuple(stages)
