"""Where a model runs, by name."""

from __future__ import annotations

import torch

from lessmore.errors import ConfigError


def choose_device(name: str) -> torch.device:
    """The device that a name stands for.

    Args:
        name: A device of torch such as `cpu`, `cuda` or `cuda:1`; `auto` is CUDA where there is a GPU, else the CPU.

    Raises:
        ConfigError: There is no such device on this machine.

    Example:
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
