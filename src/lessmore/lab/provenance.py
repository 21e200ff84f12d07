"""Where a result comes from: software, weights, data and machine."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

import lessmore
from lessmore.data.dataset import Dataset
from lessmore.errors import ImageError

_PACKAGES = (
    "numpy",
    "pillow",
    "safetensors",
    "torchmetrics",
    "scipy",
    "transformers",
    "open_clip_torch",
    "imagecorruptions-imaug",
)
_GLANCES = 16


def environment(device: torch.device) -> dict[str, Any]:
    """Versions, commit and hardware; never the names of hosts or users."""
    ours = {"python": platform.python_version(), "lessmore": lessmore.__version__, "torch": torch.__version__}
    return {
        "versions": ours | _versions(),
        "git": _commit(Path(lessmore.__file__).parent),
        "hardware": {"cpu": _cpu(), "cores": os.cpu_count(), "gpu": _gpu(device), "system": platform.platform()},
        "threads": torch.get_num_threads(),
    }


def glance(dataset: Dataset) -> str:
    """Sha256 over the pixels of a few images spread over the data set.

    A data set's fingerprint covers names and labels only. This one tells apart two folders with the same names and
    notices a decoder that works differently, without reading every image.
    """
    digest = hashlib.sha256()
    for index in np.linspace(0, len(dataset) - 1, min(_GLANCES, len(dataset))).round().astype(int):
        try:
            image = dataset.image(int(index))
            digest.update(f"{image.size}".encode() + image.tobytes())
        except ImageError:
            digest.update(b"unreadable")
    return digest.hexdigest()


def watch_memory(device: torch.device) -> None:
    """Start to watch the peak memory of a GPU. A process's own peak cannot be reset."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> float | None:
    """Peak memory so far, in MiB: that of tensors on a GPU, otherwise that of the process since its start."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _commit(folder: Path) -> str | None:
    """The commit of the package's own checkout, with `+` if its files were changed; None if it is not a checkout."""
    try:
        _git(folder, "ls-files", "--error-unmatch", "__init__.py")
        return _git(folder, "rev-parse", "HEAD") + ("+" if _git(folder, "status", "--porcelain", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=20)
    return done.stdout.strip()


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _gpu(device: torch.device) -> str | None:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else None
