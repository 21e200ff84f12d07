"""In which numbers an engine multiplies, where that is another type than the weights have."""

from __future__ import annotations

import hashlib
from typing import Literal

import torch
from torch import Tensor

from lessmore.errors import ConfigError, unknown

Precision = Literal["float32", "bfloat16", "int8"] | str
"""What `adapt(precision=...)` takes, for editors to complete."""
COMPUTED = ("float32", "bfloat16", "int8")
"""Names accepted by `precision=`."""


def name_of(dtype: torch.dtype) -> str:
    """A type as users write it, such as `float32`."""
    return str(dtype).removeprefix("torch.")


def check_precision(engine: str, precision: str | None, weights: torch.dtype) -> None:
    """Refuse a precision that an engine does not compute in.

    Args:
        engine: Name of the engine, not `auto`.
        precision: One of `COMPUTED`; None is the type of the weights, which every engine computes in.
        weights: Type of the weights.

    Raises:
        ConfigError: The precision is unknown, or not the engine's; the message names the remedy.
    """
    own = name_of(weights)
    if precision is None or precision == own:
        return
    if precision not in COMPUTED:
        raise ConfigError(unknown("precision", precision, COMPUTED))
    if engine == "openvino" or (engine == "cpu" and (own, precision) == ("float32", "bfloat16")):
        return
    remedy = "take engine='openvino'" if precision == "int8" else f"load the weights with dtype={precision!r}"
    raise ConfigError(f"engine {engine!r} computes in the type of the weights, {own}, and not in {precision}; {remedy}")


def precision_key(precision: str, calibration: Tensor | None) -> str:
    """What a state or run must share to be continued: the precision, and what int8 was calibrated on, by content.

    Args:
        precision: Its name.
        calibration: Preprocessed images, `[N, 3, H, W]`, for int8.
    """
    return precision if precision != "int8" or calibration is None else f"int8/{pixels_digest(calibration)[:16]}"


def pixels_digest(pixels: Tensor) -> str:
    """SHA-256 over preprocessed images `[N, 3, H, W]`."""
    digest = hashlib.sha256(str(tuple(pixels.shape)).encode())
    digest.update(pixels.detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
