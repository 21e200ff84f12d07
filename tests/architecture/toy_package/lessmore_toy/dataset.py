"""A data set: plain squares in a folder, one sub-folder for each colour."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lessmore.data.dataset import Dataset
from lessmore.data.folder import read_folder
from lessmore.data.registry import register_dataset
from lessmore.data.spec import Spec

COLOURS = Spec(name="toy-colours", title="Toy colours", images=2, classes=("blue", "red"), folders=("colours",))


@register_dataset(COLOURS)
def read_colours(spec: Spec, root: Path) -> Dataset:
    """The folder below the root."""
    return replace(read_folder(root / spec.folders[0]), name=spec.name)
