"""`lessmore validate`: complete sets pass, and everything that can be wrong is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lessmore.cli import main
from lessmore.data.corrupt import EXTRA, MAIN
from lessmore.data.registry import open_dataset
from lessmore.data.spec import specs
from lessmore.data.validate import validate
from tests.synthetic_sets import build, build_cifar, write_image, write_split


@pytest.fixture
def dtd(tmp_path: Path) -> Path:
    """All 1,692 images of DTD's test split, made up."""
    spec = specs()["dtd"]
    labels = [i % 47 for i in range(spec.images)]
    paths = [f"{spec.classes[label]}/{i}.jpg" for i, label in enumerate(labels)]
    write_split(tmp_path / "dtd" / str(spec.split), spec.classes, paths, labels)
    for path, label in zip(paths, labels, strict=True):
        write_image(tmp_path / "dtd" / "images" / path, label)
    return tmp_path


def test_a_complete_set(dtd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "DTD", "--root", str(dtd)]) == 0
    assert capsys.readouterr().out == "dtd: ready, 1,692 images, 47 classes, 100 decoded\n"
    assert main(["validate", "dtd", "--root", str(dtd), "--sample", "7", "--json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)
    assert (report["ready"], report["images"], report["decoded"], report["problems"]) == (True, 1692, 7, [])


def test_missing_images_are_counted_and_named(dtd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = dtd / "dtd" / "images"
    for i in (0, 47, 94, 141, 188, 235, 282):
        (images / "banded" / f"{i}.jpg").unlink()
    assert main(["validate", "dtd", "--root", str(dtd), "--sample", "2000"]) == 1
    out = capsys.readouterr().out
    assert "7 of 1,692 images are missing in" in out and "banded/0.jpg, banded/47.jpg" in out and "and 2 more" in out
    assert "cannot be read" not in out and "to get it: dtd-r1.0.1.tar.gz" in out and "licence" in out


def test_a_whole_missing_folder(dtd: Path) -> None:
    (dtd / "dtd" / "images" / "zigzagged").rename(dtd / "elsewhere")
    (problem,) = validate("dtd", dtd, sample=0).problems
    assert problem.startswith("36 of 1,692 images are missing")


def test_damaged_images_are_found_by_the_sample(dtd: Path) -> None:
    (dtd / "dtd" / "images" / "banded" / "47.jpg").write_bytes(b"\x89PNG\r\n\x1a\n cut short")
    (problem,) = validate("dtd", dtd, sample=1692).problems
    assert "1 of 1692 sampled images cannot be read: banded/47.jpg" in problem and "not a readable image" in problem


def test_the_sample_is_seeded(dtd: Path) -> None:
    for path in (dtd / "dtd" / "images").glob("*/*7.jpg"):
        path.write_bytes(b"")
    first, again, other = (validate("dtd", dtd, sample=60, seed=seed).problems for seed in (1, 1, 2))
    assert first == again != other


def test_counts_classes_and_empty_classes(tmp_path: Path) -> None:
    names = list(specs()["eurosat"].classes)
    names[3:5] = ["Highway", "Industry"]
    write_split(tmp_path / "split_zhou_EuroSAT.json", names, ["a/1.jpg", "a/2.jpg"], [0, 1])
    for i in (1, 2):
        write_image(tmp_path / "eurosat" / "a" / f"{i}.jpg", 0)
    count, classes, empty = validate("eurosat", tmp_path).problems
    assert count == "there are 2 images, but the test split has 8,100"
    assert classes == (
        "class names differ: 2 not found (Highway or Road, Industrial Buildings), 2 unknown (Highway, Industry)"
    )
    assert empty.startswith("8 of 10 classes have no images: Herbaceous Vegetation Land, Highway, ")


def test_absent_sets_say_how_to_get_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build(tmp_path, "imagenet_a", "tca")
    assert main(["validate", "ood", "--root", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    for name in ("imagenet", "imagenet_v2", "imagenet_r", "imagenet_sketch"):
        assert f"{name}: not ready\n  {name} is not under" in out
    assert "197 of 200 classes have no images" in out and "natural-adv-examples" in out and "image-net.org" in out


def test_own_sets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_image(tmp_path / "photos" / "cat" / "1.png", 0)
    (tmp_path / "set.yaml").write_text("{name: mine, reader: folder, path: photos}")
    given = [str(tmp_path / "set.yaml"), f"folder:{tmp_path / 'photos'}"]
    assert main(["validate", *given]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{name}: ready, 1 images, 1 classes, 1 decoded" for name in ("mine", "photos")
    ]
    (tmp_path / "photos" / "dog").mkdir()
    assert main(["validate", given[1]]) == 1
    assert "1 of 2 classes have no images: dog" in capsys.readouterr().out


def test_a_link_to_nowhere_is_no_image(tmp_path: Path) -> None:
    write_image(tmp_path / "cat" / "1.png", 0)
    (tmp_path / "cat" / "2.png").symlink_to(tmp_path / "gone.png")
    (problem,) = validate(f"folder:{tmp_path}", None).problems
    assert "1 of 2 sampled images cannot be read: cat/2.png" in problem


def test_cifar_group(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build_cifar(tmp_path / "CIFAR-100-C", [name for name in MAIN + EXTRA if name != "snow"])
    assert main(["validate", "cifar100c", "--root", str(tmp_path), "--sample", "1", "--json"]) == 1
    reports = json.loads(capsys.readouterr().out)
    assert len(reports) == 95
    assert sum("snow.npy" in report["problems"][0] for report in reports) == 5
    assert all("4 images, but the test split has 10,000" in str(r) for r in reports if "snow" not in r["dataset"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["eurosta", "--root", "."], "unknown data set 'eurosta'; did you mean eurosat"),
        (["eurosat", "--sample", "-1"], "--sample must be 0 or more"),
    ],
)
def test_wrong_use(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", *arguments]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("what", ["datasets", "groups"])
def test_ls(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", what]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert main(["ls", what, "--json"]) == 0
    assert [f"{name}\t{text}" for name, text in json.loads(capsys.readouterr().out).items()] == lines
    assert len(lines) == {"datasets": 17, "groups": 3}[what]


REAL = {"eurosat": (8100, 10), "caltech101": (2465, 100), "tiny_imagenet": (10000, 200)}


@pytest.mark.parametrize("name", REAL)
def test_the_real_sets(name: str, shared: Path) -> None:
    report = validate(name, shared / "data")
    assert (report.images, report.classes, report.decoded, report.problems) == (*REAL[name], 100, ())
    assert open_dataset(name, shared / "data").classes == specs()[name].classes
