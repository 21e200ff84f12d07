"""Diff-TPT: its choice against a slow reference; variations read from a folder, here other drawings of the object."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

import lessmore
from lessmore.adapter import Adapter
from lessmore.assets import world
from lessmore.errors import ConfigError, ImageError
from lessmore.lab.report.tokens import as_picture
from lessmore.methods.difftpt import DiffTPT, DiffTPTOptions, image_key, similar_views

CLASSES = world.test_classes(6, 3)


def drawings(count: int, seed: int, label: int) -> list[Image.Image]:
    """One object, drawn anew each time: other pose, ground, clutter and light."""
    return [as_picture(image) for image in world.draw_scene(world.world_sample(count, seed, [CLASSES[label]]))[0]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for label in range(2):
        (image,) = drawings(1, 11, label)
        place = tmp_path / image_key(image)
        place.mkdir()
        for i, other in enumerate(drawings(3, 50 + label, label)):
            other.save(place / f"{i:02}.png")
    return tmp_path


def adapter(folder: Path, **options: float) -> Adapter:
    names = world.world_class_names(CLASSES)
    given = {"views": 5, "variations": 3, "steps": 2, **options}
    return lessmore.adapt("tiny", names, method="diff-tpt", folder=str(folder), cache=False, **given)


def slow_choice(logits: Tensor, share: float, selection: float) -> list[int]:
    """By cosine with the first view, then by entropy, in plain Python."""
    rows = logits.double().tolist()

    def cosine(a: list[float], b: list[float]) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))

    def entropy(row: list[float]) -> float:
        raised = [math.exp(x - max(row)) for x in row]
        p = [r / sum(raised) for r in raised]
        return -sum(x * math.log(x) for x in p if x > 0)

    others = sorted(range(1, len(rows)), key=lambda i: -cosine(rows[0], rows[i]))[: int(share * (len(rows) - 1))]
    alike = [0, *others]
    return sorted(alike, key=lambda i: entropy(rows[i]))[: int(selection * len(alike))]


def test_the_published_choice_of_127_views(folder: Path) -> None:
    logits = 2 * torch.randn(127, 10, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert len(similar_views(logits, 0.8)) == 101 and similar_views(logits, 0.8)[0] == 0
    method = adapter(folder)._answerer.method
    assert isinstance(method, DiffTPT)
    expected = slow_choice(logits, 0.8, 0.3)
    assert method.choose(logits).tolist() == expected and len(expected) == 30


def test_variations_are_read_by_the_image_they_belong_to(folder: Path) -> None:
    ours = adapter(folder)
    method = ours._answerer.method
    assert isinstance(method, DiffTPT) and method.facts.views == 8
    (image,) = drawings(1, 11, 1)
    views = method.views(image, 0)
    assert views.shape == (8, 3, 64, 64)
    for view, drawn in zip(views[5:], drawings(3, 51, 1), strict=True):
        assert torch.equal(view, ours.vlm.preprocess(drawn))
    first, again = ours(image), ours(image)
    assert first.raw_scores.isfinite().all() and torch.equal(first.raw_scores, again.raw_scores)
    assert not torch.equal(first.raw_scores, first.zero_shot_scores)


def test_the_variations_have_their_say(folder: Path) -> None:
    (image,) = drawings(1, 11, 0)
    before = adapter(folder, selection=1.0, similar=1.0)(image).scores
    for i, other in enumerate(drawings(3, 99, 4)):
        other.save(folder / image_key(image) / f"{i:02}.png")
    assert not torch.equal(adapter(folder, selection=1.0, similar=1.0)(image).scores, before)


def test_the_key_is_what_the_image_shows() -> None:
    one, other = drawings(2, 1, 0)
    assert image_key(one) == image_key(one.copy()) != image_key(other)
    assert len(image_key(one)) == 16 and image_key(one.resize((32, 32))) != image_key(one)


def test_without_variations_it_says_how_to_make_them(folder: Path) -> None:
    with pytest.raises(ConfigError, match="docs/methods/diff-tpt.md"):
        lessmore.adapt("tiny", world.world_class_names(CLASSES), method="diff-tpt", cache=False)
    with pytest.raises(ConfigError, match="holds 0 variations"):
        adapter(folder)(drawings(1, 12345, 2)[0])
    with pytest.raises(ConfigError, match="holds 3 variations"):
        adapter(folder, variations=4)(drawings(1, 11, 0)[0])
    with pytest.raises(ImageError, match="give the image"):
        adapter(folder)(torch.zeros(3, 64, 64))
    with pytest.raises(ConfigError, match="similar"):
        DiffTPTOptions(folder=str(folder), similar=0.0)
