"""Every tower that open_clip can build, on the meta device: imported, or refused with which sentence."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lessmore.core.text import TextShape
from lessmore.core.vit import ViTShape
from lessmore.errors import ModelError
from lessmore.models import load
from lessmore.models.shapes import DINOTXT, SHAPES
from lessmore.models.towers import Towers
from tests.conftest import NoInit

open_clip = pytest.importorskip("open_clip")
EXPECTED: dict[str, str] = json.loads((Path(__file__).parent / "open_clip_towers.json").read_text(encoding="utf-8"))
IMPORTED = "imported"


def outcome(name: str) -> Towers | str:
    """What becomes of a name before anything is downloaded: the towers, or the part of the sentence that says why."""
    try:
        with NoInit():
            return load.inspected(open_clip, open_clip.get_model_config(name))
    except ModelError as error:
        return str(error).split(" cannot be imported")[0]


def plain(shape: ViTShape | TextShape) -> Any:
    """A shape without what costs nothing and the published configurations do not agree on."""
    return replace(shape, blocks=replace(shape.blocks, activation="gelu", eps=1e-5))


def test_every_tower_has_the_outcome_in_the_table() -> None:
    known = {name for name in open_clip.list_models() if name in EXPECTED}
    assert len(known) > 100, "open_clip has other names; write the table again"
    found: dict[str, str] = {}
    for name in sorted(known):
        towers = outcome(name)
        found[name] = towers if isinstance(towers, str) else IMPORTED
        if isinstance(towers, Towers) and name in SHAPES:
            ours = SHAPES[name]
            assert plain(ours[0]) == plain(towers.vision.shape), name
            assert plain(ours[1]) == plain(towers.text.shape), name
    assert found == {name: EXPECTED[name] for name in found}


def test_every_shape_is_a_tower_of_open_clip_that_can_be_imported() -> None:
    assert {EXPECTED[name] for name in SHAPES if name != DINOTXT} == {IMPORTED}


def test_nothing_was_built_for_real() -> None:
    towers = outcome("ViT-B-32")
    assert isinstance(towers, Towers)
    assert towers.vision.positions.device == torch.device("meta")
