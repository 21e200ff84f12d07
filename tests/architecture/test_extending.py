"""What docs/architecture.md says about adding things, tried with toys that use the named places and no others."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import torch
from PIL import Image

import lessmore
from lessmore import adapt, cli
from lessmore.core.condense.registry import REDUCERS
from lessmore.data.corrupt import CORRUPTIONS, corrupt, parse_corruption
from lessmore.data.registry import DATASETS, list_datasets, open_dataset
from lessmore.methods.registry import METHODS
from lessmore.models.preprocess import Preprocess
from lessmore.models.towers.registry import FAMILIES
from tests.random_towers import letters, make_images, make_vlm

tomllib = pytest.importorskip("tomllib")  # from Python 3.11 on
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
TOY = Path(__file__).parent / "toy_package"
REGISTRIES = {
    "a method": METHODS,
    "a reducer from existing rules": REDUCERS,
    "a model family": FAMILIES,
    "a data set": DATASETS,
    "a corruption": CORRUPTIONS,
    "a command": cli.REGISTRY,
}
CLASSES = ["red", "blue", "cat"]


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The toy package, installed as pip leaves it; afterwards nobody has heard of it."""
    site = tmp_path / "site"
    shutil.copytree(TOY / "lessmore_toy", site / "lessmore_toy", ignore=shutil.ignore_patterns("__pycache__"))
    facts = site / "lessmore_toy-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: lessmore-toy\nVersion: 1.0\n")
    groups = [f"[{name}]\n" + "".join(f"{k} = {v}\n" for k, v in all_.items()) for name, all_ in entries().items()]
    (facts / "entry_points.txt").write_text("\n".join(groups))
    monkeypatch.syspath_prepend(site)
    for registry in REGISTRIES.values():
        monkeypatch.setattr(registry, "_own", dict(registry._own))
    yield site
    for name in [name for name in sys.modules if name.startswith("lessmore_toy")]:
        del sys.modules[name]


def entries() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = tomllib.loads((TOY / "pyproject.toml").read_text())["project"]["entry-points"]
    return found


def rows(table_with: str) -> list[list[str]]:
    """Cells of the Markdown table whose head contains a text."""
    lines = PAGE.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("|") and table_with in line)
    body = lines[start + 2 :]
    end = next(i for i, line in enumerate(body) if not line.startswith("|"))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in body[:end]]


def test_a_toy_method(toy: Path, tmp_path: Path) -> None:
    assert "toy-prior" in lessmore.list_methods()
    assert "lessmore_toy" not in sys.modules
    adapter = adapt(make_vlm(), CLASSES, method="toy-prior", templates=["{}"], weight=3.0, cache=False)
    images = list(make_images(4, dtype=torch.float32))
    first = [p.scores for p in adapter.stream(images[:2])]
    assert not torch.allclose(first[1], adapter.fork()(images[1]).scores)
    adapter.save(tmp_path / "state.safetensors")
    other = adapt(make_vlm(), CLASSES, method="toy-prior", templates=["{}"], weight=3.0, cache=False)
    other.restore(tmp_path / "state.safetensors")
    for image in images[2:]:
        assert torch.equal(adapter(image).scores, other(image).scores)
    with pytest.raises(lessmore.errors.ConfigError, match="weight must be positive"):
        adapt(make_vlm(), CLASSES, method="toy-prior", templates=["{}"], weight=-1.0, cache=False)


def test_a_toy_reducer(toy: Path) -> None:
    assert "toy-half" in lessmore.list_reducers()
    adapter = adapt(make_vlm(), CLASSES, reducer="toy-half", R=0.7, layers=(1, 2), cache=False)
    assert adapter.preset.condensation.merge_prune == (1, 1)
    (image,) = make_images(1, dtype=torch.float32)
    trace = adapter(image, trace=True).trace
    assert trace is not None and len(trace.blocks) == 2


def test_a_toy_model_family(toy: Path) -> None:
    ours = make_vlm()
    host = import_module("lessmore_toy.host").ToyModel(ours.vision, ours.text)
    assert "lessmore_toy.family" not in sys.modules
    vlm = lessmore.load(host, tokenizer=letters, preprocess=Preprocess(24))
    assert vlm.vision is ours.vision
    assert adapt(vlm, CLASSES, cache=False)(Image.new("RGB", (24, 24))).label in CLASSES


def test_a_toy_data_set(toy: Path, tmp_path: Path) -> None:
    for colour in ("red", "blue"):
        (tmp_path / "colours" / colour).mkdir(parents=True)
        Image.new("RGB", (32, 32), colour).save(tmp_path / "colours" / colour / "0.png")
    assert "toy-colours" in list_datasets()
    found = open_dataset("Toy Colours", tmp_path)
    assert (found.name, found.classes, len(found)) == ("toy-colours", ("blue", "red"), 2)


def test_a_toy_corruption(toy: Path) -> None:
    image = corrupt(Image.new("RGB", (32, 32), (100, 100, 100)), parse_corruption("toy-shade:5"), "one")
    assert image.getpixel((0, 0)) == (50, 50, 50)


def test_a_toy_command(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["toy-hello", "world"]) == 0
    assert capsys.readouterr().out == "hello world\n"
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    assert "toy-hello" in capsys.readouterr().out


def test_all_toys_are_listed(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for what, name in (("methods", "toy-prior"), ("reducers", "toy-half"), ("datasets", "toy-colours")):
        assert cli.main(["ls", what]) == 0
        assert f"\n{name}\t" in capsys.readouterr().out


def test_the_page_names_the_groups_and_counts_the_files() -> None:
    table = {row[0]: row for row in rows("entry point group")}
    assert table.keys() == REGISTRIES.keys()
    for kind, registry in REGISTRIES.items():
        (place,) = entries()[registry.group].values()
        module = TOY / f"{place.partition(':')[0].replace('.', '/')}.py"
        touched = [module, TOY / "pyproject.toml"]
        assert all(file.is_file() for file in touched)
        assert table[kind][3:] == [f"`{registry.group}`", str(len(touched))]
        if registry is not cli.REGISTRY:
            home, _, function = table[kind][2].strip("`").rpartition(".")
            assert f"from {home} import" in module.read_text() and function in module.read_text()


def test_files_the_page_names_exist() -> None:
    named = set(re.findall(r"`((?:src|tests|docs)/[\w./-]+\.\w+)`", PAGE))
    assert len(named) > 20
    assert [file for file in sorted(named) if "NAME" not in file and not (ROOT / file).exists()] == []


def test_the_rooms_are_those_of_the_contract() -> None:
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    layers = [name.strip() for layer in contract["layers"] for name in layer.split("|")]
    named = [name for row in rows("what lives there") for name in re.findall(r"`(\w+)(?:\.py)?`", row[0])]
    assert named == layers


def test_a_label_free_rule_touches_the_files_of_the_page() -> None:
    listed = PAGE.partition("<!-- label-free rule: begin -->")[2].partition("<!-- label-free rule: end -->")[0]
    named = set(re.findall(r"`(src/[\w./]+)`", listed))
    known = {"src/lessmore/core/token_mean.py"}
    for file in (ROOT / "src").rglob("*.py"):
        if re.search(r"\btoken_mean\b", file.read_text(encoding="utf-8")):
            known.add(file.relative_to(ROOT).as_posix())
    assert named == known, "docs/architecture.md lists the files that know the token mean; bring the list up to date"
