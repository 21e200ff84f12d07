"""Our preprocessing against the hosts': the same bytes before normalisation, the same floats after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from lessmore.errors import ConfigError, ImageError
from lessmore.models.preprocess import Preprocess

SIZES = [
    (224, 224),
    (640, 427),
    (427, 640),
    (333, 250),
    (227, 224),
    (224, 231),
    (230, 224),
    (50, 31),
    (1, 1),
    (3, 7),
    (900, 40),
]


def _pil_processor(family: str) -> Any:
    """The Pillow-backed processor: a class of its own in transformers 5, the plain one in 4.57."""
    import transformers

    name = f"{family}ImageProcessor"
    return getattr(transformers, f"{name}Pil", None) or getattr(transformers, name)


def _hf_pixels(processor: Any, image: Image.Image, **options: Any) -> np.ndarray[Any, Any]:
    # transformers 4.57 takes a single pixel for an image of one channel unless told.
    batch = processor(image, return_tensors="np", input_data_format="channels_last", **options)
    return np.asarray(batch["pixel_values"][0])


def _same(ours: Preprocess, image: Image.Image, theirs: np.ndarray[Any, Any]) -> None:
    pixels = ours(image)
    assert pixels.dtype == torch.float32
    assert pixels.shape == theirs.shape
    assert np.abs(pixels.numpy() - theirs).max() <= 1e-6


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("CLIP", {}),
        ("CLIP", {"size": {"shortest_edge": 256}, "crop_size": {"height": 224, "width": 224}}),
        ("CLIP", {"size": {"shortest_edge": 65}, "crop_size": {"height": 64, "width": 64}, "resample": 2}),
        ("Siglip", {}),
        ("Siglip", {"size": {"height": 96, "width": 96}, "resample": 2, "do_normalize": False}),
    ],
)
def test_transformers(
    family: str, options: dict[str, Any], width: int, height: int, make_picture: Callable[..., Image.Image]
) -> None:
    pytest.importorskip("transformers")
    processor = _pil_processor(family)(**options)
    image = make_picture(width, height)
    ours = Preprocess.from_hf(processor.to_dict())
    _same(ours, image, _hf_pixels(processor, image))
    raw = _hf_pixels(processor, image, do_rescale=False, do_normalize=False)
    assert np.array_equal(ours.resize(image).transpose(2, 0, 1), raw)


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize(
    "config",
    [
        {"size": (224, 224)},
        {"size": 64, "resize_mode": "squash", "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)},
        {"size": 97, "interpolation": "bilinear", "mean": (0, 0, 0), "std": (1, 1, 1)},
        {"size": 32, "interpolation": "random"},
    ],
)
def test_open_clip(config: dict[str, Any], width: int, height: int, make_picture: Callable[..., Image.Image]) -> None:
    transforms = pytest.importorskip("open_clip.transform")
    theirs = transforms.image_transform_v2(transforms.PreprocessCfg(**config), is_train=False)
    image = make_picture(width, height)
    ours = Preprocess.from_open_clip(config)
    _same(ours, image, theirs(image).numpy())
    geometry = theirs.transforms[:-2]
    for step in geometry:
        image = step(image)
    assert np.array_equal(ours.resize(make_picture(width, height)), np.asarray(image))


def test_the_two_hosts_round_crops_differently(make_picture: Callable[..., Image.Image]) -> None:
    image = make_picture(35, 32)
    floor, even = (Preprocess(32, centre=c).resize(image) for c in ("floor", "round"))
    assert np.array_equal(floor, np.asarray(image)[:, 1:33])
    assert np.array_equal(even, np.asarray(image)[:, 2:34])


def test_old_configuration_files() -> None:
    config = {"feature_extractor_type": "CLIPFeatureExtractor", "size": 224, "crop_size": 224, "do_center_crop": True}
    assert Preprocess.from_hf(config) == Preprocess(224, short_side=224, centre="floor")


@pytest.mark.parametrize(
    "config",
    [
        {"image_processor_type": "ViTImageProcessor"},
        {"image_processor_type": "Siglip2ImageProcessor", "do_resize": False},
        {"image_processor_type": "CLIPImageProcessor", "do_rescale": False},
        {"image_processor_type": "CLIPImageProcessor", "rescale_factor": 1 / 127.5},
        {"image_processor_type": "CLIPImageProcessor", "do_center_crop": False, "size": {"shortest_edge": 224}},
        {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 128}, "crop_size": 224},
        {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 224, "longest_edge": 300}},
        {"image_processor_type": "SiglipImageProcessor", "size": {"height": 224, "width": 448}},
        {"image_processor_type": "SiglipImageProcessor", "resample": 5},
        {"image_processor_type": "SiglipImageProcessor", "image_std": [0.5, 0.5]},
    ],
)
def test_what_it_cannot_do_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Preprocess.from_hf(config)


def test_open_clip_padding_is_refused() -> None:
    with pytest.raises(ConfigError, match="longest"):
        Preprocess.from_open_clip({"size": 224, "resize_mode": "longest"})


def test_a_long_strip_is_refused_before_it_fills_the_memory() -> None:
    with pytest.raises(ImageError, match="closer to square"):
        Preprocess(224)(Image.new("RGB", (100_000, 1)))
