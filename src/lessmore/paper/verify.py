"""`lessmore reproduce verify`: the paper's headline cells with the user's model, and whether ours contain the paper's.

One value of JSON holds everything the page shows. It follows from the runs alone, so a command that was killed and
continued gives the same bytes; it contains no path and no time of day.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lessmore.core.text import TextShape
from lessmore.core.vit import ViTShape
from lessmore.data.registry import expand_names, spec_of
from lessmore.errors import ConfigError
from lessmore.lab.job import open_model
from lessmore.lab.spec import RunSpec
from lessmore.models.shapes import SHAPES, Shapes
from lessmore.paper.compare import compare
from lessmore.paper.measured import PaperCell
from lessmore.paper.plan import ReproductionRequest, TablePlan
from lessmore.paper.tables import TABLES, TableSpec

VERIFY = "verify"
VERIFY_TITLE = "the paper's headline cells with your model, and whether they agree"
VERIFY_SCHEMA = "lessmore.verify/1"
FEWEST = 30
"""Images below which a cell gets no verdict."""
_ROUNDING = 0.005  # the paper prints two decimals
_TDA = ("TDA", "TDA, tuned")
_CROSS = ("CLIP", *_TDA, "EViT R=0.9", "EViT R=0.7", "TCA R=0.9", "TCA R=0.7")
_HEADLINES: Mapping[str, tuple[str, ...]] = {
    "cross-dataset": _CROSS,
    "cross-dataset-l14": _CROSS,
    "ood": ("CLIP", *_TDA, "EViT, drop 0.05", "EViT, drop 0.06", "TCA R=0.95"),
    "siglip": ("SigLIP", "TCA R=0.9"),
    "siglip2": ("SigLIP v2", "TCA R=0.9"),
}
"""Tables with headline cells, and the rows that hold them."""
_MODELS: Mapping[str, tuple[str, ...]] = {
    "ViT-B-16": ("cross-dataset", "ood"),
    "ViT-L-14": ("cross-dataset-l14",),
    "ViT-B-16-SigLIP": ("siglip",),
    "ViT-B-16-SigLIP2": ("siglip2",),
}
"""The paper's models, by the names of their shapes, and the tables that each has."""


@dataclass(frozen=True)
class VerifiedModel:
    """The model that is verified, and which of the paper's it is compared with: the one of the most similar shape."""

    paper: str
    """Name of that model's shape."""
    gaps: tuple[str, ...]
    """Where the architectures differ, in words; empty where they are the same."""
    weights: str
    """Fingerprint; empty for a shape without weights."""

    @property
    def tables(self) -> list[TableSpec]:
        """The tables of the paper's model, each with its headline rows alone."""
        named = [(TABLES[name], _HEADLINES[name]) for name in _MODELS[self.paper]]
        return [replace(table, rows=tuple(row for row in table.rows if row.name in rows)) for table, rows in named]


def look_at_model(request: ReproductionRequest) -> VerifiedModel:
    """Open the model and see what it is.

    Args:
        request: What the user asked for; the model may be the name of a shape, or empty for the paper's first.

    Raises:
        ModelError: The model cannot be read.
    """
    if not request.model or request.model in SHAPES:
        return compared_with(SHAPES[request.model or next(iter(_MODELS))], "")
    common = {name: request.common[name] for name in ("device", "precision") if name in request.common}
    vlm = open_model(RunSpec(request.model, "", **common))
    return compared_with((vlm.vision.shape, vlm.text.shape), vlm.fingerprint())


def compared_with(shapes: Shapes, weights: str) -> VerifiedModel:
    """The paper's model that differs least from towers of some shapes.

    Args:
        shapes: Of vision and text tower.
        weights: Fingerprint of the model.
    """
    gaps = {name: _gaps(shapes, SHAPES[name]) for name in _MODELS}
    paper = min(gaps, key=lambda name: len(gaps[name]))
    return VerifiedModel(paper, gaps[paper], weights)


def _gaps(ours: Shapes, theirs: Shapes) -> tuple[str, ...]:
    pairs = zip(_facts(*ours).items(), _facts(*theirs).values(), strict=True)
    return tuple(f"{name.replace('_', ' ')} {own} ({other})" for (name, own), other in pairs if own != other)


def _facts(vision: ViTShape, text: TextShape) -> dict[str, Any]:
    """What tells architectures apart, not how a library writes it down: hosts differ in GELU's approximation."""
    flat = {**asdict(vision), **asdict(vision.blocks)}
    del flat["blocks"], flat["eps"]
    flat["activation"] = flat["activation"].removesuffix("_tanh")
    words = {"text vocabulary": text.vocab, "text context": text.context}
    return {**flat, **words, "text width": text.blocks.width, "text depth": text.blocks.depth}


def tables_to_verify(model: VerifiedModel, request: ReproductionRequest) -> list[TableSpec]:
    """The headline tables, of the data sets that were asked for.

    Args:
        model: The model.
        request: What the user asked for; without data sets, all of the paper's.

    Raises:
        ConfigError: The paper has no number for what was asked.
    """
    if request.corruptions or request.orders:
        raise ConfigError("verify runs the paper's own streams; leave out --corruption and --order")
    wanted = set(expand_names(request.datasets))
    known = {name for table in model.tables for name in table.datasets}
    foreign = sorted(wanted - known)
    if foreign:
        raise ConfigError(f"the paper has no headline cell on {foreign[0]}; take some of {', '.join(sorted(known))}")
    chosen = [replace(table, only=tuple(n for n in table.datasets if n in wanted)) for table in model.tables]
    return [table for table in chosen if table.only] if wanted else model.tables


def verdict(estimate: Sequence[float], paper: float, images: int) -> dict[str, Any]:
    """Whether the paper's number lies in our 95 % interval.

    Args:
        estimate: Ours as [value, low, high], in percent.
        paper: The paper's, in percent.
        images: How many images are behind ours.

    Returns:
        `verdict` (`within`, `differs` or `too few images`) and `interval`, the one that decided.
    """
    value, low, high = estimate
    if low == high:  # no answer differed, so that resampling finds no width: the exact bound for all or none
        reach = 100 * (1 - 0.05 ** (1 / max(images, 1)))
        low, high = max(value - reach, 0.0), min(value + reach, 100.0)
    inside = low - _ROUNDING <= paper <= high + _ROUNDING
    word = "too few images" if images < FEWEST else "within" if inside else "differs"
    return {"verdict": word, "interval": [round(low, 4), round(high, 4)]}


def verification(
    model: VerifiedModel,
    parts: Sequence[tuple[TablePlan, Mapping[tuple[int, int], PaperCell]]],
    request: ReproductionRequest,
    failed: Sequence[str],
) -> dict[str, Any]:
    """Everything the page shows, as JSON.

    Args:
        model: The model.
        parts: The tables' plans, each with its results by (row, column).
        request: What the user asked for.
        failed: Runs that failed, each with the reason.
    """
    values = [_judged(compare(plan, cells, request, ()), plan, cells) for plan, cells in parts]
    limit = request.common.get("limit")
    return {
        "schema": VERIFY_SCHEMA,
        "table": VERIFY,
        "model": Path(request.model).name,
        "weights": model.weights,
        "paper_model": values[0]["paper"]["model"],
        "gaps": list(model.gaps),
        "limit": limit,
        "datasets": list(request.datasets),
        "data": {name: facts for plan, cells in parts for name, facts in _data(plan, cells)},
        "missing": {name: _needed(name) for plan, _ in parts for name in plan.missing},
        "failed": [_without_places(reason, request) for reason in failed],
        "parts": values,
    }


def _without_places(text: str, request: ReproductionRequest) -> str:
    """A reason without where data and model lie on this machine."""
    places = {request.model: Path(request.model).name}
    places |= {} if request.root is None else {str(request.root.absolute()): "DATA", str(request.root): "DATA"}
    for place, name in places.items():
        text = text.replace(place, name) if len(Path(place).parts) > 1 else text
    return text


def _judged(value: dict[str, Any], plan: TablePlan, cells: Mapping[tuple[int, int], PaperCell]) -> dict[str, Any]:
    """A table with a verdict in every cell that the paper has too, and without the time of day."""
    value["provenance"].pop("made")
    sizes = [max((len(c.values.images) for (_, k), c in cells.items() if k == j), default=0) for j in _numbers(plan)]
    for row in value["rows"]:
        for cell, images in zip(row["cells"], sizes, strict=True):
            _judge(cell, images)
        for name, cell in row["averages"].items():
            _judge(cell, sum(sizes[j] for j in value["averages"][name]))
    return value


def _numbers(plan: TablePlan) -> range:
    return range(len(plan.columns))


def _judge(cell: dict[str, Any], images: int) -> None:
    known = cell["paper"] is not None and "accuracy" in cell
    cell |= verdict(cell["accuracy"], cell["paper"], images) if known else {"verdict": None}


def _data(plan: TablePlan, cells: Mapping[tuple[int, int], PaperCell]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What every data set was: counts and hashes, beside the published count."""
    for j, column in enumerate(plan.columns):
        own = [cell for (_, k), cell in cells.items() if k == j]
        if own:
            found = own[0].summaries[0]["dataset"]
            used = {"used": len(own[0].values.images), "published": spec_of(column.dataset).images}
            kept = {name: found[name] for name in ("images", "classes", "fingerprint", "pixels", "note")}
            yield column.dataset, used | kept


def _needed(name: str) -> str:
    """What is needed of a data set that is not there."""
    known = spec_of(name)
    place = next((folder for folder in known.folders if folder), "")
    split = f" and the list {known.split}" if known.split else ""
    return f"{known.images:,} images in {place}{split} below --root; get {known.source}"
