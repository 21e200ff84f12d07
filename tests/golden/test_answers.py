"""Results change only together with the version in `core.algorithm` that caches, runs and states are kept by."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from lessmore.core.algorithm import algorithm
from tests.golden import answers

RECORDED: dict[str, Any] = json.loads(answers.FILE.read_text(encoding="utf-8"))
NOISE, CLOSE = 2e-3, 2e-2
"""What rounding may change, and how near two classes are that rounding may swap."""
AGAIN = "raise its version in core/algorithm.py and record again: python -m tests.golden.answers"


def compare(kind: str, name: str, found: list[list[float]]) -> None:
    ours, theirs = torch.tensor(found), torch.tensor(RECORDED[kind][name])
    assert ours.shape == theirs.shape, AGAIN
    assert (ours - theirs).abs().max() <= NOISE, f"{kind} {name!r} has changed; if that is meant, {AGAIN}"
    if kind == "answer":
        top = theirs.topk(2, dim=1).values
        sure = top[:, 0] - top[:, 1] > CLOSE
        assert torch.equal(ours.argmax(dim=1)[sure], theirs.argmax(dim=1)[sure]), AGAIN


def test_the_recorded_answers_are_of_these_versions() -> None:
    assert RECORDED["algorithm"] == algorithm(), "record the answers again: python -m tests.golden.answers"
    assert RECORDED["answer"].keys() == answers.ANSWERS.keys()
    assert RECORDED["encoding"].keys() == answers.ENCODINGS.keys()


@pytest.mark.parametrize("name", RECORDED["class_embedding"])
def test_class_embeddings_change_only_with_their_version(name: str) -> None:
    compare("class_embedding", name, answers.class_embedding(name))


@pytest.mark.parametrize("name", answers.ENCODINGS)
def test_encodings_change_only_with_their_version(name: str) -> None:
    compare("encoding", name, answers.encoding(name))


@pytest.mark.parametrize("name", answers.ANSWERS)
def test_answers_change_only_with_their_version(name: str) -> None:
    compare("answer", name, answers.answers(name))


@pytest.mark.parametrize("name", answers.CONFIDENCES)
def test_confidence_changes_only_with_its_version(name: str) -> None:
    compare("confidence", name, answers.confidence(name))


@pytest.mark.parametrize(
    ("rule", "value"),
    [("debias.LIFT", 2.0), ("debias.MEMORY", 5.0), ("debias.HALF", 2.0), ("token_mean.SHARE", 0.5)],
)
def test_a_changed_rule_is_noticed(rule: str, value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"lessmore.core.{rule}", value)
    name = "tca bold, long stream"
    found = answers.answers(name)
    with pytest.raises(AssertionError, match="raise its version"):
        compare("answer", name, found)
