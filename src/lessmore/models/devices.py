"""Where a model runs and in which numbers, by name."""

from __future__ import annotations

import torch

from lessmore.errors import ConfigError


def choose_device(name: str) -> torch.device:
    """The device that a name stands for.

    Args:
        name: A device of torch such as `cpu`, `cuda` or `cuda:1`; `auto` is CUDA where there is a GPU, else the CPU.

    Raises:
        ConfigError: There is no such device on this machine.

    Examples:
        >>> choose_device("cpu")
        device(type='cpu')
    """
    try:
        device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"device {name!r} cannot be used ({reason}); take auto or cpu") from error
    return device


DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
"""Types of weights by name."""


def choose_dtype(name: str | torch.dtype) -> torch.dtype:
    """The type of weights that a name stands for.

    Args:
        name: A key of `DTYPES`, or the type itself.

    Raises:
        ConfigError: Towers do not run in this type.

    Examples:
        >>> choose_dtype("bfloat16")
        torch.bfloat16
    """
    known = str(name).removeprefix("torch.")
    if known not in DTYPES:
        raise ConfigError(f"weights cannot be {known}; take {', '.join(DTYPES)}")
    return DTYPES[known]
