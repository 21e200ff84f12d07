"""docs/add-your-method.md, done as it says: its two files, built and installed by pip, used by other processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.small_runs import draw_folder, only_run

pytest.importorskip("setuptools", reason="the page's package is built with setuptools")
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "add-your-method.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"```(?:python|toml)\n# ([\w.]+)\n(.*?)```", PAGE, re.DOTALL))
WEIGHT = 4.0


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pip has installed the package of the page."""
    source, site = tmp_path_factory.mktemp("package"), tmp_path_factory.mktemp("site")
    for name, text in FILES.items():
        (source / name).write_text(text, encoding="utf-8")
    offline = ["--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--quiet"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *offline, "--target", str(site), str(source)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (site / "lessmore_prior.py").is_file()
    return site


def python(site: Path, *words: str) -> str:
    """What another process prints that finds the package."""
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH"), str(ROOT / "src")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_page_holds_two_files_and_the_first_is_short() -> None:
    assert set(FILES) == {"lessmore_prior.py", "pyproject.toml"}
    lines = [line for line in FILES["lessmore_prior.py"].splitlines() if line.strip()]
    assert len(lines) <= 40


def test_files_and_places_it_names_exist() -> None:
    for name in re.findall(r"`((?:src|tests)/[\w/.]+\.py)`", PAGE):
        assert (ROOT / name).is_file(), name
    for name in re.findall(r"\]\((\w[\w.-]+\.md)", PAGE):
        assert (ROOT / "docs" / name).is_file(), name


def test_it_is_listed_and_costed(site: Path) -> None:
    assert "\nprior\t" in python(site, "-m", "lessmore", "ls", "methods")
    costs = json.loads(python(site, "-m", "lessmore", "flops", "tiny", "--method", "prior", "--json"))
    assert costs["matmul"]["gmacs"] == pytest.approx(costs["plain_gmacs"], rel=1e-6)
    assert "prior" in python(
        site, "-c", "from lessmore.paper.tables import find_table; print([r.name for r in find_table('field').rows])"
    )


STREAM = """
import sys
from pathlib import Path
import numpy as np
import lessmore

folder, weight = Path(sys.argv[1]), float(sys.argv[2])
names = sorted(part.name for part in folder.iterdir())
one, other = (lessmore.adapt("tiny", names, method="prior", weight=weight, cache=False) for _ in range(2))
likely = np.full(len(names), weight / len(names))
for number, image in enumerate(sorted(folder.rglob("*.png"))):
    answer = one(image)
    plain = answer.zero_shot_scores.numpy()
    expected = plain / likely / (plain / likely).sum()
    assert np.allclose(answer.raw_scores.numpy(), expected, atol=1e-5), number
    likely += plain
    if number == 5:
        one.save(folder.parent / "state.safetensors")
        other.restore(folder.parent / "state.safetensors")
    elif number > 5:
        assert (other(image).raw_scores == answer.raw_scores).all(), number
print(number + 1, "images")
"""


def test_a_stream_says_what_the_formula_says_and_goes_on_from_a_file(site: Path, tmp_path: Path) -> None:
    folder = draw_folder(tmp_path / "drawn", 12)
    assert python(site, "-c", STREAM, str(folder), str(WEIGHT)) == "12 images\n"


def test_a_run_compares_it_with_zero_shot(site: Path, tmp_path: Path) -> None:
    folder = draw_folder(tmp_path / "drawn", 12)
    python(
        *(site, "-m", "lessmore", "run", "--model", "tiny", "--method", "prior", "--options.weight", str(WEIGHT)),
        *("--dataset", f"folder:{folder}", "--output", str(tmp_path / "runs"), "--no-cache", "--quiet"),
    )
    summary = json.loads((only_run(tmp_path / "runs") / "summary.json").read_text())
    assert summary["spec"]["method"] == "prior"
    assert summary["metrics"]["n"] == 12
    assert summary["cost"]["gmacs_matmul"] == pytest.approx(summary["cost"]["plain_gmacs_matmul"])


def test_the_suites_take_it_in(site: Path) -> None:
    said = python(site, "-m", "pytest", "-q", "-n", "0", "tests/methods/test_feature_streams.py", "-k", "prior")
    assert int(re.search(r"(\d+) passed", said)[1]) >= 15  # type: ignore[index]
