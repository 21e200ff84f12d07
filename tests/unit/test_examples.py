"""The examples in docstrings, run as they stand on the embedded model, offline."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import lessmore
from tools.doctests import modules_with_examples, try_examples


@pytest.mark.parametrize("module", modules_with_examples())
def test_examples_print_what_they_say(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # an example may write files
    result = try_examples(module)
    assert result.attempted > 0
    assert result.failed == 0, "see the captured output"


@pytest.mark.parametrize("name", lessmore.__all__)
def test_every_public_name_has_an_example(name: str) -> None:
    assert ">>> " in (inspect.getdoc(getattr(lessmore, name)) or "")
