"""Frames of one object on the command line: one answer per object, cut off and continued."""

from __future__ import annotations

from pathlib import Path

import pytest

import lessmore
from lessmore.cli.classify import track_rule
from lessmore.errors import ConfigError
from tests.unit.test_cli import BASE, MODEL, NAMES, call, one_line, photos, read_csv  # noqa: F401  (a fixture)

RULE = r"(.)\.[pP][nN][gG]$"


def test_rules() -> None:
    assert track_rule(None)("a/b.png") is None
    assert track_rule("folder")("a/b/c.png") == "a/b"
    assert track_rule(r"(cup\d+)_\d")("x/cup3_1.png") == "cup3"
    assert track_rule(r"cup\d+")("x/cup3_1.png") == "cup3"
    assert track_rule(r"cup\d+")("x/fork.png") is None
    with pytest.raises(ConfigError, match=r"no regular expression.*correct it, or use 'folder'"):
        track_rule("(")


def test_a_bad_rule_is_one_line(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    assert call("classify", photos, *BASE, "--track", "(") == 1
    assert "no regular expression" in one_line(capsys)


def test_rows_are_those_of_tracks_also_after_a_break(photos: Path, tmp_path: Path) -> None:  # noqa: F811
    whole, output, state = tmp_path / "whole.csv", tmp_path / "out.csv", tmp_path / "s.safetensors"
    assert call("classify", photos, *BASE, "--track", RULE, "--quiet", "--output", whole) == 0
    adapter, follow = lessmore.adapt(MODEL, NAMES), track_rule(RULE)
    rows = read_csv(whole)
    assert max(int(row["frames"]) for row in rows) > 1
    for row in rows:
        expected = adapter(row["path"], track=follow(row["path"]))
        assert (row["label"], int(row["frames"])) == (expected.label, expected.frames)
        assert row["track"] == follow(row["path"])
        assert float(row["score"]) == pytest.approx(expected.confidence, abs=1e-4)
    first, rest = rows[:9], rows[9:]
    options = [*BASE, "--track", RULE, "--quiet", "--state", state]
    assert call("classify", *(row["path"] for row in first), *options, "--output", tmp_path / "a.csv") == 0
    assert call("classify", *(row["path"] for row in rest), *options, "--output", output) == 0
    for mine, theirs in zip(read_csv(output), rest, strict=True):
        assert float(mine.pop("score")) == pytest.approx(float(theirs.pop("score")), abs=1e-4)
        assert float(mine.pop("entropy")) == pytest.approx(float(theirs.pop("entropy")), abs=1e-4)
        assert mine == theirs
