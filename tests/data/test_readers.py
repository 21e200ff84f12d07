"""Generic readers: image folder, manifest, Hugging Face data sets, and a user's YAML file."""

from __future__ import annotations

import io
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from lessmore.data.dataset import Dataset
from lessmore.data.manifest import read_manifest
from lessmore.data.registry import open_dataset
from lessmore.errors import ConfigError, ImageError
from tests.synthetic_sets import colour, label_of, write_image


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    for label, path in enumerate(["black_cat/b.png", "dog/deep/a.JPG", "fox/1.webp"]):
        write_image(folder / path, label)
    write_image(folder / "black_cat" / "a.png", 0)
    write_image(folder / ".hidden" / "x.png", 9)
    write_image(folder / "fox" / ".x.png", 9)
    (folder / "fox" / "notes.txt").write_text("no image")
    return folder


def test_folder(photos: Path) -> None:
    dataset = pickle.loads(pickle.dumps(open_dataset(f"folder:{photos}")))
    assert dataset.name == "photos" and dataset.classes == ("black_cat", "dog", "fox")
    assert dataset.ids == ("black_cat/a.png", "black_cat/b.png", "dog/deep/a.JPG", "fox/1.webp")
    assert [label_of(dataset.image(i)) for i in range(4)] == list(dataset.labels) == [0, 0, 1, 2]
    assert next(iter(dataset.templates.values())) == ("a photo of a {}.",)


def test_folders_without_images(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no folder"):
        open_dataset(f"folder:{tmp_path / 'nowhere'}")
    with pytest.raises(ConfigError, match="has no sub-folders"):
        open_dataset(f"folder:{tmp_path}")
    (tmp_path / "cat").mkdir()
    with pytest.raises(ConfigError, match="holds no images"):
        open_dataset(f"folder:{tmp_path}")


ROWS: list[dict[str, Any]] = [
    {"path": "a/1.png", "label": 1, "classname": "big_dog"},
    {"path": "2.png", "label": 0, "classname": "cat"},
]


def write_manifest(folder: Path, ending: str, rows: list[dict[str, Any]]) -> Path:
    file = folder / f"list.{ending}"
    if ending == "json":
        file.write_text(json.dumps(rows))
    elif ending == "jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        columns = list(rows[0])
        lines = [",".join(columns), *(",".join(str(row.get(column, "")) for column in columns) for row in rows)]
        file.write_text("\n".join(lines), encoding="utf-8-sig")
    return file


@pytest.mark.parametrize("ending", ["csv", "json", "jsonl"])
def test_manifest(ending: str, tmp_path: Path) -> None:
    write_image(tmp_path / "a" / "1.png", 1)
    write_image(tmp_path / "2.png", 0)
    dataset = open_dataset(f"manifest:{write_manifest(tmp_path, ending, ROWS)}")
    assert (dataset.name, dataset.classes, dataset.labels) == ("list", ("cat", "big_dog"), (1, 0))
    assert dataset.ids == ("a/1.png", "2.png") and label_of(dataset.image(0)) == 1


def test_labels_may_be_names(tmp_path: Path) -> None:
    rows = [{"path": "1.png", "label": "fox"}, {"path": "2.png", "label": "cat"}]
    file = write_manifest(tmp_path, "csv", rows)
    assert read_manifest(file).labels == (1, 0) and read_manifest(file).classes == ("cat", "fox")
    assert read_manifest(file, classes=["fox", "owl", "cat"]).labels == (0, 2)
    with pytest.raises(ConfigError, match="unknown class 'fox'"):
        read_manifest(file, classes=["cat"])


@pytest.mark.parametrize("ending", ["csv", "json", "jsonl"])
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"file": "1.png", "label": 0}], r"no column 'path'.*columns are path, label, classname"),
        ([{"path": "1.png", "lable": 0}], r"no column 'label' \(unknown column 'lable'; did you mean label\?\)"),
        ([{"path": "1.png", "label": ""}], "row 1 has no label"),
        ([{"path": "", "label": 0}], "row 1 has no path"),
        ([{"path": "1.png", "label": 0}], "does not name them"),
        ([{**ROWS[0], "label": 0}, ROWS[1]], "label 0 both"),
        ([{**ROWS[0], "label": 3}, ROWS[1]], "none with the label 1"),
        ([{**ROWS[0], "path": "2.png"}, ROWS[1]], "lists 2.png twice"),
        ([{**ROWS[0], "path": "../1.png"}, ROWS[1]], "outside of its folder"),
        ([{**ROWS[0], "path": "/1.png"}, ROWS[1]], "outside of its folder"),
    ],
)
def test_wrong_manifests(ending: str, rows: list[dict[str, Any]], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        read_manifest(write_manifest(tmp_path, ending, rows))


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("a.txt", b"path", "does not end in .csv, .json or .jsonl"),
        ("a.csv", b"", "no classes"),
        ("a.csv", b"path,label\n", "no classes"),
        ("a.csv", b"path,label\n\xff\xfe,1\n", r"not UTF-8 text \(line 2\)"),
        ("a.json", b"{", "is not JSON"),
        ("a.json", b'{"path": 1}', "not a list of objects"),
        ("a.json", b"[1]", "not a list of objects"),
        ("a.jsonl", b'{"path": "1"', "line 1, is not JSON"),
        ("a.json", b'[{"path": "1", "label": NaN}]', "NaN is not a value"),
        ("a.json", b'[{"path": "1", "label": 1.5}]', "row 1 has the label '1.5'"),
        ("a.json", b'[{"path": "1", "label": true}]', "row 1 has the label"),
        ("a.json", b'[{"path": ["1"], "label": 1}]', "row 1 has the path"),
        ("a.json", b'[{"path": "1", "path": "2", "label": 1}]', "appears twice"),
        ("a.json", b"[" * 100_000, "nested too deeply"),
        ("a.csv", b"path,label,path\n1,2,3\n", "two columns 'path'"),
        ("a.csv", b'path,label\n"1,2\n', "is not CSV .line"),
        ("a.csv", b"path,label\n1," + b"9" * 200_000 + b"\n", "field larger than"),
    ],
)
def test_files_that_are_no_manifest(file: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_manifest(tmp_path / file)


def test_no_manifest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no file .* .the manifest."):
        read_manifest(tmp_path / "a.csv")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Two splits of three images each, as `save_to_disk` leaves them."""
    datasets = pytest.importorskip("datasets")
    kinds = datasets.ClassLabel(names=["cat", "big_dog", "fox"])
    features = datasets.Features({"picture": datasets.Image(), "kind": kinds, "note": datasets.Value("string")})

    def table(labels: list[int]) -> Any:
        images = [Image.new("RGB", (3, 2), colour(label)) for label in labels]
        rows = {"picture": images, "kind": labels, "note": ["x"] * len(labels)}
        return datasets.Dataset.from_dict(rows, features=features)

    datasets.DatasetDict({"train": table([0, 0, 0]), "test": table([2, 1, 0])}).save_to_disk(tmp_path / "saved")
    table([1]).save_to_disk(tmp_path / "single")
    return tmp_path


def test_hugging_face(saved: Path) -> None:
    dataset = pickle.loads(pickle.dumps(open_dataset(f"hf:{saved / 'saved'}")))
    assert (dataset.name, dataset.classes, dataset.labels) == ("saved@test", ("cat", "big_dog", "fox"), (2, 1, 0))
    assert dataset.ids[0] == "test/000000"
    assert [label_of(dataset.image(i)) for i in range(3)] == [2, 1, 0]
    assert open_dataset(f"hf:{saved / 'saved'}@train").labels == (0, 0, 0)
    assert open_dataset(f"hf:{saved / 'single'}").labels == (1,)
    with pytest.raises(ConfigError, match="unknown split 'tset'; did you mean test"):
        open_dataset(f"hf:{saved / 'saved'}@tset")


def test_hugging_face_that_cannot_serve(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    (saved / "empty").mkdir()
    with pytest.raises(ConfigError, match="cannot be opened"):
        open_dataset(f"hf:{saved / 'empty'}")
    datasets.load_from_disk(saved / "single").remove_columns("kind").save_to_disk(saved / "unlabelled")
    with pytest.raises(ConfigError, match="0 columns of the type ClassLabel"):
        open_dataset(f"hf:{saved / 'unlabelled'}")
    table = datasets.load_from_disk(saved / "single")
    datasets.DatasetDict({"a": table, "b": table}).save_to_disk(saved / "two")
    with pytest.raises(ConfigError, match="the splits a, b; choose one"):
        open_dataset(f"hf:{saved / 'two'}")
    both = f"hf:{saved / 'saved'}"
    for option, message in {
        "image=note": "holds no images",
        "label=picture": "neither class labels nor texts",
        "image=pcture": "mean picture",
        "images=picture": "unknown option 'images'",
        "image": "not NAME=VALUE",
    }.items():
        with pytest.raises(ConfigError, match=message):
            open_dataset(f"{both}?{option}")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match=r"pip install 'lessmore\[hf-data\]'"):
        open_dataset(f"hf:{saved / 'single'}")


def test_a_broken_image_of_a_table_is_an_image_error(saved: Path) -> None:
    datasets = pytest.importorskip("datasets")
    cells = [{"bytes": b"no image", "path": None}, None]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat"])})
    datasets.Dataset.from_dict({"image": cells, "label": [0, 0]}, features=features).save_to_disk(saved / "broken")
    dataset = open_dataset(f"hf:{saved / 'broken'}")
    for index, message in enumerate(["not a readable image", "has no image"]):
        with pytest.raises(ImageError, match=message):
            dataset.image(index)


def _encoded(kind: str) -> bytes:
    stream = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    if kind == "icon":
        Image.new("RGB", (16, 16)).save(stream, "ICO")
    elif kind == "huge":
        Image.new("1", (10_000, 5_001)).save(stream, "PNG")
    else:
        Image.new(kind, (6, 4)).save(stream, "PNG", exif=exif)
    return stream.getvalue()


def _through(reader: str, folder: Path, content: bytes) -> Dataset:
    """A data set of this one image, opened by that reader."""
    if reader == "hf":
        datasets = pytest.importorskip("datasets")
        features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat"])})
        cells = {"image": [{"bytes": content, "path": None}], "label": [0]}
        datasets.Dataset.from_dict(cells, features=features).save_to_disk(folder / "saved")
        return open_dataset(f"hf:{folder / 'saved'}")
    (folder / "cat").mkdir()
    (folder / "cat" / "1.png").write_bytes(content)
    rows = [{"path": "cat/1.png", "label": 0, "classname": "cat"}]
    places = {"folder": folder, "manifest": write_manifest(folder, "csv", rows)}
    return open_dataset(f"{reader}:{places[reader]}")


@pytest.mark.parametrize("reader", ["folder", "manifest", "hf"])
def test_every_reader_decodes_safely(reader: str, tmp_path: Path) -> None:
    for kind, message in {"icon": "not a readable image", "huge": "more than 50 million pixels"}.items():
        (tmp_path / kind).mkdir()
        with pytest.raises(ImageError, match=message):
            _through(reader, tmp_path / kind, _encoded(kind)).image(0)
    for i, mode in enumerate(["RGB", "L", "LA", "RGBA", "1", "I;16"]):
        (tmp_path / str(i)).mkdir()
        image = _through(reader, tmp_path / str(i), _encoded(mode)).image(0)
        assert (image.mode, image.size) == ("RGB", (4, 6)), mode


def yaml_file(folder: Path, text: str) -> str:
    (folder / "set.yaml").write_text(text)
    return str(folder / "set.yaml")


def test_user_file(photos: Path, tmp_path: Path) -> None:
    text = """
name: pets
reader: folder
path: photos
classes: {black_cat: panther}
templates: ["a drawing of a {}.", "the {}"]
"""
    dataset = open_dataset(yaml_file(tmp_path, text))
    assert (dataset.name, dataset.classes) == ("pets", ("panther", "dog", "fox"))
    assert next(iter(dataset.templates.values())) == ("a drawing of a {}.", "the {}")
    assert list(dataset.templates) == ["own", "coop", "simple7", "imagenet80"]
    assert label_of(dataset.image(2)) == 1
    listed = open_dataset(yaml_file(tmp_path, "{name: p, reader: folder, path: photos, classes: [a, b, c]}"))
    assert listed.classes == ("a", "b", "c") and next(iter(listed.templates.values())) == ("a photo of a {}.",)


def test_user_file_with_a_manifest(photos: Path, tmp_path: Path) -> None:
    rows = [{"path": str(photos / "fox" / "1.webp"), "label": 1}, {"path": "photos/black_cat/a.png", "label": 0}]
    write_manifest(tmp_path, "csv", rows)
    text = "{name: m, reader: manifest, path: list.csv, classes: [cat, fox]"
    with pytest.raises(ConfigError, match="outside of its folder"):
        open_dataset(yaml_file(tmp_path, text + "}"))
    dataset = open_dataset(yaml_file(tmp_path, text + ", anywhere: true}"))
    assert dataset.classes == ("cat", "fox") and [label_of(dataset.image(i)) for i in (0, 1)] == [2, 0]


def test_user_file_with_a_table(saved: Path) -> None:
    dataset = open_dataset(yaml_file(saved, "{name: t, reader: hf, path: saved, split: train, templates: 'a {}'}"))
    assert (dataset.name, len(dataset), next(iter(dataset.templates.values()))) == ("t", 3, ("a {}",))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", r"is not usable YAML .line 2."),
        ("- a", "not a list of fields"),
        ("", "not a list of fields"),
        ("{nam: x, reader: folder, path: photos}", "unknown field 'nam'; did you mean name"),
        ("{name: x, reader: folder, path: photos, template: a}", "did you mean templates"),
        ("{name: x, path: photos}", "needs the field reader"),
        ("{name: 3, reader: folder, path: photos}", "needs the field name, a text"),
        ("{name: x, reader: foldr, path: photos}", "unknown reader 'foldr'; did you mean folder"),
        ("{name: x, reader: folder, path: photo}", "there is no folder"),
        ("{name: x, reader: folder, path: photos, classes: 3}", "classes must be a list of names"),
        ("{name: x, reader: folder, path: photos, classes: [1, 2, 3]}", "put quotes around"),
        ("{name: x, reader: folder, path: photos, classes: [a, b]}", "names 2 classes, but there are 3"),
        ("{name: x, reader: folder, path: photos, classes: {blak_cat: a}}", "did you mean black_cat"),
        ("{name: x, reader: folder, path: photos, classes: {dog: fox}}", "more than once"),
        ("{name: x, reader: folder, path: photos, templates: [a photo]}", "has no {} for the class name"),
        ("{name: x, reader: folder, path: photos, templates: {a: b}}", "templates must be a text"),
        ("{name: x, reader: folder, path: photos, anywhere: 3}", "anywhere must be true or false"),
    ],
)
def test_wrong_user_files(text: str, message: str, photos: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        open_dataset(yaml_file(tmp_path, text))


def test_no_user_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no file"):
        open_dataset(str(tmp_path / "set.yaml"))
