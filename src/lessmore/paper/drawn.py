"""The paper's figures for the user's model and data: a run's stream and settings become the input of a figure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from lessmore.data.registry import expand_names
from lessmore.errors import ConfigError
from lessmore.lab.job import open_model, prepare_job
from lessmore.lab.spec import RunSpec
from lessmore.paper.figures import FIGURES, Request, save_figure
from lessmore.paper.plan import Column, DatasetCache, ReproductionRequest

_USUAL = {"ood-samples": "imagenet_r"}
"""Data sets that figures use by default; all others use eurosat."""


def draw_figures(name: str, request: ReproductionRequest, folder: Path) -> Iterator[list[Path] | str]:
    """Draw a figure for every stream asked for, each with its first seed.

    Args:
        name: A name of `FIGURES`.
        request: Model, data sets, corruptions and settings.
        folder: Where the files go.

    Yields:
        The files of each figure, or the reason why there are none.

    Raises:
        ConfigError: A data set that the user named cannot be opened.
    """
    figure, datasets, vlm = FIGURES[name], DatasetCache(request.root), None
    names = expand_names(request.datasets or [_USUAL.get(name, "eurosat")])
    columns = [Column(dataset, bad) for bad in request.corruptions or (None,) for dataset in names]
    for column in columns:
        dataset = datasets(column.dataset)
        if isinstance(dataset, str):
            if request.datasets:
                raise ConfigError(dataset)
            yield dataset
            continue
        where = {"model": request.model, "dataset": column.dataset, "corruption": column.corruption}
        where |= {"order": request.orders[0]} if request.orders else {}
        spec = RunSpec(**{**request.common, **where, "seed": request.seeds[0]})
        vlm = vlm or open_model(spec)
        job = prepare_job(spec, vlm, dataset)
        most = figure.images if spec.limit is None else len(job.stream)
        drawn = figure.draw(Request.from_job(job, most))
        yield save_figure(
            drawn, folder, name if len(columns) == 1 else _file_name(name, dataset.name, column.corruption)
        )


def _file_name(figure: str, dataset: str, corruption: str | None) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(part for part in (figure, dataset, corruption) if part))
