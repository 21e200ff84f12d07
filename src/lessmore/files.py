"""Writing files so that a crash leaves the old one or the new one, never half of one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor


def write_safetensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write tensors beside `path`, then move them there; folders are made. Raises OSError where that cannot be done."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        save_file({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, name, metadata)
        with open(name, "rb") as written:
            os.fsync(written.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
