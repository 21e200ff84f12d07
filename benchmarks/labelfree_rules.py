"""What `labelfree.py` compares: the library's rule, parts of it left out, older ideas, and ideas that were not kept.

Every rule is a pure step, written for one stream and mapped over many; only those with a reservoir take all streams at
once and change it in place, since copying it for every image would take most of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from labelfree_streams import Indices, Shelf, Stream
from torch import Tensor

from lessmore.config import PRESETS, Adaptation, preset
from lessmore.core import debias, token_mean
from lessmore.core.class_texts import ClassTexts
from lessmore.core.debias import StreamMean
from lessmore.methods import Setup
from lessmore.methods import tda as library_tda
from lessmore.methods.tda import TUNED, Cache, TDAOptions


class Stage(NamedTuple):
    """What all images of a data set share."""

    texts: ClassTexts
    name: str

    @property
    def text(self) -> Tensor:
        """Class embeddings, [C, E]."""
        return self.texts.text

    @property
    def scale(self) -> float:
        """Scale of the logits."""
        return self.texts.scale


State = Any  # a tuple of tensors
Step = Callable[[State, Tensor, Tensor, Stage], tuple[Tensor, State]]
"""State, feature [E], zero-shot logits [C], stage → logits [C], state."""


class Rule(NamedTuple):
    """A way to answer a stream."""

    name: str
    start: Callable[[Stage], State]
    step: Step
    constants: Mapping[str, float] = {}
    """Of the library's rule, where they are to be others."""
    together: bool = False
    """Whether a step takes all streams at once, [B, …], and may change its state in place."""


class Run(NamedTuple):
    """What became of B streams, those shorter than T padded by their last image."""

    answers: Indices
    """Classes, [B, T]."""
    watched: Tensor
    """What was watched after every image, [T, B, …]; empty if nothing."""


@torch.no_grad()
def run(
    rule: Rule, shelf: Shelf, streams: Sequence[Stream], watch: Callable[[State, ClassTexts], Tensor] | None = None
) -> Run:
    """Answer all streams at once, image after image."""
    stage = Stage(ClassTexts.of(shelf.text, shelf.scale), shelf.name)
    rows, logits = torch.tensor(padded([stream.rows for stream in streams])), shelf.logits
    state = torch.utils._pytree.tree_map(lambda x: x.expand(len(rows), *x.shape).clone(), rule.start(stage))
    own: Any = partial(rule.step, stage=stage)
    step = own if rule.together else torch.vmap(own)
    answers, watched = [], []
    with patch.dict(vars(debias), rule.constants):
        for at in rows.T:
            out, state = step(state, shelf.features[at], logits[at])
            answers.append(out.argmax(dim=1))
            watched.append(watch(state, stage.texts).clone() if watch else torch.empty(0))
    return Run(torch.stack(answers, dim=1).numpy(), torch.stack(watched))


def padded(parts: Sequence[Indices]) -> Indices:
    """[B, T], the last value of each repeated."""
    longest = max(map(len, parts))
    return np.stack([np.pad(part, (0, longest - len(part)), mode="edge") for part in parts])


CAREFUL, BOLD = debias.RULES["careful"], debias.RULES["bold"]


def _stream_mean(stage: Stage) -> State:
    C, E = stage.text.shape
    return debias.empty_stream_mean(E, C, "cpu")


def variant(name: str, rule: debias.Rule = CAREFUL, lengths: bool = True, **constants: float) -> Rule:
    """The library's rule with another prior or other constants, or without the lengths of the texts."""

    def step(state: State, f: Tensor, z: Tensor, stage: Stage) -> tuple[Tensor, State]:
        texts = stage.texts if lengths else stage.texts._replace(bias=torch.zeros_like(stage.texts.bias))
        return debias.observe(state, z, f, texts, rule)

    return Rule(name, _stream_mean, step, constants)


def strength(state: StreamMean, texts: ClassTexts) -> Tensor:
    """w of each stream, [B]."""
    return state.strength


def changes(state: StreamMean, texts: ClassTexts) -> Tensor:
    """Changes of domain that were noticed in each stream, [B]."""
    return state.domain_changes


def lopsided(state: StreamMean, texts: ClassTexts) -> Tensor:
    """How far what is left without the mean is high rather than low, [B]."""
    return state.rise / state.span.clamp_min(1e-9)


def size(state: StreamMean, texts: ClassTexts) -> Tensor:
    """Root mean square of the mean logits over that of the logits, [B]."""
    mean = debias.centred(texts.logits(state.feature_sum / state.images[:, None]))
    return (mean.square().mean(dim=1) / (state.power / state.images)).sqrt()


def centred(f: Tensor, middle: Tensor, text: Tensor, text_middle: Tensor, w: Tensor) -> Tensor:
    """(f − w·middle) · (t_c − w·text_middle) / |t_c − w·text_middle|, [C]; no text is held per stream."""
    moved = f - w * middle
    lengths = 1 - 2 * w * (text_middle @ text.T) + (w * text_middle).square().sum()
    return (moved @ text.T - w * (moved @ text_middle)) / lengths.clamp_min(1e-12).sqrt()


def _mean(state: State, f: Tensor, z: Tensor, stage: Stage) -> tuple[Tensor, State]:
    total, n = state[0] + f, state[1] + 1
    return centred(f, total / n, stage.text, stage.text.mean(dim=0), n / (n + 20)), (total, n)


def _balanced(state: State, f: Tensor, z: Tensor, stage: Stage) -> tuple[Tensor, State]:
    """Mean over the classes answered so far of each one's running mean of 50 images; weight: their share."""
    means, counts, total = state
    k = z.argmax(keepdim=True)
    counts = counts + (torch.arange(len(z), device=z.device) == k)
    delta = (f - means.index_select(0, k)) / counts.gather(0, k).clamp_max(50)
    means, total = means.index_add(0, k, delta), total + delta[0]
    seen = (counts > 0).float()
    middles = total / seen.sum(), seen @ stage.text / seen.sum()
    return centred(f, middles[0], stage.text, middles[1], seen.mean()), (means, counts, total)


def corrected(name: str, choose: Callable[[Stage], Adaptation]) -> Rule:
    """A preset's reservoir and correction on final features instead of the tokens of every layer."""

    def step(state: State, f: Tensor, z: Tensor, stage: Stage) -> tuple[Tensor, State]:
        config = choose(stage)
        return z + config.lam * _votes(state, f, z, None, config), state

    return Rule(name, lambda stage: _reservoir(stage, choose(stage).M), step, together=True)


def _released(stage: Stage) -> Adaptation:
    """With the settings of the data set, where there are some; these were chosen on test labels."""
    own = f"released/{stage.name}"
    return preset(own if own in PRESETS else "released").adaptation


def _votes(state: State, f: Tensor, z: Tensor, m: Tensor | None, config: Adaptation) -> Tensor:
    """Let features [B, E] with logits z [B, C] into their reservoirs; what the entries of each class say, [B, C].

    m: taken off feature and entries before their cosine, [B, E].
    """
    keys, heights = state
    stream, k = torch.arange(len(f)), z.argmax(dim=1)
    height = torch.special.entr(z.softmax(dim=1)).sum(dim=1)
    everyone, talls = (
        torch.cat([keys[stream, k], f[:, None]], dim=1),
        torch.cat([heights[stream, k], height[:, None]], dim=1),
    )
    crowding = ((everyone @ everyone.mT).sum(dim=2) - 1) / config.M
    slot = torch.where(talls.isfinite(), talls + crowding, torch.inf).argmax(dim=1)  # a free slot goes first
    at = stream[slot < config.M]
    keys[at, k[at], slot[at]], heights[at, k[at], slot[at]] = f[at], height[at]
    filled = heights.isfinite()
    cosine = _products(keys, f)
    if m is not None:
        ours, square = ((other * m).sum(dim=1)[:, None, None] for other in (f, m))
        cosine = token_mean.debiased_cosine(cosine, ours, _products(keys, m), square)
    votes = torch.where(filled, torch.exp(config.sharpness * (cosine - 1)), 0)
    return votes.sum(dim=2) / (1 if config.over == "sum" else filled.sum(dim=2).clamp_min(1))


def _products(keys: Tensor, f: Tensor) -> Tensor:
    """Of entries [B, C, M, E] and features [B, E], [B, C, M]."""
    return (keys.flatten(1, 2) @ f[:, :, None]).view(keys.shape[:3])


def _reservoir(stage: Stage, M: int) -> State:
    C, E = stage.text.shape
    return torch.zeros(C, M, E), torch.full((C, M), torch.inf)


def _observed(state: State, f: Tensor, z: Tensor, stage: Stage, rule: debias.Rule = CAREFUL) -> tuple[Tensor, State]:
    """The library's rule on all streams."""
    each = torch.vmap(lambda own, f, z: debias.observe(own, z, f, stage.texts, rule))
    observed: tuple[Tensor, State] = each(state, f, z)
    return observed


Weight = Callable[[StreamMean], Tensor]
"""Of each class's votes, given all that was seen, [B, C]."""


EVER = torch.tensor([1e9])
"""As if there had been any number."""


def whole(name: str, base: str = "default", weight: Weight = debias.trust, raw: bool = False) -> Rule:
    """The rule, then reservoir and correction by its logits on final features, as the preset `base` has it.

    weight: of each class's votes, next to λ. raw: cosines as the paper has them and as sharp as in `fixed`.
    """
    config = preset(base).adaptation
    sharp = replace(config, sharpness=preset("fixed").adaptation.sharpness) if raw else config

    def start(stage: Stage) -> State:
        return _stream_mean(stage), _reservoir(stage, config.M), _feature(stage), torch.zeros(())

    def step(state: State, f: Tensor, z: Tensor, stage: Stage) -> tuple[Tensor, State]:
        own, reservoir, m, n = state
        logits, own = _observed(own, f, z, stage, debias.RULES[config.debias])
        m = token_mean.updated_mean(m, f, n[:, None])
        votes = _votes(reservoir, f, logits, None if raw else m, sharp)
        return logits + config.lam * weight(own) * votes, (own, reservoir, m, n + 1)

    return Rule(name, start, step, together=True)


def _tda_method(stage: Stage, tuned: bool) -> library_tda.TDA:
    """The library's method, whose caches are given to it; it never sees a tower."""
    tower: Any = SimpleNamespace(shape=SimpleNamespace(embed=stage.text.shape[1]), positions=torch.empty(0))
    known = tuned and stage.name in TUNED
    return library_tda.TDA(
        Setup(tower, stage.text, stage.scale, preset("fixed")), TDAOptions(tuned_on=stage.name if known else "")
    )


def tda(name: str, tuned: bool = False) -> Rule:
    """TDA on features; tuned: with the published settings of the data set, where there are some."""

    def start(stage: Stage) -> State:
        method = _tda_method(stage, tuned)
        return method.positive, method.negative

    def step(state: State, f: Tensor, z: Tensor, stage: Stage) -> tuple[Tensor, State]:
        method = _tda_method(stage, tuned)
        method.positive, method.negative = (Cache(*cache) for cache in state)
        method._store(f, z)
        return method._corrected(f, z), (method.positive, method.negative)

    return Rule(name, start, step)


def _by_images(state: State, f: Tensor, z: Tensor, stage: Stage) -> tuple[Tensor, State]:
    """James–Stein as the books have it: as many independent draws as images."""
    still = z - z.mean()
    total, n, power = state[0] + still, state[1] + 1, state[2] + still.square().mean()
    mean = total / n
    w = (1 - (power / n) / mean.square().mean().clamp_min(1e-12) / n).clamp_min(0)
    bias = stage.texts.bias
    lengths = (1 - 2 * w * bias + w.square() * bias.mean()).clamp_min(1e-12).sqrt()
    return (still - w * mean) / lengths, (total, n, power)


def _second(state: State, f: Tensor, z: Tensor, stage: Stage) -> tuple[Tensor, State]:
    """The rule, plus the cosine to each class's mean feature without their common centre."""
    own, means, counts = state
    logits, own = debias.observe(own, z, f, stage.texts, CAREFUL)
    k = logits.argmax(keepdim=True)
    counts = counts + (torch.arange(len(z), device=z.device) == k)
    means = means.index_add(0, k, (f - means.index_select(0, k)) / counts.gather(0, k))
    trust = counts / (counts + 3)
    middle = trust @ means / trust.sum()
    near = F.normalize(means - middle, dim=-1) @ F.normalize(f - middle, dim=-1)
    return logits + own.strength * 0.3 * stage.scale * trust * near, (own, means, counts)


def _means(stage: Stage) -> tuple[Tensor, Tensor]:
    return torch.zeros_like(stage.text), torch.zeros(len(stage.text))


def _feature(stage: Stage) -> Tensor:
    return torch.zeros(stage.text.shape[1])


ZERO_SHOT = Rule("zero-shot, R = 0.9", lambda stage: (), lambda state, f, z, stage: (z, state))
MEAN = Rule("running mean", lambda stage: (_feature(stage), torch.zeros(())), _mean)
OURS = variant("the rule")
BOLDER = variant("the rule, bold", BOLD)
FIXED = corrected("fixed, on features", lambda stage: preset("fixed").adaptation)
RELEASED = corrected("released, tuned on test labels, on features", _released)
DEFAULT = whole("default, on features")
TDA = tda("TDA, defaults")
TUNED_TDA = tda("TDA, tuned on test labels", tuned=True)
BASELINES = (
    ZERO_SHOT,
    FIXED,
    RELEASED,
    DEFAULT,
    whole("bold, on features", "bold"),
    TDA,
    TUNED_TDA,
    Rule("class-balanced centre", lambda stage: (*_means(stage), _feature(stage)), _balanced),
    MEAN,
    BOLDER,
)
UNWATCHED = variant("no detector", ALARM=float("inf"))
ENDLESS = variant("no detector, no limit to memory", ALARM=float("inf"), MEMORY=float("inf"))
ABLATIONS = (
    variant("frequent classes are given nothing back", LIFT=0.0),
    variant("no class term", rule=CAREFUL._replace(prior_weight=0.0)),
    variant("class term twice as strong", rule=CAREFUL._replace(prior_weight=2.0)),
    variant("always as for many classes", FEW=-1e9, MANY=-1e8),
    variant("always as for few classes", FEW=1e8, MANY=1e9),
    UNWATCHED,
    ENDLESS,
    variant("memory of 50 turns", MEMORY=50.0),
    variant("logits less the centre alone, no lengths", lengths=False),
)
TRIED = (
    Rule("James–Stein by images", lambda stage: (torch.zeros(len(stage.text)), *torch.zeros(2)), _by_images),
    Rule("with class means as second classifier", lambda stage: (_stream_mean(stage), *_means(stage)), _second),
    whole("default, λ halved", weight=lambda own: 0.5 * debias.trust(own)),
    whole("default, λ doubled", weight=lambda own: 2 * debias.trust(own)),
    whole("default, λ times w", weight=lambda own: own.strength[:, None] * debias.trust(own)),
    whole("default, trust by turns alone", weight=lambda own: debias.trust(own._replace(standout_counts=EVER))),
    whole("default, trust by classes alone", weight=lambda own: debias.trust(own._replace(effective_samples=EVER))),
    whole("default, all entries trusted", weight=lambda own: torch.ones_like(own.standout_counts)),
    whole("default, cosines of the paper", raw=True),
    whole("default, both as in the paper", weight=lambda own: torch.ones_like(own.standout_counts), raw=True),
)
