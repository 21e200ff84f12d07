"""DeYO against finite differences in float64: who takes part, with what weight, and what the shape is taken away by."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor

from lessmore.core.encoder import encode
from lessmore.core.vit import ViT
from lessmore.errors import ConfigError
from lessmore.methods.deyo import DeYO, DeYOOptions, shuffled_cells
from tests.methods.test_sar import entropies
from tests.methods.test_tent import CLASSES, SCALE, small_setup
from tests.random_towers import make_images

LARGEST = math.log(CLASSES)
PROBES = [("norm_pre.weight", 3), ("blocks.0.norm1.bias", 1), ("blocks.2.norm2.weight", 7)]


def answers(vision: ViT, pixels: Tensor, text: Tensor) -> list[list[float]]:
    out = []
    for feature in encode(vision, pixels).feature:
        raised = [math.exp(SCALE * float(feature @ t)) for t in text]
        out.append([r / sum(raised) for r in raised])
    return out


def losses_of_shape(vision: ViT, pixels: Tensor, text: Tensor, cells: int) -> list[float]:
    """D of every image, in plain Python from the features on."""
    mixed = torch.stack([shuffled_cells(image, cells, 0) for image in pixels])
    pairs = zip(answers(vision, pixels, text), answers(vision, mixed, text), strict=True)
    return [max(p) - q[p.index(max(p))] for p, q in pairs]


@pytest.mark.parametrize("cells", [2, 4])
def test_a_step_is_descent_on_the_weighted_entropies_of_those_that_take_part(cells: int) -> None:
    given, images = small_setup(), make_images(6)
    h, d = entropies(given.vision, images, given.text), losses_of_shape(given.vision, images, given.text, cells)
    margin = (sorted(h)[3] + sorted(h)[4]) / 2 / LARGEST  # the four surest
    left = sorted(d[i] for i in range(6) if h[i] < margin * LARGEST)
    difference = (left[0] + left[1]) / 2  # all of these but one
    part = [i for i in range(6) if h[i] < margin * LARGEST and d[i] > difference]
    assert len(part) == 3
    weights = [math.exp(0.4 * LARGEST - h[i]) + math.exp(d[i]) for i in part]

    def loss(vision: ViT) -> float:
        found = entropies(vision, images[part], given.text)
        return sum(w * e for w, e in zip(weights, found, strict=True)) / len(part)

    deyo = DeYO(given, DeYOOptions(lr=0.64, margin=margin, difference=difference, cells=cells, window=6))
    for image in images.split(1):
        deyo.predict(image)
    for name, i in PROBES:
        ends = []
        for sign in (1, -1):
            moved = copy.deepcopy(given.vision)
            moved.get_parameter(name).data[i] += sign * 1e-5
            ends.append(loss(moved))
        slope = (ends[0] - ends[1]) / 2e-5
        move = float(deyo.affines[name].data[i]) - float(given.vision.get_parameter(name)[i])
        assert move == pytest.approx(-0.06 * slope, abs=1e-8)
        assert abs(move) > 1e-6


def test_nothing_happens_where_nobody_takes_part() -> None:
    given, image = small_setup(), make_images(1)
    for options in (DeYOOptions(margin=1e-6), DeYOOptions(margin=1.0, difference=1.0)):
        deyo = DeYO(given, options)
        assert deyo.predict(image).scores.isfinite().all()
        assert all(torch.equal(v.data, deyo.start[k]) for k, v in deyo.affines.items())


@pytest.mark.parametrize("cells", [2, 3, 4])
def test_shuffling_moves_whole_cells_and_loses_none(cells: int) -> None:
    image = make_images(1)[0]
    mixed = shuffled_cells(image, cells, 0)
    size = 24 // cells

    def parts(picture: Tensor) -> list[Tensor]:
        return [
            picture[:, y * size : (y + 1) * size, x * size : (x + 1) * size] for y in range(cells) for x in range(cells)
        ]

    before, after = parts(image), parts(mixed)
    places = [next(j for j, cell in enumerate(after) if torch.equal(cell, one)) for one in before]
    assert sorted(places) == list(range(cells**2))
    assert places != list(range(cells**2))


def test_the_order_hangs_on_image_and_seed_alone() -> None:
    one, other = make_images(2)
    before = torch.get_rng_state()
    assert torch.equal(shuffled_cells(one, 4, 0), shuffled_cells(one.clone(), 4, 0))
    assert not torch.equal(shuffled_cells(one, 4, 0), shuffled_cells(one, 4, 1))
    ramp = torch.arange(24.0).expand(3, 24, 24).double()
    assert not torch.equal(shuffled_cells(ramp, 4, 0), shuffled_cells(ramp + other[:, :1, :1], 4, 0) - other[:, :1, :1])
    assert torch.equal(before, torch.get_rng_state())


def test_sides_that_are_no_multiple_of_the_cells_are_scaled_there_and_back() -> None:
    mixed = shuffled_cells(make_images(1)[0], 5, 0)
    assert mixed.shape == (3, 24, 24)
    assert mixed.isfinite().all()


def test_the_last_blocks_stay() -> None:
    deyo = DeYO(small_setup(), DeYOOptions(frozen=0.4))
    assert not any(name.startswith(("blocks.3.", "blocks.4.")) for name in deyo.affines)
    assert any(name.startswith("blocks.2.") for name in deyo.affines)


def test_cost() -> None:
    given = small_setup()
    forward, backward = given.image_macs(), given.gradient_macs()
    assert DeYO(given, DeYOOptions()).macs() == 3 * forward + backward
    assert DeYO(given, DeYOOptions()).macs("paper") == given.image_macs("paper")


@pytest.mark.parametrize("wrong", [{"margin": 0.0}, {"difference": 2.0}, {"cells": 1}, {"frozen": 1.5}, {"lr": 0.0}])
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        DeYOOptions(**wrong)  # type: ignore[arg-type]
