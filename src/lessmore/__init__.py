"""lessmore: zero-shot image classifiers that get more accurate and cheaper while they run."""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lessmore.adapter import Adapter, adapt
    from lessmore.config import list_presets
    from lessmore.core.condense.registry import list_reducers
    from lessmore.engines import list_engines
    from lessmore.engines.answers import Health
    from lessmore.lab.results import results
    from lessmore.methods import list_methods
    from lessmore.models.load import load
    from lessmore.models.shapes import list_models
    from lessmore.models.vlm import VLM
    from lessmore.pipelines import pipeline
    from lessmore.prediction import Prediction
    from lessmore.streams import Streams

try:
    __version__ = version("lessmore")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0"

__all__ = [
    "VLM",
    "Adapter",
    "Health",
    "Prediction",
    "Streams",
    "adapt",
    "list_engines",
    "list_methods",
    "list_models",
    "list_presets",
    "list_reducers",
    "load",
    "pipeline",
    "results",
]

# Imported on first use: torch takes a second and half a gigabyte, which `lessmore --help` need not pay.
_HOMES = {
    "VLM": "models.vlm",
    "Adapter": "adapter",
    "Health": "engines.answers",
    "Prediction": "prediction",
    "Streams": "streams",
    "adapt": "adapter",
    "list_engines": "engines",
    "list_methods": "methods",
    "list_models": "models.shapes",
    "list_presets": "config",
    "list_reducers": "core.condense.registry",
    "load": "models.load",
    "pipeline": "pipelines",
    "results": "lab.results",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'lessmore' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"lessmore.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
