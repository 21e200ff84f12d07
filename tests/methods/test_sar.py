"""SAR's two-step update against a slow float64 reference, its filter, its recovery and its state."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lessmore.core.encoder import encode
from lessmore.core.vit import ViT
from lessmore.errors import ConfigError
from lessmore.methods import make_method
from lessmore.methods.sar import SAR, SAROptions
from tests.methods.test_tent import CLASSES, SCALE, b16, small_setup
from tests.random_towers import make_images

RATE = 0.02  # of a single image, at lr = 0.64


def entropies(vision: ViT, pixels: Tensor, text: Tensor) -> list[float]:
    out = []
    for feature in encode(vision, pixels).feature:
        raised = [math.exp(SCALE * float(feature @ t)) for t in text]
        out.append(-sum(r / sum(raised) * math.log(r / sum(raised)) for r in raised))
    return out


def numeric_gradient(
    vision: ViT, names: list[str], pixels: Tensor, text: Tensor, by: float = 1e-5
) -> dict[str, Tensor]:
    """Central differences of the mean entropy along every affine named."""
    moved, out = copy.deepcopy(vision), {}
    for name in names:
        weight = moved.get_parameter(name).data
        out[name] = torch.zeros_like(weight)
        for i in range(len(weight)):
            here = float(weight[i])
            ends = []
            for sign in (1, -1):
                weight[i] = here + sign * by
                ends.append(sum(entropies(moved, pixels, text)) / len(pixels))
            weight[i] = here
            out[name][i] = (ends[0] - ends[1]) / (2 * by)
    return out


def test_the_two_step_update() -> None:
    given, image = small_setup(), make_images(1)
    options = SAROptions(lr=0.64, margin=1.0, rho=0.3, floor=0.0, frozen=0.8)  # few affines, or this takes minutes
    sar = SAR(given, options)
    names = list(sar.affines)
    first = numeric_gradient(given.vision, names, image, given.text)
    norm = math.sqrt(sum(float((g * g).sum()) for g in first.values()))
    uphill = copy.deepcopy(given.vision)
    for name, g in first.items():
        uphill.get_parameter(name).data += options.rho * g / norm
    second = numeric_gradient(uphill, names, image, given.text)
    sar.predict(image)
    for name in names:
        expected = given.vision.get_parameter(name) - RATE * second[name]
        assert torch.allclose(sar.affines[name].data, expected, atol=1e-9), name
    plain = [given.vision.get_parameter(name) - RATE * first[name] for name in names]
    assert max(float((sar.affines[n].data - p).abs().max()) for n, p in zip(names, plain, strict=True)) > 1e-5
    assert float(sar.average) == pytest.approx(entropies(uphill, image, given.text)[0], abs=1e-7)


def test_only_reliable_samples_take_part() -> None:
    given, images = small_setup(), make_images(6)
    found = sorted(entropies(given.vision, images, given.text))
    margin = (found[2] + found[3]) / 2 / math.log(CLASSES)
    kept = torch.tensor([h < margin * math.log(CLASSES) for h in entropies(given.vision, images, given.text)])
    mixed = SAR(given, SAROptions(lr=0.64, margin=margin, floor=0.0, rho=1e-6, window=6))
    alone = SAR(given, SAROptions(lr=1.28, margin=margin, floor=0.0, rho=1e-6, window=3))  # the rate follows the window
    for image in images.split(1):
        mixed.predict(image)
    for image in images[kept].split(1):
        alone.predict(image)
    assert int(kept.sum()) == 3
    for name, weight in mixed.affines.items():
        assert torch.allclose(weight, alone.affines[name], atol=1e-12)
        assert not torch.equal(weight.data, mixed.start[name])


def test_a_sample_that_is_filtered_out_changes_nothing_though_momentum_is_there() -> None:
    given, images = small_setup(), make_images(2)
    sar = SAR(given, SAROptions(lr=0.64, margin=1.0, floor=0.0))
    sar.predict(images[:1])
    sar.bound = 0.0
    before = sar.state()
    assert any(k.startswith("momentum.") for k in before)
    outcome = sar.predict(images[1:])
    assert outcome.scores.isfinite().all()
    after = sar.state()
    assert before.keys() == after.keys() and all(torch.equal(before[k], after[k]) for k in before)


def test_a_sample_unreliable_uphill_changes_nothing() -> None:
    given, image = small_setup(), make_images(1)
    h = entropies(given.vision, image, given.text)[0]
    sar = SAR(given, SAROptions(lr=0.64, margin=min(1.0, (h + 1e-9) / math.log(CLASSES)), rho=0.01))
    sar.predict(image)
    assert all(torch.equal(v.data, sar.start[k]) for k, v in sar.affines.items())
    assert sar.average.isnan()


def test_it_starts_anew_when_the_average_falls_below_the_floor() -> None:
    given, images = small_setup(), make_images(3)
    sar = SAR(given, SAROptions(lr=0.64, margin=1.0, floor=100.0))
    sar.predict(images[:1])
    assert all(torch.equal(v.data, sar.start[k]) for k, v in sar.affines.items())
    assert sar.average.isnan() and not sar.optimiser.state


def test_the_average_moves_by_a_tenth() -> None:
    given, images = small_setup(), make_images(2)
    sar = SAR(given, SAROptions(lr=1e-9, margin=1.0, floor=0.0, rho=1e-9))
    h = entropies(given.vision, images, given.text)
    for image in images.split(1):
        sar.predict(image)
    assert float(sar.average) == pytest.approx(0.9 * h[0] + 0.1 * h[1], abs=1e-6)


def test_state_goes_on_exactly_and_reset_forgets() -> None:
    given, images = small_setup(dtype=torch.float32), make_images(8, dtype=torch.float32)
    options = SAROptions(lr=5.0, margin=1.0, floor=0.0, window=2)
    one = SAR(given, options)
    first = [one.predict(image).scores for image in images.split(1)]
    one.reset()
    again = [one.predict(image).scores for image in images[:5].split(1)]
    other = SAR(given, options)
    other.restore(one.state())
    rest = [other.predict(image).scores for image in images[5:].split(1)]
    assert all(torch.equal(a, b) for a, b in zip(first, again + rest, strict=True))
    assert not other.average.isnan()


def test_the_last_quarter_of_the_blocks_is_left_alone_and_parameters_are_as_published() -> None:
    sar = make_method("sar", b16())
    assert isinstance(sar, SAR) and sar.facts.learnable_parameters == 31_744
    frozen = ("blocks.9.", "blocks.10.", "blocks.11.")
    assert not any(name.startswith(frozen) for name in sar.affines)
    assert {"blocks.8.norm2.bias", "norm_pre.weight", "norm_post.weight"} <= set(sar.affines)


def test_rates_and_costs() -> None:
    assert SAROptions().rate == pytest.approx(2e-3 / 64) and SAROptions(window=64).rate == pytest.approx(1e-3)
    given = small_setup()
    assert SAR(given, SAROptions()).macs() == 3 * given.image_macs() + 2 * given.gradient_macs()
    one_class = replace(given, text=given.text[:1])
    assert SAR(one_class, SAROptions()).predict(make_images(1)).scores.tolist() == [1.0]


@pytest.mark.parametrize("wrong", [{"rho": 0.0}, {"margin": 0.0}, {"frozen": 1.5}, {"window": 0}])
def test_settings_no_step_can_be_made_with_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        SAROptions(**wrong)  # type: ignore[arg-type]
