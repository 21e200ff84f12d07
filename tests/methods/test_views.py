"""Views: reproducible, of the whole range of crops, close to torchvision's and Pillow's, and leaving no trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch import Tensor

from lessmore.errors import ConfigError
from lessmore.methods.augmix import OPERATIONS, augmix
from lessmore.methods.views import ViewOptions, make_views, random_crop
from tests.random_towers import make_vlm

MakePicture = Callable[..., Image.Image]


@pytest.fixture
def picture(make_picture: MakePicture) -> Image.Image:
    return make_picture(80, 60, seed=1)


def levels(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float()


def as_image(x: Tensor) -> Image.Image:
    return Image.fromarray(x.byte().permute(1, 2, 0).numpy())


@pytest.mark.parametrize("mixed", [False, True])
def test_views_depend_on_image_and_seed_alone(picture: Image.Image, make_picture: MakePicture, mixed: bool) -> None:
    vlm, options = make_vlm(), ViewOptions(views=6)
    torch.manual_seed(7)
    np.random.seed(7)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index,union-attr]
    views = make_views(vlm, picture, 0, options, mixed)
    torch.rand(3)
    again = make_views(vlm, picture.copy(), 0, options, mixed)
    torch.set_rng_state(before[0])
    assert torch.equal(views, again)
    assert views.shape == (6, 3, 24, 24)
    assert torch.equal(views[0], vlm.preprocess(picture))
    assert not torch.equal(views, make_views(vlm, picture, 1, options, mixed))
    assert not torch.equal(views[1:], make_views(vlm, make_picture(80, 60, seed=2), 0, options, mixed)[1:])
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])  # type: ignore[index]


def test_more_views_begin_with_the_same(picture: Image.Image) -> None:
    vlm = make_vlm()
    few, many = (make_views(vlm, picture, 0, ViewOptions(views=n)) for n in (4, 9))
    assert torch.equal(few, many[:4])


def test_preprocessed_pixels_are_cut_themselves(picture: Image.Image) -> None:
    vlm = make_vlm()
    pixels = vlm.preprocess(picture)
    views = make_views(vlm, pixels, 0, ViewOptions(views=8))
    assert torch.equal(views[0], pixels)
    assert torch.equal(views, make_views(vlm, pixels, 0, ViewOptions(views=8)))
    assert views[1:].min() >= pixels.min() - 0.02  # a crop shows nothing that is not there, half a level apart
    assert views[1:].max() <= pixels.max() + 0.02


def test_normalisation_is_found_for_any_preprocess_function(picture: Image.Image) -> None:
    vlm = make_vlm()
    preprocess = vlm.preprocess
    by_function = replace(vlm, preprocess=lambda image: preprocess(image))
    ours, theirs = (make_views(model, picture, 0, ViewOptions(views=5)) for model in (vlm, by_function))
    torch.testing.assert_close(ours, theirs)


def test_precision_is_the_towers(picture: Image.Image) -> None:
    assert make_views(make_vlm(dtype=torch.bfloat16), picture, 0, ViewOptions(views=3)).dtype == torch.bfloat16


@pytest.mark.parametrize(("width", "height"), [(1, 1), (1, 300), (300, 2), (5, 7)])
def test_any_shape_can_be_cropped(width: int, height: int, make_picture: MakePicture) -> None:
    views = make_views(make_vlm(), make_picture(width, height), 0, ViewOptions(views=5), mixed=True)
    assert views.isfinite().all()


def test_crops_are_spread_as_torchvisions() -> None:
    """Every pixel says where it is, so a crop says what it was cut from."""
    transforms = pytest.importorskip("torchvision.transforms")
    y, x = torch.meshgrid(torch.arange(120.0), torch.arange(160.0), indexing="ij")
    image = torch.stack([x, y, torch.zeros_like(x)])
    draw = torch.Generator().manual_seed(0)
    ours, flips = [], 0
    for _ in range(600):
        crop = random_crop(image, (32, 32), 0.08, draw)
        flips += bool(crop[0, 0, 0] > crop[0, 0, -1])
        width, height = (crop[0].max() - crop[0].min()) / 160, (crop[1].max() - crop[1].min()) / 120
        ours.append((float(width * height), float(crop[0].mean()), float(crop[1].mean())))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        params = [transforms.RandomResizedCrop.get_params(image, (0.08, 1), (3 / 4, 4 / 3)) for _ in range(600)]
    theirs = [(h * w / 19200, left + w / 2, top + h / 2) for top, left, h, w in params]
    assert 240 < flips < 360
    for mine, other in zip(np.array(ours).T, np.array(theirs).T, strict=True):
        quarters = np.quantile(mine, (0.25, 0.5, 0.75)), np.quantile(other, (0.25, 0.5, 0.75))
        assert np.abs(quarters[0] - quarters[1]).max() < 0.12 * (other.max() - other.min())


def test_resampling_is_pillows_within_a_level(picture: Image.Image) -> None:
    """The same crop by Pillow, found by drawing the whole image: `smallest` 1 leaves no other choice of area."""
    square = picture.crop((0, 0, 60, 60))
    for seed in range(20):
        crop = random_crop(levels(square), (24, 24), 1.0, torch.Generator().manual_seed(seed))
        whole = square.resize((24, 24), Image.Resampling.BILINEAR)
        expected = [levels(whole), levels(ImageOps.mirror(whole))]
        assert min(float((crop - one).abs().max()) for one in expected) <= 1


def _by_pillow(name: str, image: Image.Image, amount: float, sign: int) -> Image.Image:
    side = image.width
    shift, shear = sign * int(amount * side / 30), sign * 0.03 * amount
    affine = {
        "shear_x": (1, shear, 0, 0, 1, 0),
        "shear_y": (1, 0, 0, shear, 1, 0),
        "translate_x": (1, 0, shift, 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, shift),
    }
    if name in affine:
        return image.transform(image.size, Image.Transform.AFFINE, affine[name], Image.Resampling.BILINEAR)
    other: dict[str, Callable[[], Image.Image]] = {
        "autocontrast": lambda: ImageOps.autocontrast(image),
        "equalize": lambda: ImageOps.equalize(image),
        "posterize": lambda: ImageOps.posterize(image, 4),
        "solarize": lambda: ImageOps.solarize(image, 256 - int(amount * 25.6)),
        "rotate": lambda: image.rotate(sign * int(3 * amount), Image.Resampling.BILINEAR),
    }
    return other[name]()


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_equal_pillows(name: str, make_picture: MakePicture) -> None:
    pictures = [make_picture(64, 64, seed) for seed in range(4)]
    batch = torch.stack([levels(image) for image in pictures])
    amount = torch.tensor([0.1, 0.5, 0.95, 0.7], dtype=torch.float64)
    sign = torch.tensor([1, -1, 1, -1])
    changed = OPERATIONS[name](batch, amount, sign)
    for i, image in enumerate(pictures):
        expected = levels(_by_pillow(name, image, float(amount[i]), int(sign[i])))
        tolerance = 1 if name in ("rotate", "shear_x", "shear_y") else 0
        # Pillow counts in fixed-point steps, so a pixel on the very edge may be outside for one and not for the other.
        off = (changed[i] - expected).abs() > tolerance
        assert float(off.float().mean()) <= (0.002 if tolerance else 0)


@pytest.mark.parametrize("name", OPERATIONS)
def test_blank_images_stay_images(name: str) -> None:
    blank = torch.stack([torch.zeros(3, 16, 16), torch.full((3, 16, 16), 255.0)])
    changed = OPERATIONS[name](blank, torch.tensor([0.5, 1.0]), torch.tensor([1, -1]))
    assert changed.isfinite().all()
    assert 0 <= changed.min() <= changed.max() <= 255


def test_augmix_mixes_within_the_range(picture: Image.Image) -> None:
    crop = levels(picture.crop((0, 0, 60, 60)))
    batch = crop.expand(12, -1, -1, -1)
    mixed = augmix(batch, torch.Generator().manual_seed(0))
    assert 0 <= mixed.min() <= mixed.max() <= 255
    assert torch.equal(batch[0], crop)
    difference = (mixed - batch).abs().mean(dim=(1, 2, 3))
    assert difference.min() < difference.max()
    assert difference.mean() < 40  # mild: a third of the range would be another picture


def test_bad_options_are_refused() -> None:
    for options in ({"views": 1}, {"smallest": 0.0}, {"smallest": 1.5}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            ViewOptions(**options)  # type: ignore[arg-type]
