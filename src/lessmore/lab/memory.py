"""Peak memory while something is built and run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch.profiler import ProfilerActivity, profile

Made = TypeVar("Made")


def measure_peak(run: Callable[[], Made], device: torch.device | str = "cpu") -> tuple[Made, int]:
    """What a call returns, and the peak bytes of tensors during it, beyond those that existed before.

    Args:
        run: What to measure.
        device: Whose memory counts.
    """
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        made = run()
        torch.cuda.synchronize()
        return made, torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        made = run()
    changes = sorted(
        (event.start_ns(), event.nbytes())
        for event in record.profiler.kineto_results.events()
        if event.name() == "[memory]"
    )
    held = peak = 0
    for _, change in changes:
        held += change
        peak = max(peak, held)
    return made, peak
