"""Tent against finite differences in float64, and what it leaves alone."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor

from lessmore.assets.words import Words
from lessmore.config import Preset, preset
from lessmore.core.condense.registry import list_reducers, resolve_reducer
from lessmore.core.encoder import encode
from lessmore.core.text import TextTower
from lessmore.core.vit import ViT
from lessmore.errors import ConfigError
from lessmore.methods import Setup, make_method
from lessmore.methods.tent import Tent, TentOptions, norm_affines
from lessmore.models.preprocess import Preprocess
from lessmore.models.shapes import SHAPES as REAL
from lessmore.models.vlm import VLM
from tests.random_towers import SHAPES, make_images, make_text, make_vit

SCALE, CLASSES = 6.0, 5
MOMENTUM = 0.9


def whole(R: float = 1.0) -> Preset:
    return preset("default", R=R, layers=(1, 2, 3))


def small_setup(kind: str = "class", dtype: torch.dtype = torch.float64, settings: Preset | None = None) -> Setup:
    shape = SHAPES[kind]
    vision, text = make_vit(shape, dtype=dtype, spread=0.2), make_text(CLASSES, shape.embed, dtype=dtype)
    return Setup(vision, text, SCALE, settings or whole())


@torch.no_grad()
def mean_entropy(vision: ViT, pixels: Tensor, text: Tensor) -> float:
    """The loss, in plain Python from the features on."""
    total = 0.0
    for feature in encode(vision, pixels).feature:
        raised = [math.exp(SCALE * float(feature @ t)) for t in text]
        total -= sum(r / sum(raised) * math.log(r / sum(raised)) for r in raised)
    return total / len(pixels)


def slope(vision: ViT, name: str, i: int, pixels: Tensor, text: Tensor, by: float = 1e-5) -> float:
    """Central difference of the loss along entry i of an affine."""
    ends = []
    for sign in (1, -1):
        moved = copy.deepcopy(vision)
        moved.get_parameter(name).data[i] += sign * by
        ends.append(mean_entropy(moved, pixels, text))
    return (ends[0] - ends[1]) / (2 * by)


PROBES = [("norm_pre.weight", 3), ("blocks.0.norm1.bias", 1), ("blocks.4.norm2.weight", 7), ("norm_post.bias", 0)]


def test_two_steps_are_nesterov_descent_on_the_entropy() -> None:
    given = small_setup()
    tent, images = Tent(given, TentOptions(lr=0.64)), make_images(2)
    rate = 0.01  # of one image in 64
    momentum = dict.fromkeys(PROBES, 0.0)
    for image in images.split(1):
        before = copy.deepcopy(tent.tower)
        expected = {}
        for name, i in PROBES:
            g = slope(before, name, i, image, given.text)
            momentum[name, i] = MOMENTUM * momentum[name, i] + g
            move = rate * (g + MOMENTUM * momentum[name, i])
            expected[name, i] = before.get_parameter(name)[i].item() - move
            assert abs(move) > 1e-5
        tent.predict(image)
        for name, i in PROBES:
            assert float(tent.affines[name][i]) == pytest.approx(expected[name, i], abs=1e-9)


def test_a_window_makes_one_step_on_all_its_images() -> None:
    given, images = small_setup(), make_images(3)
    tent = Tent(given, TentOptions(lr=0.64, window=3))
    for image in images.split(1):
        assert torch.equal(tent.affines["norm_post.bias"].data, given.vision.norm_post.bias)
        tent.predict(image)
    g = slope(given.vision, "norm_post.bias", 2, images, given.text)
    moved = float(tent.affines["norm_post.bias"][2] - given.vision.norm_post.bias[2])
    assert moved == pytest.approx(-0.03 * (1 + MOMENTUM) * g, abs=1e-9)
    assert len(tent.waiting) == 0


def test_the_answer_is_that_before_the_step_and_stands_beside_the_plain_one() -> None:
    given = small_setup()
    tent, image = Tent(given, TentOptions(lr=10.0)), make_images(1)
    plain = (SCALE * encode(given.vision, image).feature @ given.text.T)[0].softmax(-1)
    first, second = tent.predict(image), tent.predict(image)
    assert torch.allclose(first.scores, plain) and torch.allclose(first.zero_shot, plain)
    assert torch.allclose(second.zero_shot, plain) and not torch.allclose(second.scores, plain)
    assert not second.scores.requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_tower_given_is_never_changed_and_only_norms_are_cloned(dtype: torch.dtype) -> None:
    given = small_setup(dtype=dtype)
    before = {k: v.clone() for k, v in given.vision.state_dict().items()}
    tent = Tent(given, TentOptions(lr=10.0))
    tent.predict(make_images(1, dtype=dtype))
    assert all(torch.equal(v, before[k]) for k, v in given.vision.state_dict().items())
    assert not any(p.requires_grad for p in given.vision.parameters())
    assert all(v.dtype == torch.float32 for v in tent.affines.values())
    norms = norm_affines(tent.tower)
    for name, weight in tent.tower.state_dict().items():
        shared = weight.data_ptr() == given.vision.state_dict()[name].data_ptr()
        assert shared == (name not in norms and dtype == torch.float32)


@pytest.mark.parametrize("kind", [name for name, shape in SHAPES.items() if not shape.flexible])
def test_state_goes_on_exactly_and_reset_forgets(kind: str) -> None:
    given, images = small_setup(kind, torch.float32), make_images(7, dtype=torch.float32)
    one = Tent(given, TentOptions(lr=5.0, window=2))
    first = [one.predict(image).scores for image in images.split(1)]
    one.reset()
    again = [one.predict(image).scores for image in images[:3].split(1)]
    other = Tent(given, TentOptions(lr=5.0, window=2))
    other.restore(one.state())
    rest = [other.predict(image).scores for image in images[3:].split(1)]
    assert all(torch.equal(a, b) for a, b in zip(first, again + rest, strict=True))
    kept = one.state()
    one.predict(images[:1])
    assert not torch.equal(one.state()["affine.norm_post.bias"], kept["affine.norm_post.bias"])


@pytest.mark.parametrize("name", list_reducers())
@pytest.mark.parametrize("kind", ["class", "map"])
def test_gradients_pass_every_reducer(name: str, kind: str) -> None:
    base = whole(0.8)
    given = small_setup(kind, settings=base._replace(condensation=resolve_reducer(name, base.condensation)))
    tent = Tent(given, TentOptions())
    outcome = tent.predict(make_images(1))
    assert outcome.scores.isfinite().all()
    moved = [k for k, v in tent.affines.items() if not torch.equal(v.data, tent.start[k])]
    assert len(moved) == len(tent.affines)


def test_gradients_that_are_not_finite_leave_everything_as_it_is() -> None:
    given = small_setup()
    tent = Tent(given, TentOptions())
    tent.predict(torch.full((1, 3, 24, 24), math.nan, dtype=torch.float64))
    assert all(torch.equal(v.data, tent.start[k]) for k, v in tent.affines.items())


def b16() -> Setup:
    """CLIP ViT-B/16 without any weights."""
    seen, read = REAL["ViT-B-16"]
    with torch.device("meta"):
        vision, text = ViT(seen).requires_grad_(False), TextTower(read).requires_grad_(False)
        vlm = VLM(vision, text, 100.0, 0.0, Words(), Preprocess(224), "clip", "b16")
        return Setup(vision, torch.empty(10, 512), 100.0, preset("default", R=1.0), vlm, ("cat", "dog"))


def test_as_many_parameters_as_published() -> None:
    assert make_method("tent", b16()).facts.learnable_parameters == 40_960


def test_cost() -> None:
    given = small_setup()
    forward, backward = given.image_macs(), given.gradient_macs()
    assert Tent(given, TentOptions()).macs() == 2 * forward + backward
    assert Tent(given, TentOptions(window=4)).macs() == round(2.75 * forward) + backward
    assert Tent(given, TentOptions()).macs("paper") == given.image_macs("paper")


@pytest.mark.parametrize("wrong", [{"lr": 0.0}, {"momentum": 1.0}, {"window": 0}, {"momentum": 0.0}])
def test_settings_no_step_can_be_made_with_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        TentOptions(**wrong)  # type: ignore[arg-type]
