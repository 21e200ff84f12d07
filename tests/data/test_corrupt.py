"""Corruptions: all of them run, look the same every time, and leave the random numbers of the process alone."""

from __future__ import annotations

import builtins
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from lessmore.data.corrupt import (
    CORRUPTIONS,
    EXTRA,
    MAIN,
    SMALLEST,
    Corruption,
    corrupt,
    parse_corruption,
    register_corruption,
)
from lessmore.errors import ConfigError, ImageError, LessmoreError

pytest.importorskip("imagecorruptions")

ALL = MAIN + EXTRA
Picture = Callable[..., Image.Image]


def random_states() -> tuple[Any, ...]:
    """What the three global generators would go on from."""
    numpy_state = np.random.get_state()
    return random.getstate(), torch.get_rng_state().tolist(), numpy_state[1].tolist(), numpy_state[2:]


def same(a: Image.Image, b: Image.Image) -> bool:
    return a.size == b.size and a.mode == b.mode and a.tobytes() == b.tobytes()


def test_the_names_are_those_of_the_package() -> None:
    import imagecorruptions

    assert list(MAIN) == imagecorruptions.get_corruption_names("common")
    assert list(EXTRA) == imagecorruptions.get_corruption_names("validation")


@pytest.mark.parametrize("size", [(64, 64), (300, 230)])
@pytest.mark.parametrize("severity", [1, 5])
@pytest.mark.parametrize("name", ALL)
def test_every_corruption_is_a_function_of_image_and_id(
    name: str, severity: int, size: tuple[int, int], make_picture: Picture
) -> None:
    image = make_picture(*size)
    before, pixels = random_states(), image.tobytes()
    first = corrupt(image, Corruption(name, severity), "a/1.png")
    assert random_states() == before
    assert image.tobytes() == pixels
    np.random.seed(1)
    assert same(corrupt(image, Corruption(name, severity), "a/1.png"), first)
    assert first.mode == "RGB" and first.size == image.size and not same(first, image)


FIXED = {
    *("defocus_blur", "zoom_blur", "gaussian_blur"),
    *("brightness", "contrast", "saturate", "pixelate", "jpeg_compression"),
}


@pytest.mark.parametrize("name", [name for name in ALL if name not in FIXED])
def test_random_corruptions_differ_between_images_and_severities(name: str, make_picture: Picture) -> None:
    image = make_picture(64, 64)
    seen = [corrupt(image, Corruption(name, s), i).tobytes() for s, i in ((2, "a"), (2, "b"), (3, "a"))]
    assert len(set(seen)) == 3


def test_the_noise_of_one_severity_says_nothing_about_another() -> None:
    grey = Image.new("RGB", (64, 64), (128, 128, 128))
    noise = [np.asarray(corrupt(grey, Corruption("gaussian_noise", s), "a"), dtype=float).ravel() for s in (1, 2)]
    assert abs(np.corrcoef(noise)[0, 1]) < 0.1


def test_stronger_is_further_from_the_image(make_picture: Picture) -> None:
    image = make_picture(96, 96)
    pixels = np.asarray(image, dtype=float)
    for name in ("gaussian_noise", "contrast", "brightness"):
        away = [abs(np.asarray(corrupt(image, Corruption(name, s), "a")) - pixels).mean() for s in range(1, 6)]
        assert away == sorted(away) and away[4] > 1.5 * away[0], name


def test_threads_do_not_disturb_each_other(make_picture: Picture) -> None:
    image = make_picture(96, 96)
    noise = Corruption("gaussian_noise", 3)
    alone = [corrupt(image, noise, str(i)).tobytes() for i in range(40)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda i: corrupt(image, noise, str(i)).tobytes(), range(40)))
    assert together == alone


def test_the_smallest_image_and_one_below_it(make_picture: Picture) -> None:
    for name in ALL:
        assert corrupt(make_picture(SMALLEST, SMALLEST), Corruption(name, 3), "a").size == (SMALLEST, SMALLEST)
    with pytest.raises(ImageError, match="31 x 40 pixels .* 32 or more"):
        corrupt(make_picture(31, 40), Corruption("contrast", 1), "a")


def test_spatter_without_a_drop_leaves_the_image(make_picture: Picture) -> None:
    """The package would turn it black."""
    image = make_picture(32, 32)
    states = random_states()
    results = [corrupt(image, Corruption("spatter", 1), str(i)) for i in range(150)]
    assert random_states() == states
    assert min(np.asarray(result).mean() for result in results) > 0.9 * np.asarray(image).mean()
    assert any(same(result, image) for result in results)


@pytest.mark.parametrize("text", ["contrast:4", " contrast:4 "])
def test_text_form(text: str) -> None:
    assert parse_corruption(text) == Corruption("contrast", 4)
    assert str(parse_corruption(text)) == "contrast:4"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("contrast", "write contrast:1 to :5"),
        ("", "write contrast:1"),
        ("contrast:", "no severity"),
        ("contrast:x", "no severity"),
        ("contrast:-1", "no severity"),
        ("contrast:0", "from 1 to 5, not 0"),
        ("contrast:6", "from 1 to 5, not 6"),
        ("contrst:3", "did you mean contrast"),
        ("contrast:3:4", "no severity"),
    ],
)
def test_texts_that_are_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_corruption(text)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, make_picture: Picture) -> None:
    real = builtins.__import__

    def absent(name: str, *args: Any, **more: Any) -> Any:
        if name == "imagecorruptions":
            raise ImportError(name)
        return real(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(LessmoreError, match=r"pip install 'lessmore\[corrupt\]'"):
        corrupt(make_picture(64, 64), Corruption("fog", 1), "a")


def test_a_corruption_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CORRUPTIONS, "_own", dict(CORRUPTIONS._own))

    @register_corruption("speck")
    def speck(pixels: np.ndarray, severity: int, seed: int) -> np.ndarray:
        changed = pixels.copy()
        changed[:severity, 0] = seed % 256
        return changed

    image = Image.new("RGB", (SMALLEST, SMALLEST))
    twice = [np.asarray(corrupt(image, parse_corruption("speck:3"), "one")) for _ in range(2)]
    assert np.array_equal(*twice) and twice[0][:3, 0].all() and not twice[0][3:].any()
    with pytest.raises(ConfigError, match="severity goes from 1 to 5"):
        parse_corruption("speck:6")
    with pytest.raises(ConfigError, match="'fog' is already"):
        register_corruption("fog")(speck)
