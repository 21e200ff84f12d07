"""Every registered data set, in every layout, written small and read back."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from lessmore.data import cifar_c, layout
from lessmore.data.corrupt import EXTRA, MAIN
from lessmore.data.dataset import Dataset
from lessmore.data.registry import open_dataset
from lessmore.data.spec import specs
from lessmore.errors import ConfigError, ImageError
from tests.synthetic_sets import LAYOUTS, PER_SEVERITY, build, build_cifar, label_of, write_image, write_split


@pytest.mark.parametrize("name", LAYOUTS["coop"])
@pytest.mark.parametrize("kind", LAYOUTS)
def test_layout(kind: str, name: str, tmp_path: Path) -> None:
    ids, labels = build(tmp_path, name, kind)
    dataset = pickle.loads(pickle.dumps(open_dataset(name, tmp_path)))
    assert dataset.name == name
    assert (list(dataset.ids), list(dataset.labels)) == (ids, labels)
    assert dataset.classes == specs()[name].classes
    assert [label_of(dataset.image(i)) for i in range(len(dataset))] == labels


def test_layouts_live_side_by_side(tmp_path: Path) -> None:
    """In TCA's layout the cars lie in the root itself; that must not catch the other sets' files."""
    for name in LAYOUTS["tca"]:
        build(tmp_path, name, "tca")
    for name in LAYOUTS["tca"]:
        dataset = open_dataset(name, tmp_path)
        assert [label_of(dataset.image(i)) for i in range(len(dataset))] == list(dataset.labels)


@pytest.mark.parametrize("place", ["", "Splits", "DATA_SPLITS", "data/data_splits", "EuroSAT", "EuroSAT/2750"])
def test_split_files_in_any_place_and_case(place: str, tmp_path: Path) -> None:
    spec = specs()["eurosat"]
    write_image(tmp_path / "EuroSAT" / "2750" / "River" / "1.jpg", 8)
    write_split(tmp_path / place / "SPLIT_zhou_EuroSat.JSON", spec.classes, ["River/1.jpg"], [8])
    assert label_of(open_dataset("eurosat", tmp_path).image(0)) == 8


def test_exact_case_is_preferred(tmp_path: Path) -> None:
    (tmp_path / "DTD").mkdir()
    if (tmp_path / "dtd").exists():
        pytest.skip("this file system does not tell letter case apart")
    (tmp_path / "dtd").mkdir()
    assert layout.descend(tmp_path, "dtd") == tmp_path / "dtd"
    assert layout.descend(tmp_path, "Dtd") == tmp_path / "DTD"
    assert layout.descend(tmp_path, "dtd/images") is None


def test_tiny_imagenet(tmp_path: Path) -> None:
    classes = specs()["tiny_imagenet"].classes
    rows = [f"images/{label}.JPEG,{label},{name}" for label, name in enumerate(classes)]
    (tmp_path / "tiny-imagenet-val").mkdir()
    (tmp_path / "tiny-imagenet-val" / "manifest.csv").write_text("\n".join(["path,label,classname", *rows]))
    write_image(tmp_path / "tiny-imagenet-val" / "images" / "7.JPEG", 7)
    dataset = open_dataset("tiny_imagenet", tmp_path)
    assert (dataset.name, dataset.classes, label_of(dataset.image(7))) == ("tiny_imagenet", classes, 7)
    with pytest.raises(ImageError, match="no file"):
        dataset.image(8)


@pytest.mark.parametrize("folder", ["CIFAR-100-C", "cifar100c", "cifar-100-c"])
def test_cifar(folder: str, tmp_path: Path) -> None:
    build_cifar(tmp_path / folder, MAIN + EXTRA)
    for variant in cifar_c.VARIANTS:
        dataset = open_dataset(f"cifar100c/{variant}", tmp_path)
        assert (len(dataset), dataset.ids[3]) == (PER_SEVERITY, f"{variant}/00003")
    used = open_dataset("CIFAR-100-C/fog/3", tmp_path)
    used.image(0)
    assert len(pickle.dumps(used.source)) < 1000
    dataset = pickle.loads(pickle.dumps(used))
    assert dataset.labels == (0, 20, 40, 60) and dataset.classes[20] == "chair"
    assert [dataset.image(i).getpixel((5, 5)) for i in range(4)] == [(label, 3, 77) for label in dataset.labels]


def test_cifar_arrays_are_mapped_and_never_unpickled(tmp_path: Path) -> None:
    build_cifar(tmp_path / "CIFAR-100-C", ["fog"])
    assert isinstance(cifar_c._array(tmp_path / "CIFAR-100-C" / "fog.npy"), np.memmap)
    dataset = open_dataset("cifar100c/fog/1", tmp_path)
    np.save(tmp_path / "CIFAR-100-C" / "fog.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ImageError, match="download it again"):
        dataset.image(0)
    with pytest.raises(ConfigError, match="not an array of numbers"):
        open_dataset("cifar100c/fog/1", tmp_path)


@pytest.mark.parametrize(
    ("array", "file", "message"),
    [
        (np.zeros((20, 32, 32), np.uint8), "fog", r"uint8 \[20, 32, 32\], not 20 RGB images"),
        (np.zeros((19, 32, 32, 3), np.uint8), "fog", "not 20 RGB images"),
        (np.zeros((20, 32, 32, 3), np.float32), "fog", "float32"),
        (np.zeros(18, np.int64), "labels", "does not list labels"),
        (np.zeros(20), "labels", "does not list labels"),
        (np.full(20, 100), "labels", "label 100, but its classes are 0 to 99"),
    ],
)
def test_wrong_cifar_arrays(array: np.ndarray, file: str, message: str, tmp_path: Path) -> None:  # type: ignore[type-arg]
    build_cifar(tmp_path / "CIFAR-100-C", ["fog"])
    np.save(tmp_path / "CIFAR-100-C" / f"{file}.npy", array)
    with pytest.raises(ConfigError, match=message):
        open_dataset("cifar100c/fog/3", tmp_path)


def test_cifar_without_a_corruption(tmp_path: Path) -> None:
    build_cifar(tmp_path / "CIFAR-100-C", ["fog"])
    with pytest.raises(ConfigError, match=r"needs snow.npy in .*zenodo"):
        open_dataset("cifar100c/snow/3", tmp_path)


def _eurosat(tmp_path: Path, content: object) -> Dataset:
    write_image(tmp_path / "eurosat" / "2750" / "a.jpg", 0)
    text = content if isinstance(content, str) else json.dumps(content)
    (tmp_path / "eurosat" / "split_zhou_EuroSAT.json").write_text(text)
    return open_dataset("eurosat", tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ([], "no split file"),
        ({"train": []}, "no split file"),
        ({"test": [["a.jpg", "0", "x"]]}, "no split file"),
        ({"test": [["a.jpg", 0]]}, "no split file"),
        ({"test": [["", 0, "x"]]}, "no split file"),
        ({"test": []}, "no classes"),
        ({"train": [["b.jpg", 0, "x"]], "test": []}, "holds no images"),
        ({"test": [["a.jpg", 1, "x"]]}, "none with the label 0"),
        ({"test": [["a.jpg", -1, "x"]]}, "none with the label 0"),
        ({"test": [["a.jpg", 0, "x"]], "train": [["b.jpg", 0, "y"]]}, "both 'x' and 'y'|both 'y' and 'x'"),
        ({"test": [["a.jpg", 0, "x"], ["b.jpg", 1, "x"]]}, "more than once"),
        ({"test": [["a.jpg", 0, "x"], ["a.jpg", 0, "x"]]}, "lists a.jpg twice"),
        ({"test": [["../a.jpg", 0, "x"]]}, "outside of its folder"),
        ({"test": [["/etc/a.jpg", 0, "x"]]}, "outside of its folder"),
        ({"test": [["C:\\a.jpg", 0, "x"]]}, "outside of its folder"),
        ({"test": [["b\\..\\..\\a.jpg", 0, "x"]]}, "outside of its folder"),
    ],
)
def test_wrong_split_files(content: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        _eurosat(tmp_path, content)


def test_missing_parts_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs a root.*eurosat/2750"):
        open_dataset("eurosat")
    with pytest.raises(ConfigError, match="is not a folder"):
        open_dataset("eurosat", tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"needs split_zhou_EuroSAT.json.*phelber/EuroSAT"):
        open_dataset("eurosat", tmp_path)
    write_split(tmp_path / "split_zhou_EuroSAT.json", ["x"], ["a.jpg"], [0])
    with pytest.raises(ConfigError, match="there is no eurosat/2750 or eurosat"):
        open_dataset("eurosat", tmp_path)


def test_aircraft_lists(tmp_path: Path) -> None:
    build(tmp_path, "fgvc_aircraft", "coop")
    (tmp_path / "fgvc_aircraft" / "images_variant_test.txt").write_text("1 Concorde\n")
    with pytest.raises(ConfigError, match="'Concorde', not listed in variants.txt"):
        open_dataset("aircraft", tmp_path)
    (tmp_path / "fgvc_aircraft" / "variants.txt").unlink()
    with pytest.raises(ConfigError, match=r"there is no file .*variants.txt"):
        open_dataset("aircraft", tmp_path)


def test_class_folders_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no imagenet/images/val or imagenet/val; get ILSVRC2012"):
        open_dataset("imagenet", tmp_path)
    write_image(tmp_path / "imagenet" / "val" / "ILSVRC2012_val_00000001.JPEG", 0)
    with pytest.raises(ConfigError, match="such as n01440764; sort the images"):
        open_dataset("imagenet", tmp_path)
    (tmp_path / "imagenet" / "val" / "n01440764").mkdir()
    with pytest.raises(ConfigError, match="holds no images"):
        open_dataset("imagenet", tmp_path)
