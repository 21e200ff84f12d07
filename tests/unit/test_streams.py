"""`benchmarks/streams.py`: its streams are what they say, and its batches answer as the plain step does."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import stream_candidates
import stream_kinds
import stream_rules
import streams
from stream_pool import COVERED, Codes, Pool

from lessmore.config import preset
from lessmore.core import debias, stream
from lessmore.core.class_texts import ClassTexts
from lessmore.core.correction import layer_weights
from lessmore.core.step import Sample, plain_operations, settle

CLASSES, PHOTOS, VIEWS, WIDTH, DEPTH = 6, 8, 40, 16, 3


@pytest.fixture(scope="module")
def pool() -> Pool:
    """Photographs around the texts of their classes, under a clean and a displaced condition."""
    dice = torch.Generator().manual_seed(3)
    text = F.normalize(torch.randn(CLASSES, WIDTH, generator=dice), dim=1)
    photos = np.arange(CLASSES * PHOTOS).repeat(VIEWS)
    labels = photos // PHOTOS
    photos, labels = np.append(photos, np.full(COVERED, -1)), np.append(labels, np.full(COVERED, -1))
    base = text[torch.from_numpy(labels.clip(0))] + 0.2 * torch.randn(len(labels), WIDTH, generator=dice)
    moved = base + 0.8 * torch.randn(WIDTH, generator=dice)
    rows = F.normalize(torch.cat([base, moved, torch.randn(COVERED, WIDTH, generator=dice)]), dim=1)
    tokens = torch.stack([rows + 0.1 * torch.randn(rows.shape, generator=dice) for _ in range(DEPTH)], dim=1)
    codes = {name: Codes(rows, tokens) for name in ("default", "fixed")}
    truth = np.concatenate([labels, labels, np.full(COVERED, -1)])
    right = (rows @ text.T).argmax(dim=1).numpy() == truth
    texts = ClassTexts.of(text, 20.0)
    return Pool("world", texts, ("none", "moved"), labels, photos, np.arange(CLASSES), codes, right)


@pytest.fixture(scope="module")
def made(pool: Pool) -> list[stream_kinds.Stream]:
    return stream_kinds.make_streams(pool, 1, pool.conditions)


def test_no_frame_comes_twice_but_for_the_attack(pool: Pool, made: list[stream_kinds.Stream]) -> None:
    for one in made:
        scored = one.rows[one.scored]
        assert len(np.unique(scored)) == len(scored), one.kind
        truth = np.tile(pool.labels, 2)[scored]
        assert truth.min() >= 0
        if one.kind == "one class":
            assert len(np.unique(truth)) == 1
        if one.kind == "sorted":
            assert (np.diff(truth) != 0).sum() == CLASSES - 1
        if "%" in one.kind:
            share = int(one.kind.split(", ")[1].split(" ")[0])
            assert (~one.scored).mean() == pytest.approx(share / 100, abs=0.01)


def test_a_camera_sees_runs_of_one_photograph(pool: Pool, made: list[stream_kinds.Stream]) -> None:
    rows = next(one.rows for one in made if one.kind == "camera") % len(pool.labels)
    photos = pool.photos[rows]
    lengths = np.diff(np.flatnonzero(np.append(np.append(True, photos[1:] != photos[:-1]), True)))
    assert lengths.max() <= 60 and np.median(lengths) >= 5
    assert 2 <= len(np.unique(pool.labels[rows])) <= 5


@pytest.mark.parametrize("name", ["default", "fixed"])
def test_a_batch_of_streams_answers_as_one_stream_does(pool: Pool, made: list, name: str) -> None:
    rule = next(rule for rule in stream_rules.RULES if rule.name == name)
    some = [one._replace(rows=one.rows[:40]) for one in made[::9]]
    found = stream_rules.run(rule, pool, some).answers
    config = preset(name).adaptation
    weights = layer_weights(DEPTH, config.beta, config.layer_weights, torch.empty(0))
    operations = plain_operations(pool.texts, weights, config)
    for one, answers in zip(some, found, strict=True):
        state = stream.empty(CLASSES, config.M, DEPTH, WIDTH, WIDTH, torch.float32, "cpu")
        for t, row in enumerate(one.rows):
            feature = pool.codes[name].features[row]
            sample = Sample(pool.codes[name].tokens[row], feature, pool.texts.logits(feature))
            settled, state = settle(sample, state, config, operations)
            assert int(settled.corrected.argmax()) == int(answers[t])


def _news(rows: Tensor, texts: ClassTexts) -> tuple[list[Tensor], debias.StreamMean, stream_candidates.Novelty]:
    mean = debias.empty_stream_mean(WIDTH, CLASSES, "cpu")
    own = stream_candidates.Novelty(torch.zeros(stream_candidates.RING, WIDTH), *torch.zeros(2))
    answers = []
    for feature in rows:
        answer, mean, own = stream_candidates.observe_new(
            mean, own, texts.logits(feature), feature, texts, stream_candidates.CHOSEN
        )
        answers.append(answer)
    return answers, mean, own


def test_the_first_image_gets_zero_shots_answer(pool: Pool) -> None:
    rows = pool.codes["default"].features[:1]
    (answer,), _, _ = _news(rows, pool.texts)
    logits = pool.texts.logits(rows[0])
    torch.testing.assert_close(answer, logits - logits.mean())


def test_a_repeated_frame_teaches_nothing(pool: Pool, made: list[stream_kinds.Stream]) -> None:
    rows = pool.codes["default"].features[torch.from_numpy(made[0].rows[:30])]
    _, before, _ = _news(rows, pool.texts)
    _, after, _ = _news(torch.cat([rows, rows[-1:].repeat(50, 1)]), pool.texts)
    for name in ("feature_sum", "images", "power", "rise", "span", "answer_counts"):
        torch.testing.assert_close(getattr(after, name), getattr(before, name))


def test_cells_resample_photographs(pool: Pool, made: list[stream_kinds.Stream]) -> None:
    rule = stream_rules.ZERO_SHOT
    found = stream_rules.run(rule, pool, made)
    cells = streams.cells(pool, made, streams.gains(pool, made, found))
    gain, low, high, accuracy = cells["moved"]["i.i.d."]
    rows = np.concatenate([one.rows for one in made if (one.kind, one.condition) == ("i.i.d.", "moved")])
    assert low <= gain == 0 <= high
    assert accuracy == pytest.approx(100 * pool.right[rows].mean(), abs=0.01)
