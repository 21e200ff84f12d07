"""What is known of the data sets, their names and groups, and what a data set promises."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lessmore.config import PRESETS
from lessmore.data.dataset import Dataset, Files
from lessmore.data.registry import canonical, expand_names, list_datasets, list_groups, open_dataset
from lessmore.data.spec import specs
from lessmore.errors import ConfigError
from lessmore.prompts import TEMPLATES, class_names, spoken

SIZES = {
    "fgvc_aircraft": (3333, 100, 2),
    "caltech101": (2465, 100, 34),
    "stanford_cars": (8041, 196, 8),
    "dtd": (1692, 47, 8),
    "eurosat": (8100, 10, 3),
    "oxford_flowers": (2463, 102, 1),
    "food101": (30300, 101, 1),
    "oxford_pets": (3669, 37, 1),
    "sun397": (19850, 397, 2),
    "ucf101": (3783, 101, 48),
    "imagenet": (50000, 1000, 80),
    "imagenet_a": (7500, 200, 80),
    "imagenet_v2": (10000, 1000, 80),
    "imagenet_r": (30000, 200, 80),
    "imagenet_sketch": (50889, 1000, 80),
    "cifar100c": (10000, 100, 18),
    "tiny_imagenet": (10000, 200, 80),
}
"""Test images, classes, and templates of the set `clip`."""


def test_sizes() -> None:
    assert {s.name: (s.images, len(s.classes), len(s.templates["clip"])) for s in specs().values()} == SIZES


@pytest.mark.parametrize("name", SIZES)
def test_spec(name: str) -> None:
    spec = specs()[name]
    assert list(spec.templates) == ["clip", "coop", "simple7", "imagenet80"]
    assert len(spec.templates["coop"]) == 1 and list(spec.templates["simple7"]) == TEMPLATES["simple7"]
    assert all(text.count("{}") == 1 for texts in spec.templates.values() for text in texts)
    assert all(len(set(texts)) == len(texts) for texts in spec.templates.values())
    assert list(spec.classes) == list(map(spoken, class_names(spec.classes)))
    assert len(spec.class_folders) in (0, len(spec.classes))
    assert spec.licence and spec.source and spec.folders and bool(spec.split) != bool(spec.class_folders)


def test_presets_tuned_on_a_data_set_use_its_name() -> None:
    assert {preset.tuned_on for preset in PRESETS.values() if preset.tuned_on} <= set(specs())


def test_imagenet_names_are_clips_but_for_two_repeated_ones() -> None:
    metadata = pytest.importorskip("open_clip.zero_shot_metadata")
    pairs = enumerate(zip(specs()["imagenet"].classes, metadata.IMAGENET_CLASSNAMES, strict=True))
    different = {i: pair for i, pair in pairs if pair[0] != pair[1]}
    assert different == {744: ("projectile", "missile"), 836: ("sunglass", "sunglasses")}


def test_imagenet_subsets() -> None:
    full = specs()["imagenet"]
    names = dict(zip(full.class_folders, full.classes, strict=True))
    assert list(full.class_folders) == sorted(names) and len(names) == 1000
    for name in ("imagenet_a", "imagenet_r", "imagenet_sketch"):
        spec = specs()[name]
        assert list(spec.class_folders) == sorted(spec.class_folders)
        assert [names[folder] for folder in spec.class_folders] == list(spec.classes)
    assert specs()["imagenet_v2"].class_folders == tuple(map(str, range(1000)))
    known = {"n01443537": "goldfish", "n02085620": "Chihuahua", "n15075141": "toilet paper", "n04008634": "projectile"}
    assert {folder: names[folder] for folder in known} == known
    assert "goldfish" in specs()["imagenet_r"].classes and "goldfish" not in specs()["imagenet_a"].classes


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("EuroSAT", "eurosat"),
        ("cars", "stanford_cars"),
        ("ImageNet-V2", "imagenet_v2"),
        ("imagenetv2", "imagenet_v2"),
        ("Flowers102", "oxford_flowers"),
        ("CIFAR-100-C/Gaussian-Noise/5", "cifar100c/gaussian_noise/5"),
    ],
)
def test_other_spellings(given: str, name: str) -> None:
    assert canonical(given) == name
    assert expand_names([given, name]) == [name]


def test_no_two_names_are_spelt_alike() -> None:
    spellings = [spelling for spec in specs().values() for spelling in (spec.name, *spec.aliases)]
    assert [canonical(s) for s in spellings if s != "cifar100c"] == [
        spec.name for spec in specs().values() if spec.name != "cifar100c" for _ in (spec.name, *spec.aliases)
    ]


@pytest.mark.parametrize(
    ("name", "near"), [("eurosta", "eurosat"), ("cifar100c/fogg/3", "cifar100c/fog/3"), ("cross_data", "cross_dataset")]
)
def test_unknown_names_answer_with_the_nearest(name: str, near: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean .*{near}"):
        expand_names([name])


def test_groups() -> None:
    assert {name: len(members) for name, members in list_groups().items()} == {
        "cross_dataset": 10,
        "ood": 5,
        "cifar100c": 95,
    }
    assert len(list_datasets()) == len(set(list_datasets())) == 16 + 95
    assert expand_names(["ood", "imagenet*"])[:5] == list_groups()["ood"]
    assert expand_names(["imagenet_a", "ood"]) == ["imagenet_a", "imagenet", *list_groups()["ood"][2:]]
    assert len(expand_names(["cifar100c/*/5"])) == 19 and len(expand_names(["cifar100c/fog/*"])) == 5
    assert expand_names(["Cross-Dataset"]) == list_groups()["cross_dataset"]
    assert expand_names(["my/set.yaml", "folder:a", "hf:b/c@test"]) == ["my/set.yaml", "folder:a", "hf:b/c@test"]
    with pytest.raises(ConfigError, match="no data set fits"):
        expand_names(["mnist*"])


def test_an_empty_place_is_refused() -> None:
    with pytest.raises(ConfigError, match="write folder:PATH"):
        open_dataset("folder:")


def _dataset() -> Dataset:
    return Dataset("d", ("cat", "dog"), ("a", "b"), (0, 1), Files(Path(), ("a", "b")), {"own": ("a {}",), "x": ("{}",)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ids": (), "labels": ()}, "holds no images"),
        ({"labels": (0,)}, "1 labels for 2 images"),
        ({"ids": ("a", "a")}, "lists a twice"),
        ({"labels": (0, 2)}, "label 2, but its classes are 0 to 1"),
        ({"labels": (-1, 0)}, "label -1"),
    ],
)
def test_a_data_set_is_checked_once(change: dict[str, tuple[object, ...]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(_dataset(), **change)  # type: ignore[arg-type]


def test_the_fingerprint_is_of_what_can_change_a_number() -> None:
    same = replace(_dataset(), source=Files(Path("elsewhere"), ("a", "b")), templates={})
    assert same.fingerprint() == _dataset().fingerprint()
    changes: list[dict[str, object]] = [
        {"name": "e"},
        {"classes": ("dog", "cat")},
        {"ids": ("b", "a")},
        {"labels": (1, 0)},
    ]
    changed = {replace(_dataset(), **change).fingerprint() for change in changes}  # type: ignore[arg-type]
    assert len(changed | {same.fingerprint()}) == 5


def test_the_real_split_files(shared: Path) -> None:
    """Where they are at hand: names, counts and unique paths agree with what is shipped."""
    for name in ("oxford_pets", "oxford_flowers", "stanford_cars", "dtd"):
        spec = specs()[name]
        parts = json.loads((shared / "data" / "splits" / str(spec.split)).read_text())
        names = {label: text for part in parts.values() for _, label, text in part}
        assert tuple(spoken(names[i]) for i in range(len(names))) == spec.classes
        assert len({path for path, _, _ in parts["test"]}) == spec.images


def test_the_document_lists_every_set() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "datasets.md").read_text(encoding="utf-8")
    for spec in specs().values():
        name = "cifar100c/fog/3" if spec.name == "cifar100c" else spec.name
        assert f"| `{name}` | {spec.title} | {spec.images:,} | {len(spec.classes)} |" in text
        assert all(f"`{folder}`" in text for folder in spec.folders if folder) and f"- {spec.title}: " in text
