"""What works on this machine: packages, engines, and a self-test against golden answers."""

from __future__ import annotations

import importlib.util
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

import lessmore
from lessmore.assets import shifts, world
from lessmore.engines import graph_unusable, list_engines

EXTRAS: dict[str, tuple[str, ...]] = {
    "open-clip": ("open_clip_torch",),
    "hf": ("transformers",),
    "data": ("torchvision",),
    "hf-data": ("datasets",),
    "corrupt": ("imagecorruptions-imaug",),
    "report": ("matplotlib",),
    "metrics": ("torchmetrics", "scipy"),
    "results": ("pandas",),
    "tensorboard": ("tensorboard",),
    "completion": ("shtab",),
    "sweep": ("ray",),
    "export": ("onnx", "onnxscript", "onnxruntime"),
    "openvino": ("openvino", "nncf"),
    "serve": ("fastapi", "uvicorn", "prometheus-client", "sqlalchemy", "fsspec", "python-multipart"),
    "camera": ("av", "paho-mqtt"),
    "ray": ("ray",),
    "traces": ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"),
}
"""Packages of every extra that a user may want."""
GOLDEN: tuple[tuple[str, float], ...] = (
    ("pink outlined mushroom", 0.9982),
    ("purple dotted cup", 0.5344),
    ("pink outlined mushroom", 0.9999),
    ("brown outlined mushroom", 0.9728),
    ("purple outlined cup", 0.9976),
    ("purple speckled flower", 0.9162),
    ("purple speckled flower", 0.3557),
    ("purple dotted cup", 0.5991),
    ("pink outlined mushroom", 0.7882),
    ("purple outlined cup", 0.9857),
    ("purple dotted cup", 0.3697),
    ("brown outlined mushroom", 0.9997),
)
"""Label and confidence of the images of `test_images`, in their order, by the embedded model and preset `default`."""
TOLERANCE = 0.01
_IMAGES, _SEED = 12, 7


@dataclass(frozen=True)
class EngineCheck:
    """One engine."""

    name: str
    works: bool
    says: str
    """What the self-test found, or why the engine cannot be used here."""


def installed() -> dict[str, dict[str, str | None]]:
    """Versions of the packages of every extra, None where one is missing."""
    return {extra: {name: _version(name) for name in names} for extra, names in EXTRAS.items()}


def check_engines() -> list[EngineCheck]:
    """Every engine with golden answers, where it can run at all."""
    return [check_one_engine(name) for name in list_engines() if name != "auto"]


def check_one_engine(name: str) -> EngineCheck:
    """An engine's answers to a short stream beside the golden ones.

    Args:
        name: One of `list_engines()`, not `auto`.
    """
    vlm = lessmore.load("tiny", device="cuda" if name == "graph" and torch.cuda.is_available() else None)
    condensation = lessmore.adapt(vlm, _classes(), cache=False).preset.condensation
    why = graph_unusable("tca", vlm.vision, condensation) if name == "graph" else None
    if why:
        return EngineCheck(name, False, why)
    try:
        found = answers(name, vlm)
    except Exception as error:  # a broken driver or package may raise anything, and this is where one asks
        return EngineCheck(name, False, f"{type(error).__name__}: {error}")
    wrong = sum(a[0] != b[0] or abs(a[1] - b[1]) > TOLERANCE for a, b in zip(found, GOLDEN, strict=True))
    return EngineCheck(name, not wrong, f"{len(GOLDEN) - wrong} of {len(GOLDEN)} golden answers")


def answers(engine: str, model: Any = "tiny") -> list[tuple[str, float]]:
    """Label and confidence of every test image, as a stream.

    Args:
        engine: Name of the engine.
        model: The embedded model, or its name.
    """
    adapter = lessmore.adapt(model, _classes(), engine=engine, cache=False)
    scene = world.world_sample(_IMAGES, _SEED, world.test_classes(6, seed=3))
    images, _ = shifts.draw_shifted(scene, "background", 5)
    return [(one.label, round(one.confidence, 4)) for one in adapter.stream(list(images))]


def machine() -> dict[str, Any]:
    """Interpreter, system and device, in words."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "lessmore": lessmore.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "gpu": gpu,
        "triton": importlib.util.find_spec("triton") is not None,
    }


def _classes() -> list[str]:
    return world.world_class_names(world.test_classes(6, seed=3))


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
