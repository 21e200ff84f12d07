"""All cameras of a server: their streams and their tasks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from lessmore.errors import ConfigError
from lessmore.serve.answer import flat_names
from lessmore.serve.cameras.entries import ServedCamera, owner_of
from lessmore.serve.cameras.feed import Feed
from lessmore.serve.cameras.outputs import Outputs
from lessmore.serve.registry import StreamRow
from lessmore.serve.service import Service
from lessmore.serve.store import check_unused

ENDING = 5.0
"""Seconds in which cameras let go of what they hold."""


class Feeds:
    """Made before the server listens, so that whatever is wrong is said at the start."""

    def __init__(self, service: Service, cameras: Sequence[ServedCamera], keys: Sequence[str]) -> None:
        """Make the streams that are not there yet.

        Args:
            service: The server's work, not started yet.
            cameras: The cameras.
            keys: Names of the server's keys.

        Raises:
            ConfigError: A camera's stream cannot be made, or is there with other settings.
        """
        rows = [_stream_of(service, camera, owner_of(camera, keys)) for camera in cameras]
        self._service, self._outputs = service, Outputs(cameras)
        self.feeds = [Feed(service, row, one, self._outputs) for row, one in zip(rows, cameras, strict=True)]
        service.metrics.cameras.update({feed.row.id: feed.facts for feed in self.feeds})

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Watch all cameras inside the block."""
        hands = ThreadPoolExecutor(1, "outputs")
        tasks = [asyncio.create_task(feed.run(hands)) for feed in self.feeds]
        try:
            yield
        finally:
            for feed in self.feeds:
                feed.stop()
            if tasks:
                await asyncio.wait(tasks, timeout=ENDING)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.get_running_loop().run_in_executor(hands, self._outputs.close)
            hands.shutdown()


def _stream_of(service: Service, camera: ServedCamera, owner: str) -> StreamRow:
    """A camera's stream, made where there is none."""
    config = service.stream_config(camera.entry.config)
    try:
        service.streams.template(config)  # whatever cannot be used is refused here
    except ConfigError as error:
        raise ConfigError(f"camera {camera.stream}: {error}") from error
    row = service.registry.find(camera.stream)
    if row is None:
        row = StreamRow(camera.stream, owner, camera.entry.name, config)
        check_unused(service.streams.store, row.id)
        service.registry.add(row)
    elif row.owner != owner or _text(row.config) != _text(config):
        raise ConfigError(
            f"camera {camera.stream}: there is a stream {camera.stream} with {_difference(row, config)}; write its "
            "settings into the entry, delete the stream, or give the camera another one"
        )
    return row


def _text(config: object) -> str:
    return json.dumps(config, sort_keys=True)


def _difference(row: StreamRow, config: dict[str, object]) -> str:
    """What is different about a stream that is there already."""
    different = [name for name in config if _text(row.config.get(name)) != _text(config[name])]
    if not different:
        return "another key as its owner"
    (name, *_) = different
    if name != "classes":
        return f"{name} {row.config.get(name)!r}"
    return f"{len(flat_names(row.config.get('classes', [])))} other classes"
