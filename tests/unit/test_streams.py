"""`benchmarks/streams.py`: its streams are what they say, and its batches answer as the plain step does."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import stream_candidates
import stream_kinds
import stream_rules
import stream_tables
import streams
from stream_pool import COVERED, Codes, Pool

from lessmore.config import preset
from lessmore.core import stream
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


def test_the_rule_on_features_answers_as_the_preset_does(pool: Pool, made: list[stream_kinds.Stream]) -> None:
    """`camera` reads nothing but features, so that its figures can be had without tokens."""
    some = [one._replace(rows=one.rows[:60]) for one in made[::9]]
    config, weights = preset("camera").adaptation, torch.ones(DEPTH) / DEPTH
    assert config.lam == 0
    operations = plain_operations(pool.texts, weights, config)
    found = stream_rules.run(stream_candidates.CAMERA, pool, some).answers
    for one, answers in zip(some, found, strict=True):
        state = stream.empty(CLASSES, config.M, DEPTH, WIDTH, WIDTH, torch.float32, "cpu")
        for t, row in enumerate(one.rows):
            feature = pool.codes["default"].features[row]
            sample = Sample(pool.codes["default"].tokens[row], feature, pool.texts.logits(feature))
            settled, state = settle(sample, state, config, operations)
            assert int(settled.corrected.argmax()) == int(answers[t])


@pytest.mark.parametrize("name", ["new", "few, many", "ring", "fade"])
def test_other_constants_reach_the_rule(pool: Pool, made: list[stream_kinds.Stream], name: str) -> None:
    # Many classes, displaced, one of them often; then near repeats.
    often = [one.rows[:100] for one in made if one.condition == "moved" and one.kind in ("i.i.d.", "one class")]
    rows = np.random.default_rng(0).permutation(np.concatenate(often))
    features = pool.codes["default"].features[torch.from_numpy(rows)].clone()
    features[1::3] = F.normalize(features[0::3][:67] + 0.3 * features[1::3], dim=1)
    remembered = []
    for word in ("halved", "doubled"):
        rule = next(one for one in stream_candidates.VARIANTS if one.name == f"{name} {word}")
        state = rule.start(pool, 1)
        for feature in features[:, None]:
            sample = Sample(feature[:, None], feature, pool.texts.logits(feature))
            scores, state, _ = rule.step(state, sample, pool)
        remembered.append([*state, scores])
    assert any(a.shape != b.shape or not torch.equal(a, b) for a, b in zip(*remembered, strict=True))


def test_cells_resample_photographs(pool: Pool, made: list[stream_kinds.Stream]) -> None:
    rule = stream_rules.ZERO_SHOT
    found = stream_rules.run(rule, pool, made)
    cells = streams.cells(pool, made, streams.gains(pool, made, found))
    gain, low, high, accuracy = cells["moved"]["i.i.d."]
    rows = np.concatenate([one.rows for one in made if (one.kind, one.condition) == ("i.i.d.", "moved")])
    assert low <= gain == 0 <= high
    assert accuracy == pytest.approx(100 * pool.right[rows].mean(), abs=0.01)


def test_the_pages_hold_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    root = Path(__file__).resolve().parents[2]
    results = sorted((root / "benchmarks/results/streams").glob("*.json"))
    pages = [(root / "docs" / name).read_text(encoding="utf-8") for name in ("streams-evidence.md", "streams.md")]
    stream_tables.show(results)
    assert capsys.readouterr().out.strip() in pages[0]
    stream_tables.show(results, ["default", "camera", "mixed"])
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| camera |")]
    assert rows and all(row in pages[1] for row in rows if row.count("|") > 3 and " / " in row and "–" not in row[:14])
