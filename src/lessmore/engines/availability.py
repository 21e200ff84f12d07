"""What this machine can run."""

from __future__ import annotations

import functools
import importlib.util


@functools.cache
def has_triton() -> bool:
    """Whether Triton is installed, which the CUDA kernels are written in."""
    return importlib.util.find_spec("triton") is not None
