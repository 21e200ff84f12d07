"""The rendered camera: every frame follows from seed and number, and only the world knows what it shows."""

from __future__ import annotations

import itertools

import torch

from lessmore.assets import camera


def test_a_frame_does_not_depend_on_how_it_is_asked_for() -> None:
    whole = camera.camera_frames("spot", 3, 1000, 40)  # over the end of a chapter of visits
    parts = camera.camera_frames("spot", 3, 1000, 17) + camera.camera_frames("spot", 3, 1017, 23)
    for one, other in zip(whole, parts, strict=True):
        assert torch.equal(one.pixels, other.pixels)
        assert (one.number, one.label, one.condition) == (other.number, other.label, other.condition)
    assert not torch.equal(whole[0].pixels, camera.camera_frames("spot", 4, 1000, 1)[0].pixels)


def test_the_timeline_is_as_written_and_repeats() -> None:
    told = [camera.condition_at(i) for i in range(2 * camera.ROUND)]
    assert told[: camera.ROUND] == [name for name, frames in camera.TIMELINE for _ in range(frames)]
    assert told[camera.ROUND :] == told[: camera.ROUND]


def test_conditions_look_like_their_names() -> None:
    ends, place = {}, 0
    for name, frames in camera.TIMELINE:
        place += frames
        ends[name] = camera.camera_frames("spot", 3, place - 1, 1)[0]
    light = {name: float(frame.pixels.mean()) for name, frame in ends.items()}
    spread = {name: float(frame.pixels.std()) for name, frame in ends.items()}
    assert light["covered lens"] < 0.06 < light["night"] < light["day"] < light["fog"]
    assert spread["fog"] < 0.7 * spread["day"]
    assert ends["covered lens"].label is None
    assert all(frame.label is not None for name, frame in ends.items() if name != "covered lens")


def test_objects_stay_for_a_while_and_the_spot_stays_for_good() -> None:
    frames = camera.camera_frames("spot", 5, 0, 100)
    labels = [frame.label for frame in frames]
    starts = [0] + [i for i in range(1, 100) if labels[i] != labels[i - 1]]
    assert all(later - one >= camera.CAMERAS["spot"].shortest for one, later in itertools.pairwise(starts))
    assert len(set(labels)) > 3
    moved = (frames[1].pixels - frames[0].pixels).abs().amax(0)
    assert 0 < float((moved > 0.02).float().mean()) < 0.5, "the object moves, the ground does not"


def test_night_falls_slowly() -> None:
    night = camera.TIMELINE[0][1]
    light = [float(one.pixels.mean()) for one in camera.camera_frames("spot", 5, night - 1, camera.FADE + 1)]
    assert max(one - other for one, other in itertools.pairwise(light)) < 0.4 * (light[0] - light[-1])


def test_over_a_belt_every_frame_shows_another_object() -> None:
    frames = camera.camera_frames("belt", 5, 0, 40)
    moved = [float((a.pixels - b.pixels).abs().amax(0).gt(0.05).float().mean()) for a, b in itertools.pairwise(frames)]
    assert min(moved) > 0.02
    assert len({frame.label for frame in frames}) > 20
    assert max(frame.label or 0 for frame in frames) >= camera.CAMERAS["spot"].classes
