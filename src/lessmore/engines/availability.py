"""What this machine can run."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from typing import Any


@functools.cache
def has_openvino() -> bool:
    """Whether OpenVINO is installed."""
    return importlib.util.find_spec("openvino") is not None


@functools.cache
def has_triton() -> bool:
    """Whether Triton is installed, which the CUDA kernels are written in."""
    return importlib.util.find_spec("triton") is not None


def import_without_telemetry(name: str) -> Any:
    """A module of OpenVINO or NNCF, which would otherwise report to their makers that and how they are used.

    They find their package for that missing. Where they were imported before, nothing changes.

    Args:
        name: The module.
    """
    missing = object()
    before: Any = sys.modules.get("openvino_telemetry", missing)
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]  # how Python marks a module as absent
    try:
        return importlib.import_module(name)
    finally:
        if before is missing:
            del sys.modules["openvino_telemetry"]
        else:
            sys.modules["openvino_telemetry"] = before
