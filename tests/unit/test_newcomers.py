"""What surprised people who tried 0.1: each test tells one story, and fails on 0.1."""

from __future__ import annotations

import importlib.util
import re
import warnings
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from PIL import Image

import lessmore
from lessmore.cli import main
from lessmore.config import PresetName
from lessmore.core.condense.registry import ReducerName
from lessmore.data.registry import open_dataset
from lessmore.engines import EngineName
from lessmore.errors import ConfigError, ImageError
from lessmore.lab.report.tables import run_lines
from lessmore.methods import MethodName
from lessmore.methods.registry import METHODS
from tests.small_runs import draw_folder
from tests.unit.test_tables import put, summary

REPOSITORY = Path(__file__).parents[2]
NAMES = ["red_circle", "blue  square"]


def adapter(**options: Any) -> lessmore.Adapter:
    return lessmore.adapt("tiny", NAMES, cache=False, **options)


def test_what_goes_in_as_a_label_comes_out() -> None:
    """`car_side` came back as `car side`, and a join by label went wrong."""
    one = adapter()
    assert one.classes == NAMES and one(Image.new("RGB", (32, 32), "red")).label == "red_circle"
    spaced = lessmore.adapt("tiny", ["red circle", "blue square"], cache=False)
    assert torch.equal(one._setup.text, spaced._setup.text), "prompts say both alike"
    with pytest.raises(ConfigError, match="'red circle' reads like 'red_circle'"):
        one.add_classes(["red circle"])


def test_folders_name_classes_as_they_are_called(tmp_path: Path) -> None:
    (tmp_path / "car_side").mkdir()
    Image.new("RGB", (32, 32)).save(tmp_path / "car_side" / "a.png")
    assert open_dataset(f"folder:{tmp_path}").classes == ("car_side",)


def test_names_that_the_tokenizer_does_not_know_are_said() -> None:
    """They became identical embeddings and got 0.967."""
    with pytest.warns(UserWarning, match="does not know every word of 2 of 3 class names .'zebra', 'red okapi'"):
        lessmore.adapt("tiny", ["zebra", "red circle", "red okapi"], cache=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        adapter()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"R": "0.9"}, "R='0.9' is not a finite number"),
        ({"lam": "x"}, "lam='x' is not a finite number"),
        ({"lam": float("nan")}, "lam=nan is not"),
        ({"M": 2.5}, "M=2.5 is not a whole number"),
        ({"method": None}, "unknown method None"),
        ({"preset": 3}, "unknown preset 3"),
        ({"templates": 3}, "no templates"),
    ],
)
def test_options_of_a_wrong_type_are_refused_before_the_first_image(option: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        adapter(**option)


def test_an_unknown_way_with_errors_is_refused() -> None:
    """`skip` acted as `yield`."""
    with pytest.raises(ConfigError, match="on_error must be 'raise' or 'yield', not 'skip'"):
        adapter().stream([], on_error="skip")  # type: ignore[call-overload]


def test_opencvs_frames() -> None:
    """Taken as RGB, 17 of 30 answers were equal."""
    rgb = np.zeros((32, 32, 3), dtype=np.uint8)
    rgb[..., 0] = 200
    rgb[:16, :, 1] = 90
    bgr, four = rgb[..., ::-1], np.dstack([rgb[..., ::-1], np.full((32, 32), 255, np.uint8)])
    expected = adapter()(rgb).scores
    assert torch.equal(adapter()(bgr, bgr=True).scores, expected)
    assert torch.equal(adapter()(four, bgr=True).scores, expected)
    assert torch.equal(adapter()(torch.from_numpy(bgr.copy()).permute(2, 0, 1), bgr=True).scores, expected)
    assert torch.equal(next(adapter().stream(bgr, bgr=True)).scores, expected)
    assert torch.equal(adapter()(Image.fromarray(rgb), bgr=True).scores, expected), "a picture knows its colours"
    assert not torch.equal(adapter()(bgr).scores, expected)


def test_sources(tmp_path: Path) -> None:
    """`stream("photos/")` iterated over its letters."""
    folder = tmp_path / "my photos"
    folder.mkdir()
    for i, colour in enumerate(["red", "blue", "green"]):
        Image.new("RGB", (40, 40), colour).save(folder / f"{i}.png")
    files = sorted(folder.iterdir())
    expected = [p.scores for p in adapter().stream(files)]
    batch = np.stack([np.asarray(Image.open(file)) for file in files])
    several = [folder, str(folder), f"{folder}/*.png", folder.as_uri(), [file.as_uri() for file in files], batch]
    for source in [*several, torch.from_numpy(batch).permute(0, 3, 1, 2)]:
        found = [p.scores for p in adapter().stream(source)]
        assert len(found) == 3 and all(map(torch.equal, found, expected)), source
    for single in [files[0].as_uri(), str(files[0]), f"{folder}/0.*", files[0].read_bytes(), batch[0]]:
        assert torch.equal(adapter()(single).scores, expected[0]), single
        assert [p.label for p in adapter().stream(single)] == ["red_circle"]
    with pytest.raises(ImageError, match=r"stands for 3 images; give it to stream\(\)"):
        adapter()(folder)
    with pytest.raises(ImageError, match="on the machine elsewhere"):
        adapter()("file://elsewhere/a.png")
    with pytest.raises(ConfigError, match="nothing fits the pattern"):
        adapter().stream(f"{folder}/*.gif")


def test_classify_takes_the_same_sources(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.new("RGB", (40, 40), "red").save(tmp_path / "a.png")
    assert main(["classify", (tmp_path / "a.png").as_uri(), "--model", "tiny", "--classes", ",".join(NAMES)]) == 0
    assert f"{tmp_path}/a.png,red_circle,0," in capsys.readouterr().out


def test_half_precision_on_a_processor_names_the_remedy() -> None:
    with pytest.warns(UserWarning, match="float16 model is slow on a CPU; pass dtype='float32', or device='cuda'"):
        one = adapter(dtype="float16")
    assert one.engine == "eager" and adapter(dtype="float32").engine != "eager"


def test_types_spell_out_the_names() -> None:
    """`method=` was a plain `str`."""
    spelled = {name for part in get_args(MethodName) for name in get_args(part)}
    assert spelled == set(METHODS.own())
    assert set(get_args(get_args(EngineName)[0])) == set(lessmore.list_engines())
    assert set(get_args(get_args(ReducerName)[0])) == {"auto", *lessmore.list_reducers()}
    assert set(get_args(get_args(PresetName)[0])) == {n for n in lessmore.list_presets() if "/" not in n}


def test_a_grid_that_lacks_a_package_does_not_begin(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Six runs, then two tracebacks."""
    real = importlib.util.find_spec
    missing = "imagecorruptions"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == missing else real(name, *more))
    asked = ["run", "--model", "tiny", "--dataset", "folder:nowhere", "--corruption", "none", "contrast:4"]
    assert main([*asked, "--output", str(tmp_path / "runs")]) == 1
    assert "need imagecorruptions; install it with: pip install 'lessmore[corrupt]'" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("command", ["run", "sweep", "classify", "report"])
def test_help_says_real_defaults(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "default: null" not in shown
    if command == "run":
        assert all(text in shown for text in ("default: tca", "default: iid", "default: default", "default: float32"))


def test_tables_have_intervals_of_gains_and_no_folders_of_this_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = ["/home/me/models/one", "/home/you/models/one", "/srv/two"]
    runs = [summary(model=place, accuracy=0.8 + i / 100) for i, place in enumerate(places)]
    for i, run in enumerate(runs):
        put(tmp_path, str(i), run)
    assert main(["build", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "(+5.00 ± 4.00)" in shown and "/home/" not in shown and "/srv" not in shown
    assert "| me/models/one |" in shown and "| you/models/one |" in shown and "| two |" in shown
    assert {line["spec.model"] for line in run_lines(runs)} == {"me/models/one", "you/models/one", "two"}


def test_batches_are_never_chosen_on_a_processor() -> None:
    """The guide called them faster; there, they took almost twice the time."""
    assert adapter(device="cpu").engine == "cpu"
    guide = (REPOSITORY / "docs" / "guide.md").read_text(encoding="utf-8")
    assert "On a CPU it is slower than `auto`" in guide.partition("**Batches.**")[2].partition("\n\n")[0]


def test_one_folder_is_one_run_however_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`mix` and `./mix/` were done twice."""
    pytest.importorskip("torchmetrics")
    draw_folder(tmp_path / "mix", 3)
    monkeypatch.chdir(tmp_path)
    for place in ("mix", "./mix/", str(tmp_path / "mix")):
        asked = ["--model", "tiny", "--dataset", f"folder:{place}", "--method", "zeroshot", "--no-cache", "--quiet"]
        assert main(["run", *asked, "--output", "out"]) == 0
    assert len(list((tmp_path / "out").iterdir())) == 1


def test_metadata_names_no_place_that_nobody_has() -> None:
    """None is known, so none may be invented; the newest part of the changelog is the version that is built."""
    project = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    assert "[project.urls]" not in project and not re.search(r"https?://", project)
    assert not re.search(r"https?://", (REPOSITORY / "CITATION.cff").read_text(encoding="utf-8"))
    newest = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8").partition("\n## ")[2].split()[0]
    assert f'\nversion = "{newest}"\n' in project
