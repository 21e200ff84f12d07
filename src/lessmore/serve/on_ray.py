"""`lessmore serve --ray N`: N replicas of the same application under Ray Serve, and this process before them.

To Ray, a stream is a multiplexed model: its requests go to the replica that has it in memory, as long as that one lives
and has room. Where Ray takes another one, that replica takes the stream over (`objectstore`), so that two never write.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from lessmore.errors import ConfigError
from lessmore.serve.front import Front
from lessmore.serve.guard import BodyGuard
from lessmore.serve.replica import Replica
from lessmore.serve.run import StoppingServer, listening, set_up_logs, tell_start
from lessmore.serve.settings import ServerSettings

_NAME = "lessmore"


def serve_on_ray(settings: ServerSettings, classes: list[str], announce: Callable[[str], None]) -> int:
    """Run replicas until told to stop.

    Args:
        settings: All settings.
        classes: The class list of streams that bring none.
        announce: Called with the address once it answers.

    Returns:
        An exit code.

    Raises:
        ConfigError: Ray is not installed or has too few cores, or the replicas could not share their streams.
    """
    check_shared(settings)
    set_up_logs(settings)
    with listening(settings) as listener, _replicas(settings, classes) as handle:
        front = Front(handle, settings)
        tell_start(settings, listener, announce)
        app = BodyGuard(front, settings, front.metrics)
        asyncio.run(StoppingServer(app, front, lifespan="off").serve(sockets=[listener]))
    return 0


def check_shared(settings: ServerSettings) -> None:
    """Refuse settings with which replicas could not hand their streams over.

    Args:
        settings: All settings.

    Raises:
        ConfigError: The journal, the store or the registry is not one that replicas can share.
    """
    if settings.durability != "journal":
        raise ConfigError("replicas hand streams over by their journals; give --durability journal")
    if "://" not in settings.store_place() or settings.db is None:
        raise ConfigError("replicas share a store and a registry; give URLs, such as --store file:///folder --db URL")


@contextmanager
def _replicas(settings: ServerSettings, classes: list[str]) -> Iterator[Any]:
    """A handle of running replicas; Ray joins the cluster of RAY_ADDRESS, or starts one of its own."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray reports usage to its makers by default
    try:
        import ray
        from ray import serve
    except ImportError as error:
        raise ConfigError("replicas need Ray Serve; pip install 'lessmore[ray]'") from error
    ray.init(include_dashboard=False, log_to_driver=False)
    try:
        cores = int(ray.cluster_resources().get("CPU", 0))
        if cores < settings.ray:
            raise ConfigError(f"{settings.ray} replicas need a core each, and Ray has {cores}; give a smaller --ray")
        serve.start(proxy_location="Disabled")
        yield serve.run(_deployment(settings, classes), name=_NAME, route_prefix=None)
        serve.shutdown()
    finally:
        ray.shutdown()


def _deployment(settings: ServerSettings, classes: list[str]) -> Any:
    from ray import serve

    return serve.deployment(
        Replica,
        num_replicas=settings.ray,
        ray_actor_options={"num_cpus": 1, "num_gpus": _gpu_share(settings)},
        max_ongoing_requests=settings.queue_total + 64,  # the replica's own limits answer first, with their own errors
        health_check_period_s=2,
        graceful_shutdown_timeout_s=settings.grace,
    ).bind(asdict(settings), classes)


def _gpu_share(settings: ServerSettings) -> float:
    """What each replica gets of a GPU; where there are fewer than replicas, some of them share one."""
    import ray

    gpus = int(ray.cluster_resources().get("GPU", 0))
    on_gpu = settings.device == "auto" or settings.device.startswith("cuda")
    return 1 / math.ceil(settings.ray / gpus) if on_gpu and gpus else 0
