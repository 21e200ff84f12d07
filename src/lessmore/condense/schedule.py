"""How many tokens each block keeps, merges and prunes: computed once, before anything runs (section 3.4)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from lessmore.config import Condensation
from lessmore.errors import ConfigError

# R against the released code's rate; the pairs reproduce the paper's printed costs.
_RATES = ((1.0, 0.0), (0.95, 0.0175), (0.9, 0.035), (0.8, 0.07), (0.7, 0.10), (0.6, 0.14))


@dataclass(frozen=True)
class Stage:
    """What one condensing block does with the n patch tokens that enter it."""

    patches: int
    keep: int
    ambiguous: int
    pruned: int
    centres: int
    fused: int

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
    """Counts for n patch tokens.

    `table` and `rate` follow the released code, whose m = n + 1 − left counts the class token among the pruned ones:
    of 3m − 1 tokens that are not kept, 2m are merged and m − 1 pruned. `exact` lets floor(R·n) tokens leave, `keep`
    keeps ceil(R·n) and adds what the rest is condensed to (EViT's rule).
    """
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


@lru_cache(maxsize=256)
def schedule(patches: int, depth: int, config: Condensation) -> Schedule:
    """One `Stage` per condensing block of a tower with `depth` blocks, None for the others."""
    if config.active and config.layers[-1] >= depth:
        raise ConfigError(
            f"layers={config.layers} asks for block {config.layers[-1]}, but the tower has {depth} blocks"
        )
    stages: list[Stage | None] = []
    for i in range(depth):
        stages.append(stage(patches, config) if config.active and i in config.layers else None)
        last = stages[-1]
        patches = patches if last is None else last.out
    return tuple(stages)
