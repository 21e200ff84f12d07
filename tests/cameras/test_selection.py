"""Which frames are answered."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from lessmore.cameras.frame import Frame
from lessmore.cameras.selection import Past, Selection, SelectionRules, differ, is_blank, past_of
from lessmore.errors import ConfigError


def shown(level: int = 90, spot: int | None = None, corrupt: bool = False) -> Frame:
    """A frame of a wall with a dark bar, and something bright on it."""
    pixels = np.full((72, 128, 3), level, np.uint8)
    pixels[30:40] -= 40
    if spot is not None:
        pixels[10:25, spot : spot + 20] = 255
    return Frame(1, lambda: Image.fromarray(pixels), corrupt=corrupt)


def chosen(rules: SelectionRules, frames: list[Frame], clocks: list[float] | None = None) -> list[bool]:
    selection = Selection(rules, Past())
    return [selection.chooses(frame, clock) for frame, clock in zip(frames, clocks or range(len(frames)), strict=True)]


def test_so_many_seconds_and_a_clock_that_jumps() -> None:
    frames = [shown() for _ in range(7)]
    clocks = [0.0, 0.4, 1.0, 1.9, 1000.0, 3.0, 3.5]
    assert chosen(SelectionRules(every=1), frames, clocks) == [True, False, True, False, True, True, False]


def test_motion_is_what_moves_and_no_light() -> None:
    frames = [shown(), shown(), shown(120), shown(60), shown(spot=10), shown(spot=10), shown(spot=70), shown()]
    assert chosen(SelectionRules(motion=True), frames) == [True, False, False, False, True, False, True, True]


def test_scenes_for_tracks() -> None:
    selection, frames = Selection(SelectionRules(track=True), Past()), [shown(), shown(), shown(spot=9), shown(spot=9)]
    assert all(selection.chooses(frame, i) for i, frame in enumerate(frames))
    assert [frame.scene for frame in frames] == [1, 1, 2, 2]


def test_nothing_to_see_is_left_out_and_counted() -> None:
    grey = Frame(1, lambda: Image.new("RGB", (64, 64), (128, 128, 128)))
    selection = Selection(SelectionRules(), Past())
    assert [selection.chooses(one, 0.0) for one in (shown(), grey, shown(corrupt=True))] == [True, False, False]
    assert selection.dropped == {"blank": 1, "corrupt": 1}
    noise = np.random.default_rng(0).integers(0, 12, (720, 1280, 3), dtype=np.uint8)  # a covered lens at high gain
    assert is_blank(Frame(1, lambda: Image.fromarray(noise)).glance)
    assert not is_blank(shown().glance)
    plain = Frame(1, lambda: Image.new("RGB", (64, 64)), file="plain.png")
    assert Selection(SelectionRules(), Past()).chooses(plain, None)


def test_the_past_goes_through_a_file() -> None:
    past = Past(1.5, 3, shown().glance.tobytes())
    facts = json.loads(json.dumps(past.as_facts()))
    assert past_of(facts, live=False) == past
    assert past_of(facts, live=True) == past._replace(chosen=None)
    for wrong in ({**facts, "reference": "%"}, {**facts, "scene": "x"}, {**facts, "reference": "AAAA"}, None, {}):
        with pytest.raises(ValueError, match=r"."):
            past_of(wrong, live=False)


def test_wrong_rules() -> None:
    with pytest.raises(ConfigError, match="0 or more"):
        SelectionRules(every=-1)
    with pytest.raises(ConfigError, match="exclude each other"):
        SelectionRules(motion=True, track=True)


def test_glances_differ_by_cells() -> None:
    one = np.zeros((36, 64), np.uint8)
    other = one.copy()
    other[:1, :23] = 200
    assert not differ(one, other)
    other[:1, :24] = 200
    assert differ(one, other)
