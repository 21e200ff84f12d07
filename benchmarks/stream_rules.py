"""What `streams.py` compares, each over S streams at once: the product's presets and methods, and simple centres.

Presets go through `lessmore.core.step.settle` with the operations of the engine for many streams; methods on final
features through their own `step`, mapped over streams.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from labelfree_rules import _balanced, _mean
from stream_kinds import Stream
from stream_pool import Pool
from torch import Tensor
from torch.utils import _pytree as tree

from lessmore.config import Condensation, Preset, preset
from lessmore.core import stream as streams_state
from lessmore.core.correction import layer_weights
from lessmore.core.step import Operations, Sample, settle
from lessmore.engines.capture import capture
from lessmore.engines.multi import operations_of
from lessmore.methods import Setup, make_method
from lessmore.methods.feature_stream import FeatureStream
from lessmore.methods.tda import TDA, Cache

STEPS_AT_ONCE = 700
"""Streams in one batch."""
State = Any


class Answered(NamedTuple):
    """What a rule makes of an image of each of S streams."""

    scores: Tensor
    """`[S, C]`."""
    state: State
    watched: Tensor
    """One number of each stream, `[S]`."""


class Rule(NamedTuple):
    """A way to answer streams."""

    name: str
    code: str
    """The condensation whose encodings it sees."""
    start: Callable[[Pool, int], State]
    """The state of S streams."""
    step: Callable[[State, Sample, Pool], Answered]
    """May change the state in place."""
    light: bool = False
    """Whether it is too slow for garbage and for more than a few draws."""
    recorded: bool = True
    """Whether a CUDA graph can hold its step."""


def unguided(name: str) -> Preset:
    """A preset whose encoder does not look at anchors, so that encodings can be shared by streams."""
    own = preset(name)
    return own._replace(condensation=replace(own.condensation, rows="class", anchor_kv=False))


def condensations() -> dict[str, Condensation]:
    """What images are encoded under."""
    return {name: unguided(name).condensation for name in ("default", "fixed", "paper", "released")}


def _setup(pool: Pool, own: Preset) -> Setup:
    tower: Any = SimpleNamespace(
        shape=SimpleNamespace(embed=pool.texts.text.shape[1]), positions=pool.texts.text.new_empty(0)
    )
    return Setup(tower, pool.texts.text, pool.texts.scale, own)


def _index_copy(own: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    here = torch.arange(len(own), device=own.device) == index
    return own.copy_(torch.where(here.view(-1, *[1] * (own.ndim - 1)), source, own))


def _addmm(own: Tensor, left: Tensor, right: Tensor) -> Tensor:
    return own.add_(left @ right)


def _mapped(one: Callable[[State, Tensor, Tensor], tuple[Tensor, State]], state: State, sample: Sample) -> Any:
    """A step of all streams. Two functions of torch that it would carry out stream by stream get forms that it maps."""
    with patch.object(Tensor, "index_copy_", _index_copy), patch.object(Tensor, "addmm_", _addmm):
        return torch.vmap(one)(state, sample.feature, sample.logits)


def by_preset(name: str, light: bool = False) -> Rule:
    """A preset of the product."""
    own = unguided(name)
    config = own.adaptation
    code = {"mixed": "default"}.get(name, name)

    def start(pool: Pool, S: int) -> State:
        L, D = pool.codes[code].tokens.shape[1:]
        (C, E), text = pool.texts.text.shape, pool.texts.text
        empty = streams_state.empty(C, config.M, L, D, E, torch.float32, text.device)
        return empty.map(lambda t: t.repeat(S, *[1] * t.ndim))

    @cache
    def operations(pool: Pool) -> Operations:
        L = pool.codes[code].tokens.shape[1]
        weights = layer_weights(L, config.beta, config.layer_weights, pool.texts.text)
        return operations_of(_setup(pool, own), weights)

    def step(state: State, sample: Sample, pool: Pool) -> Answered:
        settled, state = settle(sample, state, config, operations(pool))
        return Answered(settled.corrected, state, state.stream_mean.domain_changes)

    return Rule(name, code, start, step, light)


def by_method(name: str, light: bool = False, recorded: bool = True, **options: Any) -> Rule:
    """A method of the product that works on final features."""

    @cache
    def method(pool: Pool) -> FeatureStream[Any]:
        made: Any = make_method(name, replace(_setup(pool, preset("default")), options=options))
        return made

    def start(pool: Pool, S: int) -> State:
        return tree.tree_map(lambda t: t.expand(S, *t.shape).clone(), method(pool).empty())

    def step(state: State, sample: Sample, pool: Pool) -> Answered:
        own = method(pool)

        def one(state: State, feature: Tensor, logits: Tensor) -> tuple[Tensor, State]:
            scores, after, _ = own.step(state, feature, logits)
            return scores, after

        scores, after = _mapped(one, state, sample)
        return Answered(scores, after, scores[:, 0])

    return Rule(name, "default", start, step, light, recorded)


def by_caches() -> Rule:
    """TDA of the product, whose caches are handed to it."""

    def method(pool: Pool) -> TDA:
        made: Any = make_method("tda", _setup(pool, preset("default")))
        return made

    def start(pool: Pool, S: int) -> State:
        own = method(pool)
        return tree.tree_map(
            lambda t: t.to(pool.texts.text.device).expand(S, *t.shape).clone(), (own.positive, own.negative)
        )

    def step(state: State, sample: Sample, pool: Pool) -> Answered:
        own = method(pool)

        def one(state: State, feature: Tensor, logits: Tensor) -> tuple[Tensor, State]:
            own.positive, own.negative = (Cache(*cache) for cache in state)
            own._store(feature, logits)
            return own._corrected(feature, logits), (own.positive, own.negative)

        scores, after = _mapped(one, state, sample)
        return Answered(scores, after, scores[:, 0])

    return Rule("tda", "default", start, step)


def by_centre(name: str, one: Callable[..., tuple[Tensor, State]], empty: Callable[[Tensor], State]) -> Rule:
    """A simple centre of `labelfree_rules.py`."""

    def start(pool: Pool, S: int) -> State:
        return tree.tree_map(lambda t: t.expand(S, *t.shape).clone(), empty(pool.texts.text))

    def step(state: State, sample: Sample, pool: Pool) -> Answered:
        each = torch.vmap(lambda state, f, z: one(state, f, z, pool.texts))
        scores, after = each(state, sample.feature, sample.logits)
        return Answered(scores, after, scores[:, 0])

    return Rule(name, "default", start, step)


def _no_adaptation(state: State, sample: Sample, pool: Pool) -> Answered:
    return Answered(sample.logits, state, sample.logits[:, 0])


PRESETS = (
    *(by_preset(name) for name in ("default", "fixed")),
    *(by_preset(name, light=True) for name in ("mixed", "paper", "released")),
)
CENTRES = (
    by_centre("running mean", _mean, lambda text: (torch.zeros_like(text[0]), text.new_zeros(()))),
    by_centre(
        "class-balanced centre",
        _balanced,
        lambda text: (torch.zeros_like(text), text.new_zeros(len(text)), torch.zeros_like(text[0])),
    ),
)
METHODS = (
    by_method("neo"),
    by_method("onzeta"),
    by_method("lsa", capacity=1024),
    by_method("dota", light=True, recorded=False, covariance="shared"),
    by_method("bca", light=True),
    by_caches(),
)
ZERO_SHOT = Rule("zero-shot, R = 0.9", "default", lambda pool, S: (), _no_adaptation)
RULES = (ZERO_SHOT, *PRESETS, *CENTRES, *METHODS)


class Run(NamedTuple):
    """What a rule made of B streams, those shorter than T padded by their last frame."""

    answers: Tensor
    """Classes, `[B, T]` int16, on the CPU."""
    watched: Tensor
    """`[B, T]` float16, on the CPU."""


@torch.no_grad()
def run(rule: Rule, pool: Pool, made: Sequence[Stream], at_once: int = STEPS_AT_ONCE) -> Run:
    """Answer all streams, in batches of streams of similar length."""
    order = sorted(range(len(made)), key=lambda i: -len(made[i].rows))
    longest = len(made[order[0]].rows)
    answers = torch.full((len(made), longest), -1, dtype=torch.int16)
    watched = torch.zeros(len(made), longest, dtype=torch.float16)
    for first in range(0, len(order), at_once):
        part = order[first : first + at_once]
        T = len(made[part[0]].rows)
        rows = torch.stack(
            [
                torch.from_numpy(made[i].rows[[*range(len(made[i].rows)), *[-1] * (T - len(made[i].rows))]])
                for i in part
            ],
            dim=1,
        )
        found = _batch(rule, pool, rows.to(pool.texts.text.device))
        answers[part, :T], watched[part, :T] = (x.T.cpu() for x in found)
    return Run(answers, watched)


def _batch(rule: Rule, pool: Pool, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Answers and what was watched `[T, S]` for the rows `[T, S]`."""
    codes, state = pool.codes[rule.code], rule.start(pool, rows.shape[1])
    leaves = tree.tree_leaves(state)
    time = torch.zeros(1, dtype=torch.int64, device=rows.device)
    answers, watched = (
        torch.zeros(rows.shape, dtype=torch.int16, device=rows.device),
        torch.zeros(rows.shape, dtype=torch.float16, device=rows.device),
    )

    def body() -> None:
        at = rows.index_select(0, time)[0]
        feature = codes.features[at]
        sample = Sample(codes.tokens[at].float(), feature, pool.texts.logits(feature))
        scores, after, seen = rule.step(state, sample, pool)
        for ours, new in zip(leaves, tree.tree_leaves(after), strict=True):
            if ours is not new:
                ours.copy_(new)
        answers.index_copy_(0, time, scores.argmax(dim=1).to(torch.int16)[None])
        watched.index_copy_(0, time, seen.to(torch.float16)[None])
        time.add_(1)

    if rows.is_cuda and rule.recorded:
        graph = capture(body, [*leaves, time])
        for _ in rows:
            graph.replay()
    else:
        for _ in rows:
            body()
    return answers, watched
