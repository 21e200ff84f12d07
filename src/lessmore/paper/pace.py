"""Milliseconds and memory of the rows of a table, all in turn on the same images: ratios hold on a busy machine too."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from PIL import Image

import lessmore
from lessmore.data.dataset import Dataset
from lessmore.errors import StateError
from lessmore.lab.job import open_model
from lessmore.lab.spec import RunSpec
from lessmore.models.vlm import VLM
from lessmore.storage.sealed import read_json, write_sealed_json

WARM, TIMED = 3, 12
"""Images before the clock runs, and while it does."""
SCHEMA = "lessmore.pace/1"
_COLUMNS = {"ms", "relative", "state_mb"}
_REMEDY = "remove it, and its rows are measured again"


def measure_pace(specs: Mapping[str, RunSpec], dataset: Dataset, base: str) -> dict[str, dict[str, float]]:
    """What one image costs each row, as `lessmore.adapt` runs it.

    Args:
        specs: A run of every row, by the row's name; all of one model.
        dataset: Where the images come from.
        base: The row that others are set in relation to.

    Returns:
        By row: `ms`, the median; `relative`, the median ratio to the base on the same image; `state_mb`, the size
            of a saved state.
    """
    vlm = open_model(next(iter(specs.values())))
    step = max(1, len(dataset) // (WARM + TIMED))
    images = [dataset.image(i * step) for i in range(min(WARM + TIMED, len(dataset)))]
    adapters = {name: _adapter(vlm, spec, dataset) for name, spec in specs.items()}
    seconds: dict[str, list[float]] = {name: [] for name in adapters}
    names = list(adapters)
    for turn, image in enumerate(images):
        first = turn % len(names)  # whoever comes first finds the image cold
        for name in names[first:] + names[:first]:
            seconds[name].append(_timed(adapters[name], image, vlm.device))
    skipped = min(WARM, len(images) - 1)
    return {name: _pace(own[skipped:], seconds[base][skipped:], adapters[name]) for name, own in seconds.items()}


def write_pace(file: Path, pace: Mapping[str, Mapping[str, float]]) -> None:
    """Keep what `measure_pace` found.

    Args:
        file: Where; a JSON file.
        pace: Its result.

    Raises:
        OSError: The file cannot be written.
    """
    write_sealed_json(file, {"schema": SCHEMA, "rows": pace})


def read_pace(file: Path) -> dict[str, dict[str, float]]:
    """What `write_pace` wrote.

    Args:
        file: The file, which exists.

    Raises:
        StateError: It is damaged or makes no sense.
    """
    rows = read_json(file, SCHEMA, _REMEDY).get("rows")
    if not isinstance(rows, dict) or not all(_is_pace(row) for row in rows.values()):
        raise StateError(f"{file} makes no sense: its rows are no times and sizes; {_REMEDY}")
    return rows


def _is_pace(row: Any) -> bool:
    if not isinstance(row, dict) or row.keys() != _COLUMNS:
        return False
    return all(type(value) is float and math.isfinite(value) and value >= 0 for value in row.values())


def _adapter(vlm: VLM, spec: RunSpec, dataset: Dataset) -> lessmore.Adapter:
    templates = next(iter(dataset.templates.values()), "photo")
    return lessmore.adapt(
        vlm,
        dataset.classes,
        templates=templates,
        method=spec.method,
        reducer=spec.reducer,
        preset=spec.preset,
        R=spec.R,
        **spec.options,
    )


def _timed(adapter: lessmore.Adapter, image: Image.Image, device: torch.device) -> float:
    start = time.perf_counter()
    adapter(image)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _pace(own: Sequence[float], base: Sequence[float], adapter: lessmore.Adapter) -> dict[str, float]:
    ratios = [a / b for a, b in zip(own, base, strict=True)]
    with TemporaryDirectory() as folder:
        file = Path(folder) / "state.safetensors"
        adapter.save(file)
        size = file.stat().st_size
    return {"ms": round(1e3 * median(own), 3), "relative": round(median(ratios), 4), "state_mb": round(size / 2**20, 4)}
