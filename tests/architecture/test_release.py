"""What a release is made of: one version everywhere, a dated changelog, and the targets that build and try it."""

from __future__ import annotations

import os
import re
import subprocess

import pytest
import yaml

from tests.architecture.test_shape import ROOT

VERSION = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]  # type: ignore[index]
KINDS = ["Migration from 0.1", "Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]


def newest() -> str:
    """The changelog's newest version, with its heading."""
    return re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1]


def made(*words: str) -> str:
    """What make would do."""
    free = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "TORCH_INDEX"))}
    asked = ["make", "--dry-run", "--no-print-directory", "VENV=absent-venv", *words]
    return subprocess.run(asked, cwd=ROOT, env=free, capture_output=True, text=True, check=True).stdout


def test_version_and_date_are_the_same_everywhere() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    heading = re.match(r"(\S+) (?:\((unreleased)\)|- (\d{4}-\d\d-\d\d))\n", newest())
    assert heading is not None, "a version and its date, or (unreleased)"
    assert citation["version"] == heading[1] == VERSION
    assert str(citation.get("date-released", "unreleased")) == (heading[2] or heading[3])


def test_the_changelog_is_in_the_form_it_names() -> None:
    kinds = re.findall(r"^### (.+)$", newest(), re.MULTILINE)
    assert kinds == [kind for kind in KINDS if kind in kinds] and {"Migration from 0.1", "Added"} <= set(kinds)


@pytest.mark.parametrize("target", ["demo", "test", "docs"])
def test_torch_comes_from_an_index_where_one_is_named(target: str) -> None:
    lines = made(target, "TORCH_INDEX=https://wheels.example/cpu").splitlines()
    torch = next(
        i for i, line in enumerate(lines) if line.endswith("--index-url https://wheels.example/cpu torch torchvision")
    )
    others = [i for i, line in enumerate(lines) if "constraints.txt" in line and " install " in line]
    assert others and torch < min(others), "torch first, so that nothing else brings the default build"
    assert "--index-url" not in made(target)


def test_the_wheel_is_tried_without_extras_in_ci() -> None:
    assert "make dist" in (ROOT / ".ci" / "run").read_text().splitlines()
    steps = made("dist")
    order = ["-m build", "tools/bare_env.py", "--no-index dist/*.whl", "-m lessmore demo", "tools/doctests.py"]
    places = [steps.index(step) for step in order]
    assert places == sorted(places)
