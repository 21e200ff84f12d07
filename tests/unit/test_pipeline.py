"""`lessmore.pipeline` beside transformers' own on one model: the same calls, the same shapes, the same scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import lessmore
from lessmore.assets import model_folder
from lessmore.errors import ConfigError, ImageError

transformers = pytest.importorskip("transformers")

LABELS = ["red circle", "blue square", "green triangle"]
TASK = "zero-shot-image-classification"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model with its tokenizer, as transformers loads it."""
    import json
    import shutil

    from lessmore.assets.words import Words

    place = tmp_path_factory.mktemp("tiny")
    shutil.copytree(model_folder("tiny"), place, dirs_exist_ok=True)
    for name, content in Words.load(place).tokenizer_files().items():
        (place / name).write_text(json.dumps(content))
    return place


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    return transformers.pipeline(TASK, model=str(folder), device=-1, dtype="float32")


@pytest.fixture(scope="module")
def ours(folder: Path) -> Any:
    return lessmore.pipeline(TASK, model=str(folder), device=-1, method="zeroshot", R=1, cache=False)


def picture(colour: str) -> Image.Image:
    image = Image.new("RGB", (64, 64), "white")
    image.paste(colour, (16, 16, 48, 48))
    return image


def same(ours: Any, theirs: Any) -> None:
    """Equal in shape, labels, keys and, but for rounding, scores."""
    if isinstance(theirs, list) and isinstance(theirs[0], list):
        assert isinstance(ours, list) and len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            same(one, other)
        return
    assert isinstance(ours, list) and [sorted(one) for one in ours] == [sorted(one) for one in theirs]
    assert [one["label"] for one in ours] == [one["label"] for one in theirs]
    assert [one["score"] for one in ours] == pytest.approx([one["score"] for one in theirs], abs=2e-4)
    assert all(type(one["score"]) is float for one in ours)


def test_the_calls_of_transformers(ours: Any, theirs: Any, tmp_path: Path) -> None:
    picture("red").save(tmp_path / "red.png")
    images = [picture("red"), picture("blue"), picture("green")]
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((images[0],), {"candidate_labels": LABELS}),
        ((images[0], LABELS), {}),
        ((str(tmp_path / "red.png"),), {"candidate_labels": LABELS}),
        ((images,), {"candidate_labels": LABELS}),
        ((images[:1],), {"candidate_labels": LABELS}),
        ((images[1],), {"candidate_labels": LABELS, "hypothesis_template": "a photo of a {}."}),
        ((images[1],), {"candidate_labels": LABELS, "hypothesis_template": "{}"}),
        ((images[2],), {"candidate_labels": LABELS[:1]}),
    ]
    for args, kwargs in calls:
        same(ours(*args, **kwargs), theirs(*args, **kwargs))
    lazy = ours((image for image in images), candidate_labels=LABELS)
    assert not isinstance(lazy, list)
    same(list(lazy), theirs(images, candidate_labels=LABELS))


def test_each_list_of_labels_has_a_stream_that_adapts(folder: Path) -> None:
    adapting = lessmore.pipeline(model="tiny", cache=False)
    images = [picture(colour) for colour in ("red", "blue", "red")]
    answers = adapting(images, candidate_labels="red circle, blue square")
    adapter = lessmore.adapt("tiny", LABELS[:2], templates=["This is a photo of {}."], cache=False)
    for answer, image in zip(answers, images, strict=True):
        assert [(one["label"], one["score"]) for one in answer] == adapter(image).top(2)
    own = adapting.adapter("red circle,blue square", "This is a photo of {}.")
    assert own.health().seen == 3
    adapting(images[0], candidate_labels=LABELS)
    assert own.health().seen == 3


def test_a_folder_is_a_list(folder: Path, tmp_path: Path) -> None:
    for name, colour in (("a", "red"), ("b", "blue")):
        picture(colour).save(tmp_path / f"{name}.png")
    classify = lessmore.pipeline(TASK, "tiny", cache=False)
    for source in (tmp_path, f"{tmp_path}/*.png"):
        assert [one[0]["label"] for one in classify(source, LABELS)] == LABELS[:2]


def test_what_cannot_be_asked_is_said() -> None:
    with pytest.raises(ConfigError, match="unknown task 'text-generation'"):
        lessmore.pipeline("text-generation", "tiny")
    with pytest.raises(ConfigError, match="needs a model"):
        lessmore.pipeline(TASK)
    classify = lessmore.pipeline(TASK, "tiny", cache=False)
    with pytest.raises(ConfigError, match="give an image and its candidate_labels"):
        classify(picture("red"))
    with pytest.raises(ImageError, match="is an address; download the file"):
        classify("http://127.0.0.1/a.png", candidate_labels=LABELS)
