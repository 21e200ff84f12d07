"""Every choice the method leaves open, as two frozen dataclasses, and the presets that pair them.

`Condensation` belongs to the reducer (how tokens are dropped or merged), `Adaptation` to the method (what is remembered
and how it corrects the answer). Where the paper is silent, or the released code differs from it, there is a field here;
`docs/divergences.md` lists them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from lessmore.errors import ConfigError, unknown

Rule = Literal["coreset", "matching", "fusion", "energy", "sampling"]
Counts = Literal["table", "rate", "exact", "keep", "merge", "even", "share"]
Metric = Literal["keys", "attention"]
Merge = Literal["mean", "inverse_distance"]
Pruned = Literal["fuse", "drop"]
Score = Literal["rank", "mean"]
QueryRows = Literal["class", "anchor", "both"]
Place = Literal["mean", "centre", "first"]
TokenSummary = Literal["mean", "attn_pool"]
Strategy = Literal["fifo", "uncertainty", "similarity", "diversity"]
Key = Literal["entropy", "class_term"]
Ready = Literal["class", "all"]
Kernel = Literal["exp", "linear"]
Over = Literal["mean", "sum"]
Domain = Literal["logits", "probabilities"]
LayerWeights = Literal["linspace", "index"]
Order = Literal["predict_first", "update_first"]
Debiasing = Literal["off", "careful", "bold", "camera"]

_COUNTS: dict[Rule, tuple[Counts, ...]] = {
    "coreset": ("table", "rate", "exact", "keep"),
    "matching": ("merge", "even"),
    "fusion": ("even",),
    "energy": ("share",),
    "sampling": ("keep",),
}
PAIRING: tuple[Rule, ...] = ("matching", "fusion", "energy")
"""Rules that merge pairs of tokens, all of them by what the attention knows of both."""


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


def check_value(name: str, value: Any, hint: Any) -> None:
    """Refuse a setting of the wrong type, or a number that is not finite.

    Args:
        name: The setting.
        value: Its value.
        hint: Its type, as the annotation says it; types that no setting of ours has are let through.

    Raises:
        ConfigError: The value is of another type.
    """
    if not _fits(value, hint):
        raise ConfigError(f"{name}={str(repr(value))[:60]} is not {_wanted(hint)}")


_SAID = {bool: "true or false", int: "a whole number", float: "a finite number", str: "a text", NoneType: "nothing"}


def _fits(value: Any, hint: Any) -> bool:
    kind, parts = get_origin(hint), get_args(hint)
    if kind is Literal:
        return isinstance(value, str) and value in parts
    if kind in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if kind is tuple:
        wanted = parts[:1] * len(value) if isinstance(value, (list, tuple)) and parts[-1] is ... else parts
        known = isinstance(value, (list, tuple)) and len(value) == len(wanted)
        return known and all(map(_fits, value, wanted))
    if hint is float:
        return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    if hint is int:
        return isinstance(value, Integral) and not isinstance(value, bool)
    return not isinstance(hint, type) or isinstance(value, hint)


def _wanted(hint: Any) -> str:
    kind, parts = get_origin(hint), get_args(hint)
    if kind is Literal:
        return f"one of {', '.join(parts)}"
    if kind in (Union, UnionType):
        return " or ".join(map(_wanted, parts))
    return "a list of whole numbers" if kind is tuple else _SAID.get(hint, str(hint))


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    """The types of a class's fields; resolving them takes longer than everything else that a preset checks."""
    return get_type_hints(kind)


def _check_types(config: Any) -> None:
    for name, hint in _hints(type(config)).items():  # type: ignore[arg-type]  # classes are hashable
        check_value(name, getattr(config, name), hint)


@dataclass(frozen=True)
class Condensation:
    """How tokens are condensed between attention and MLP of chosen blocks (section 3.4)."""

    R: float = 0.9
    """Fraction of the patch tokens that survives each condensing block; 1 condenses nothing."""
    layers: tuple[int, ...] = (3, 6, 9)
    """Blocks that condense, counted from 0; with counts=`even` and `share` all do, and these say what R is worth."""
    rule: Rule = "coreset"
    """`coreset`: prune, and merge around centres (TCA, EViT); `matching`: merge the most similar pairs (ToMe);
    `fusion`: drop one of such a pair in early blocks, merge both in later ones (ToFu); `energy`: merge tokens that
    resemble many others (PiToMe); `sampling`: keep what inverse transform sampling hits, a number that depends on the
    image (ATS)."""
    counts: Counts = "table"
    """`table`: R to the released code's rate by interpolation; `rate`: that rate given; `exact`: floor(R·n) tokens
    leave the block; `keep`: ceil(R·n) are kept as they are (EViT; for ATS, at most). For matching, `merge`:
    floor((1 − R)(n + 1)) tokens are merged away; `even`: equally many, `r`, in every block. For `energy`, `share`: the
    same share of the tokens in every block."""
    rate: float | None = None
    """The released code's drop rate, about (1 − R)/3; only with counts=`rate`."""
    r: int | None = None
    """With counts=`even`: tokens merged away in each block, instead of what R comes to."""
    drop_first: float = 0.5
    """With rule=`fusion`: the share of the blocks, from the first on, that drop tokens; the others merge them."""
    metric: Metric = "keys"
    """What matching compares: keys averaged over heads (ToMe), or rows of the attention averaged over heads."""
    proportional: bool = False
    """A token merged from s patches counts s times, as a key and wherever tokens are averaged."""
    merge_prune: tuple[int, int] = (2, 1)
    """Merged against pruned tokens, as parts."""
    K: int = 2
    """Coreset centres the ambiguous tokens are merged into."""
    merge: Merge = "mean"
    """Value of a merged token: plain mean of its cluster, or weights 1/distance with 1 for the centre itself."""
    pruned: Pruned = "drop"
    """Pruned tokens are fused into one attention-weighted token, or dropped."""
    score: Score = "rank"
    """Cross-head rank (the paper) or head-mean attention (EViT and the released code)."""
    rows: QueryRows = "class"
    """Query rows the scores are read from: the class token's, the anchor's, or the mean of both."""
    anchor_kv: bool = False
    """The nearest class anchor joins the attention as one more key and value."""
    place: Place = "mean"
    """Towers with rotary positions: a condensed token lies at the mean of its patches' places, at the place of the
    token it was formed around (coreset centre, ToMe's partner, best of a fused token), or at that of its first member
    in the order in which tokens entered the block."""
    summary: TokenSummary = "mean"
    """Towers without a class token: a block's summary is the mean of its tokens, or weighted by received attention."""

    def __post_init__(self) -> None:
        """Validate once; every later use may trust the values."""
        _check_types(self)
        object.__setattr__(self, "layers", tuple(sorted(set(self.layers))))
        object.__setattr__(self, "merge_prune", tuple(self.merge_prune))
        _require(0 < self.R <= 1, f"R must lie in (0, 1], not {self.R}")
        _require(all(i >= 0 for i in self.layers), f"layers are counted from 0, not {self.layers}")
        _require(self.K >= 0, f"K must be 0 or more, not {self.K}")
        parts = self.merge_prune
        _require(len(parts) == 2 and min(parts) >= 0 < sum(parts), f"merge_prune needs two parts, not {parts}")
        _require(parts[0] == 0 or self.K > 0, "K=0 leaves nothing to merge into; set merge_prune=(0, 1) with it")
        _require((self.counts == "rate") == (self.rate is not None), "rate goes with counts='rate', and only with it")
        _require(self.rate is None or 0 <= self.rate < 1, f"rate must lie in [0, 1), not {self.rate}")
        _require(self.r is None or self.r >= 1, f"r must be at least 1, not {self.r}; R=1 merges nothing")
        _require(self.counts in _COUNTS[self.rule], f"rule={self.rule!r} counts by {' or '.join(_COUNTS[self.rule])}")
        _require(self.rule == "coreset" or not self.uses_anchor, "only rule='coreset' looks at anchors")
        _require(
            self.rule != "sampling" or not self.proportional,
            "rule='sampling' merges nothing that could be proportional",
        )
        _require(
            self.rule not in PAIRING or self.summary == "mean",
            f"summary='attn_pool' weighs by attention received, which rule={self.rule!r} does not compute; use 'mean'",
        )
        _require(0 <= self.drop_first <= 1, f"drop_first must lie in [0, 1], not {self.drop_first}")

    @property
    def active(self) -> bool:
        """False where no block would condense anything."""
        return bool(self.layers) and (self.rate != 0 if self.counts == "rate" else self.R < 1 or self.r is not None)

    @property
    def uses_anchor(self) -> bool:
        """Whether any block looks at the reservoir's anchors."""
        return self.anchor_kv or self.rows != "class"


@dataclass(frozen=True)
class Adaptation:
    """What is remembered of the stream (3.3) and how it corrects the answer (3.5)."""

    M: int = 3
    """Reservoir entries per class."""
    strategy: Strategy = "diversity"
    """Who leaves a full class."""
    key: Key = "entropy"
    """Reliability of a sample: full entropy of its answer, or the predicted class's term −p log p."""
    ready: Ready = "class"
    """Anchors serve as soon as their class has one entry, or (`all`) once every class has two."""
    lam: float = 8.0
    """Weight λ of the correction."""
    beta: float = 0.3
    """Layer temperature β: small favours deep layers, large weighs all alike."""
    sharpness: float = 5.0
    """Exponent b of the exponential kernel."""
    kernel: Kernel = "exp"
    """exp(−b(1−a)) of the affinity a, or the affinity itself."""
    over: Over = "mean"
    """Mean or sum over a class's entries."""
    domain: Domain = "logits"
    """The correction is added to the logits or to the probabilities."""
    layer_weights: LayerWeights = "linspace"
    """softmax(linspace(0, 1, L)/β), or softmax(l/β) with l = 1…L."""
    order: Order = "update_first"
    """Let the sample into the reservoir and then correct its answer, or the other way round."""
    exclude_own: bool = False
    """With update_first: leave the sample's own entry out of its correction."""
    debias: Debiasing = "off"
    """Remove what all images of the stream have in common: from the logits before anything else, and from the tokens
    before their cosines in the correction. The correction then counts by how much was seen of stream and class.
    `careful` leaves the logits alone where the stream may show few classes; `bold` is for streams known to show
    many; `camera` doubts more than `careful` and counts a frame by how new it is."""

    def __post_init__(self) -> None:
        """Validate once; every later use may trust the values."""
        _check_types(self)
        _require(self.M >= 1, f"M must be at least 1, not {self.M}")
        _require(self.beta > 0, f"beta must be positive, not {self.beta}")
        _require(self.ready == "class" or self.M >= 2, "ready='all' waits for two entries per class, so M must be ≥ 2")


class Preset(NamedTuple):
    """A named pair of settings."""

    condensation: Condensation
    adaptation: Adaptation
    tuned_on: str | None = None
    """The data set whose test labels chose the settings, if any."""
    scales: bool = False
    """Whether the condensing blocks follow the depth of a tower too shallow for them; see `methods.resolve`."""


LATE = (6, 7, 8, 9, 10)
"""Blocks in which `default`, `camera` and `mixed` condense a tower of 12: R = 0.9 there costs what it costs in 3, 6
and 9."""
_MERGED = Condensation(layers=LATE, counts="exact", merge_prune=(1, 0), K=4, proportional=True)
_LABELFREE = Preset(_MERGED, Adaptation(debias="careful", lam=10.0, sharpness=2.0), scales=True)
_MIXED = Preset(_MERGED, replace(_LABELFREE.adaptation, debias="bold"), scales=True)
_PAPER = Preset(
    Condensation(counts="exact", rows="both", anchor_kv=True),
    Adaptation(key="class_term", kernel="linear", domain="probabilities", layer_weights="index", lam=2.0, beta=1.0),
)
_RELEASED = Preset(
    Condensation(counts="rate", rate=0.035, K=4, merge="inverse_distance", pruned="fuse", score="mean", anchor_kv=True),
    Adaptation(ready="all", over="sum", lam=3.0, beta=1.0),
)

# M, β ("scale"), λ and b of the released configuration files, chosen per data set on test labels.
_RELEASED_TUNED: dict[str, tuple[int, float, float, float]] = {
    "caltech101": (3, 1.0, 7.0, 6.0),
    "dtd": (3, 1.0, 2.0, 6.0),
    "eurosat": (2, 5.0, 8.0, 7.0),
    "fgvc_aircraft": (3, 0.02, 2.0, 2.0),
    "food101": (3, 0.01, 2.0, 5.0),
    "oxford_flowers": (3, 0.01, 7.0, 7.0),
    "oxford_pets": (3, 5.5, 2.0, 6.0),
    "stanford_cars": (3, 0.1, 1.5, 8.0),
    "sun397": (3, 0.01, 4.0, 3.0),
    "ucf101": (3, 0.01, 6.0, 8.0),
    "imagenet": (3, 0.1, 3.0, 5.0),
    "imagenet_a": (3, 0.01, 3.0, 5.0),
    "imagenet_v2": (3, 0.1, 4.0, 9.0),
    "imagenet_r": (3, 0.1, 3.0, 8.0),
    "imagenet_sketch": (3, 0.1, 4.0, 8.0),
}


def _tuned(name: str) -> Preset:
    M, beta, lam, sharpness = _RELEASED_TUNED[name]
    return Preset(
        _RELEASED.condensation, replace(_RELEASED.adaptation, M=M, beta=beta, lam=lam, sharpness=sharpness), name
    )


PRESETS: dict[str, Preset] = {
    "default": _LABELFREE,
    "labelfree": _LABELFREE,
    "camera": Preset(_MERGED, replace(_LABELFREE.adaptation, debias="camera", lam=0.0, M=1), scales=True),
    "mixed": _MIXED,
    "bold": _MIXED,
    "fixed": Preset(Condensation(), Adaptation()),
    "paper": _PAPER,
    "released": _RELEASED,
    **{f"released/{name}": _tuned(name) for name in _RELEASED_TUNED},
}


PresetName = Literal["default", "labelfree", "camera", "mixed", "bold", "fixed", "paper", "released"] | str
"""A name of `list_presets()`; those of `released` for one data set are `released/eurosat` and so on."""
STREAMS = {"camera": "camera", "mixed": "mixed"}
"""The preset for a kind of stream: few classes for a long time each, or many classes in no order."""


def list_presets() -> list[str]:
    """Names accepted by `preset=`, sorted.

    Examples:
        >>> list_presets()[:4]
        ['bold', 'camera', 'default', 'fixed']
    """
    return sorted(PRESETS)


def preset(name: str, **overrides: Any) -> Preset:
    """The named preset with single fields replaced, whichever of the two dataclasses they belong to.

    `R` given to a preset that counts by rate switches it to the table, where R has a meaning.

    Args:
        name: One of `list_presets()`.
        **overrides: Fields of `Condensation` and `Adaptation` by name, such as `R=0.7` or `lam=2`.

    Raises:
        ConfigError: The preset or a field is unknown, or the fields do not go together.

    Examples:
        >>> preset("default", M=5).adaptation.M
        5
    """
    if name not in PRESETS:
        raise ConfigError(unknown("preset", name, PRESETS))
    base = PRESETS[name]
    ours = {f.name for f in fields(Condensation)}
    theirs = {f.name for f in fields(Adaptation)}
    for key in overrides:
        if key not in ours | theirs:
            raise ConfigError(unknown("option", key, ours | theirs))
    if "R" in overrides and "counts" not in overrides and base.condensation.counts == "rate":
        overrides = {**overrides, "counts": "table", "rate": None}
    condensation = replace(base.condensation, **{k: v for k, v in overrides.items() if k in ours})
    adaptation = replace(base.adaptation, **{k: v for k, v in overrides.items() if k in theirs})
    scales = base.scales and "layers" not in overrides
    return base._replace(condensation=condensation, adaptation=adaptation, scales=scales)
