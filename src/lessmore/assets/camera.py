"""A rendered camera over one spot of the embedded world: things come and go, night falls, fog comes, a hand covers it.

Every frame follows from the camera's seed and the frame's number alone, so frames can be drawn in any order. The ground
and the clutter stay as they are. Over a `spot`, one object at a time moves past and stays for several frames, as most
cameras see it. Over a `belt`, every frame shows another object. Weather and light are those of `TIMELINE`, again and
again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from lessmore.assets import fields, world
from lessmore.assets.world import Combination, Scene

TIMELINE: tuple[tuple[str, int], ...] = (
    ("day", 150),
    ("night", 150),
    ("day", 60),
    ("fog", 150),
    ("covered lens", 30),
    ("day", 60),
)
"""Conditions with their numbers of frames, in order; then again from the start."""
ROUND = sum(frames for _, frames in TIMELINE)
"""Frames until the timeline repeats."""
FADE = 24
"""Frames in which night falls and fog comes or clears."""


@dataclass(frozen=True)
class CameraKind:
    """What passes before a camera."""

    classes: int
    """Classes of the list; half of them are combinations that no training image showed."""
    shortest: int
    """Frames for which an object is in the picture, at least."""
    longest: int
    """The same, at most."""
    setting: dict[str, str]
    """How such a stream is adapted: settings of a new stream."""


CAMERAS = {
    "belt": CameraKind(48, 1, 1, {"preset": "default"}),
    "spot": CameraKind(16, 6, 24, {"preset": "camera"}),
}
DARKEST, HAZE, GRAIN = 0.6, 0.62, 0.02
"""At full night, the light that is left; in full fog, the share of it in what one sees; the sensor's noise at night."""


@dataclass(frozen=True)
class CameraFrame:
    """What the camera delivers, and what only the world knows."""

    number: int
    pixels: Tensor
    """[3, SIZE, SIZE] in [0, 1]."""
    label: int | None
    """The true class; None while the lens is covered."""
    condition: str
    """A name of `TIMELINE`."""


class _Visit(NamedTuple):
    """One object's time in the picture."""

    start: int
    frames: int
    label: int
    seed: int


@cache
def camera_classes(kind: str) -> list[Combination]:
    """The classes that pass by.

    Args:
        kind: A name of `CAMERAS`.
    """
    return world.test_classes(CAMERAS[kind].classes, seed=2)


def camera_frames(kind: str, seed: int, start: int, count: int) -> list[CameraFrame]:
    """Frames of the camera with this seed.

    Args:
        kind: A name of `CAMERAS`.
        seed: Which camera: another one looks at another spot and sees other objects. Must be below 2³⁰.
        start: Number of the first frame.
        count: How many.
    """
    numbers = range(start, start + count)
    visits = [_visit(kind, seed, number) for number in numbers]
    views = [
        _view(kind, seed, visit, (i - visit.start) / visit.frames) for i, visit in zip(numbers, visits, strict=True)
    ]
    scene = Scene(*(torch.cat(parts) for parts in zip(*(vars(view).values() for view in views), strict=True)))
    drawn = world.draw_scene(scene)[0].split(1)
    return [_frame(seed, i, visit, image) for i, visit, image in zip(numbers, visits, drawn, strict=True)]


def condition_at(number: int) -> str:
    """The condition of a frame."""
    place = number % ROUND
    for name, frames in TIMELINE:
        if place < frames:
            return name
        place -= frames
    raise AssertionError("the timeline has an end")


def _frame(seed: int, number: int, visit: _Visit, image: Tensor) -> CameraFrame:
    condition = condition_at(number)
    pixels = _weathered(image, torch.tensor([seed * 100_003 + number]), number)[0]
    return CameraFrame(number, pixels, None if condition == "covered lens" else visit.label, condition)


def _visit(kind: str, seed: int, number: int) -> _Visit:
    """Whose turn a frame is."""
    visits = _visits(kind, seed, number // 1024)
    return next(one for one in reversed(visits) if one.start <= number)


@lru_cache(maxsize=64)
def _visits(kind: str, seed: int, chapter: int) -> list[_Visit]:
    """The visits of 1,024 frames; an object that is there at the end of them leaves."""
    dice = torch.Generator().manual_seed(seed * 4096 + chapter)
    camera, found, start, end = CAMERAS[kind], [], 1024 * chapter, 1024 * (chapter + 1)
    while start < end:
        frames = int(torch.randint(camera.shortest, camera.longest + 1, (), generator=dice))
        label = int(torch.randint(camera.classes, (), generator=dice))
        found.append(_Visit(start, frames, label, int(torch.randint(2**30, (), generator=dice))))
        start += frames
    return found


def _view(kind: str, seed: int, visit: _Visit, progress: float) -> Scene:
    """The scene at one moment of a visit: the spot of the camera, and the object on its way past."""
    classes = camera_classes(kind)
    spot = world.world_sample(1, seed, classes)
    guest = world.world_sample(2, visit.seed, classes[visit.label : visit.label + 1])
    return world.passing(spot, guest, progress)


def _level(number: int, name: str) -> float:
    """How far night has fallen or fog has come, 0 to 1: its share of the last frames."""
    return sum(condition_at(max(number - back, 0)) == name for back in range(FADE)) / FADE


def _weathered(images: Tensor, seeds: Tensor, number: int) -> Tensor:
    """What reaches the sensor."""
    if condition_at(number) == "covered lens":
        return (0.03 + 0.015 * _grain(seeds, images)).clamp(0, 1)
    night, fog = _level(number, "night"), _level(number, "fog")
    if fog:
        drift = fields.smooth(torch.tensor([7]), world.SIZE, 5, 40)
        veil = (HAZE * fog * (0.85 + 0.3 * torch.roll(drift, number, dims=-1)))[:, None].clamp(0, 1)
        images = torch.lerp(images, torch.full_like(images, 0.78), veil)
    if night:
        grey = images.mean(1, keepdim=True)
        moon = torch.tensor([0.75, 0.9, 1.25]).view(1, 3, 1, 1)
        images = torch.lerp(images, torch.lerp(images, grey, 0.5) * moon * DARKEST, night)
        images = images + GRAIN * night * _grain(seeds, images)
    return images.clamp(0, 1)


def _grain(seeds: Tensor, images: Tensor) -> Tensor:
    return torch.stack([fields.normal(seeds, images.shape[-1], 200 + 2 * c) for c in range(3)], 1)
