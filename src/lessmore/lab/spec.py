"""What the user asks of one run, and how lists of settings become many runs."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from lessmore.assets import MODELS
from lessmore.config import Preset
from lessmore.core.vit import ViTShape
from lessmore.data.corrupt import EXTRA, MAIN
from lessmore.data.orders import plan_stream
from lessmore.data.registry import expand_names
from lessmore.engines import check_engine
from lessmore.engines.precision import COMPUTED
from lessmore.engines.unknown_gate import UnknownRule, checked_rule
from lessmore.errors import ConfigError, unknown
from lessmore.methods import split_options
from lessmore.methods.resolve import resolve

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
"""Types of weights by name."""
NAMED = (*PRECISIONS, "int8")
"""Names accepted by `--precision`."""

# Slowest first: what is loaded for one run serves the next.
AXES = ("model", "precision", "dataset", "templates", "corruption", "order", "seed", "reducer", "preset", "R", "method")
"""Fields for which a grid may give lists."""


@dataclass(frozen=True)
class RunSpec:
    """One run: model × method × reducer × data set × order × seed, and how to do it."""

    model: str
    """Whatever `lessmore.load` takes by name."""
    dataset: str
    """Whatever `lessmore.data.registry.open_dataset` takes."""
    method: str = "tca"
    reducer: str = "auto"
    preset: str = "default"
    R: float | None = None
    """Kept fraction of the tokens; None = the preset's."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Single fields of the preset, such as lam or K, and the method's own."""
    root: str | None = None
    """Folder of the data sets."""
    templates: str | None = None
    """A template set of the data set or of the package, or a text with {}; None = the data set's default."""
    order: str = "iid"
    corruption: str | None = None
    seed: int = 0
    limit: int | float | None = None
    unknown: UnknownRule = "off"
    """Whether unknown images are told from others, as in `lessmore.adapt`: off, auto, or a threshold."""
    engine: str = "auto"
    """One of `lessmore.list_engines()` that answers one image at a time; auto takes the fastest for the device."""
    device: str = "auto"
    precision: str = "float32"
    """Type of the weights; with engine openvino, and for int8, what the engine multiplies in, on float32 weights."""
    calibrate: str | None = None
    """For int8: a folder of images to calibrate on; None takes the first of the stream."""
    workers: int = 0
    """Processes that decode ahead; 0 decodes in the main process. No number depends on it."""

    def __post_init__(self) -> None:
        """Refuse what can be refused before anything is loaded."""
        found = resolve(self.method, self.preset, self.R, self.reducer, self.options)
        object.__setattr__(self, "reducer", found.reducer)
        check_engine(self.engine)
        object.__setattr__(self, "unknown", checked_rule(self.unknown))
        if self.engine == "chunk":
            raise ConfigError("engine 'chunk' answers in batches, a run image by image; take auto or another engine")
        if self.precision not in NAMED:
            raise ConfigError(unknown("precision", self.precision, NAMED))
        if self.computed is not None and self.precision not in COMPUTED:
            raise ConfigError(f"engine 'openvino' computes in {', '.join(COMPUTED)}, not in {self.precision}")
        if self.workers < 0:
            raise ConfigError(f"workers must be 0 or more, not {self.workers}")
        plan_stream(self.order, self.corruption)

    @property
    def computed(self) -> str | None:
        """What the engine multiplies in, where the weights do not say it."""
        return self.precision if self.engine == "openvino" or self.precision == "int8" else None

    @property
    def weights(self) -> torch.dtype:
        """Type of the model's weights."""
        return torch.float32 if self.computed is not None else PRECISIONS[self.precision]

    def settings(self, shape: ViTShape | None = None) -> Preset:
        """The preset with this run's R, options and reducer, fitted to a tower if one is given."""
        return resolve(self.method, self.preset, self.R, self.reducer, self.options, shape).preset

    def own_options(self) -> dict[str, Any]:
        """Those of the options that belong to the method."""
        own, _ = split_options(self.method, self.options)
        return own


def grid_runs(asked: Mapping[str, Any]) -> list[RunSpec]:
    """All runs of a grid. Every field of `AXES` may be a list; data set names may be groups or patterns.

    In a list of corruptions, `none` stands for no corruption.
    """
    known = [f.name for f in fields(RunSpec)]
    for name in asked:
        if name not in known:
            raise ConfigError(unknown("setting", name, known))
    axes = {name: _listed(asked[name]) for name in AXES if name in asked}
    if "dataset" in axes:
        axes["dataset"] = expand_names(axes["dataset"])
    if "corruption" in axes:
        axes["corruption"] = [None if value == "none" else value for value in axes["corruption"]]
    rest = {name: value for name, value in asked.items() if name not in AXES}
    missing = [name for name in ("model", "dataset") if not axes.get(name)]
    if missing:
        raise ConfigError(f"there is no {missing[0]}; give at least one")
    chosen = itertools.product(*axes.values())
    return [RunSpec(**rest, **dict(zip(axes, values, strict=True))) for values in chosen]


def check_packages(specs: Iterable[RunSpec]) -> None:
    """Refuse a grid in which any run lacks a package, before the first one starts. Nothing is imported.

    Args:
        specs: All runs of the grid.

    Raises:
        ConfigError: A package is missing; the message names the extra.
    """
    for package, extra in dict.fromkeys(need for spec in specs for need in _packages(spec)):
        if importlib.util.find_spec(package) is None:
            raise ConfigError(f"some of these runs need {package}; install it with: pip install 'lessmore[{extra}]'")


def _packages(spec: RunSpec) -> Iterator[tuple[str, str]]:
    """Packages that a run imports when it needs them, each with its extra."""
    yield from (("scipy", "metrics"), ("torchmetrics", "metrics"))
    words = f"{spec.order},{spec.corruption}".replace(":", ",").split(",")
    if spec.order.startswith(("gradual", "cycle")) or not {*MAIN, *EXTRA}.isdisjoint(words):
        yield "imagecorruptions", "corrupt"
    if spec.model.startswith("open_clip:"):
        yield "open_clip", "open-clip"
    elif spec.model not in MODELS and not (Path(spec.model) / "open_clip_config.json").is_file():
        yield "transformers", "hf"
    if spec.dataset.startswith("hf:"):
        yield "datasets", "hf-data"


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
