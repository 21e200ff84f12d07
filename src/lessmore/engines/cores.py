"""How many threads a process should compute with: the physical cores it may really use."""

from __future__ import annotations

import os
from pathlib import Path

import torch


def usable_cores(system: Path = Path("/sys")) -> int:
    """Physical cores this process may run on, at most its container's CPU quota and at least 1.

    Two threads on one physical core share its arithmetic units, and threads beyond a quota are suspended in the middle
    of a product.
    """
    may_run = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = {_core(cpu, system) for cpu in may_run}
    return max(1, min(len(cores), _quota(system / "fs" / "cgroup") or len(cores)))


def limit_threads() -> None:
    """Lower torch's thread count to `usable_cores`; a smaller count that somebody chose stays."""
    cores = usable_cores()
    if torch.get_num_threads() > cores:
        torch.set_num_threads(cores)


def _core(cpu: int, system: Path) -> str:
    """A name that processors on one physical core share."""
    try:
        siblings = system / "devices" / "system" / "cpu" / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        return siblings.read_text(encoding="utf-8").strip()
    except OSError:
        return str(cpu)


def _quota(group: Path) -> int | None:
    """Whole cores a control group (version 2, or 1) grants; None where it sets no limit."""
    try:
        if (group / "cpu.max").is_file():
            time, period = (group / "cpu.max").read_text(encoding="utf-8").split()
        else:
            time, period = (
                (group / "cpu" / f"cpu.cfs_{part}_us").read_text(encoding="utf-8") for part in ("quota", "period")
            )
        return None if time == "max" or int(time) < 0 else max(1, int(time) // int(period))
    except (OSError, ValueError):
        return None
