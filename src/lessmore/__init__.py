"""lessmore: zero-shot image classifiers that get more accurate and cheaper while they run."""

from importlib.metadata import PackageNotFoundError, version

from lessmore.adapter import Adapter, Prediction, adapt
from lessmore.config import list_presets
from lessmore.core.condense.registry import list_reducers
from lessmore.engines import list_engines
from lessmore.engines.answers import Health
from lessmore.methods import list_methods
from lessmore.models.load import load
from lessmore.models.shapes import list_models
from lessmore.models.vlm import VLM

try:
    __version__ = version("lessmore")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0"

__all__ = [
    "VLM",
    "Adapter",
    "Health",
    "Prediction",
    "adapt",
    "list_engines",
    "list_methods",
    "list_models",
    "list_presets",
    "list_reducers",
    "load",
]
