"""The one `openvino.Core` of a process, kept away from the signals of its threads.

Loading OpenVINO's plugin for processors gives the loading thread another stack for signals, and unloading it takes that
memory away. Where several are unloaded in another order than they were loaded in, the thread is left with a stack that
is gone, and the next signal that Python handles (Ctrl-C, SIGTERM) ends the process without a word. So there is one
core, it stays, and what loads the plugin runs in a thread that ends.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

from lessmore.engines.availability import import_without_telemetry

T = TypeVar("T")


@cache
def openvino_core() -> Any:
    """The core, with the plugin for processors loaded; `openvino` has no complete types."""
    core = import_without_telemetry("openvino").Core()
    in_own_thread(lambda: core.get_property("CPU", "FULL_DEVICE_NAME"))
    return core


def in_own_thread(work: Callable[[], T]) -> T:
    """Do some work in a new thread, and wait for it.

    Args:
        work: The work; whatever it raises is raised here.
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()
