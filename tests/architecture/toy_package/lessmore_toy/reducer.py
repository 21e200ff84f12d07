"""A reducer: half of the fused tokens are merged into a single centre."""

from __future__ import annotations

from dataclasses import replace

from lessmore.config import Condensation
from lessmore.core.condense.registry import register_reducer


@register_reducer("toy-half")
def toy_half(base: Condensation) -> Condensation:
    """As many tokens merged as pruned, one centre."""
    return replace(base, merge_prune=(1, 1), K=1)
