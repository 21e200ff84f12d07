"""What Prometheus reads. docs/operations.md says what each of these means and when to worry."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)


class _CameraFigures:
    """Figures of cameras as they are when somebody asks; their readers count in threads of their own."""

    def __init__(self, cameras: dict[str, Callable[[], dict[str, Any]]]) -> None:
        self._cameras = cameras

    def collect(self) -> Iterator[Metric]:
        """All of them."""
        text = "Frames of cameras by what became of them"
        frames = CounterMetricFamily("lessmore_camera_frames", text, labels=["stream", "what"])
        opened = CounterMetricFamily("lessmore_camera_reconnects", "Times a camera was opened again", labels=["stream"])
        live = GaugeMetricFamily("lessmore_camera_live", "1 if frames of the camera come", labels=["stream"])
        for stream, report in self._cameras.items():
            facts = report()
            for what, count in {"answered": facts["answered"], "failed": facts["failed"], **facts["dropped"]}.items():
                frames.add_metric([stream, what], count)
            opened.add_metric([stream], facts["reconnects"])
            live.add_metric([stream], facts["condition"] == "live")
        yield from (frames, opened, live)


class Metrics:
    """All figures of one server."""

    def __init__(self) -> None:
        self.collectors = CollectorRegistry()

        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(f"lessmore_{name}", text, labels, registry=self.collectors)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"lessmore_{name}", text, registry=self.collectors)

        def seconds(name: str, text: str) -> Histogram:
            return Histogram(f"lessmore_{name}_seconds", text, buckets=_SECONDS, registry=self.collectors)

        self.requests = counter("requests", "Requests by route and status", ("route", "code"))
        self.errors = counter("errors", "Errors by type", ("type",))
        self.images = counter("images", "Images answered")
        self.changed = counter("changed", "Answers that adaptation changed")
        self.refused = counter("refused", "Adapted answers that were not finite and were replaced by the plain model's")
        self.domain_changes = counter("domain_changes", "Changes of domain that streams noticed")
        self.journal_bytes = counter("journal_bytes", "Bytes written to journals")
        self.snapshots = counter("snapshots", "Snapshots written")
        self.evictions = counter("evictions", "Streams that left memory for others")
        self.queue = gauge("queue_depth", "Images that wait")
        self.resident = gauge("resident_streams", "Streams in memory")
        self.stored = gauge("stored_streams", "Streams in the registry")
        self.bodies = gauge("body_bytes", "Bytes of request bodies that are held")
        self.ready = gauge("ready", "1 if the last forward pass of the readiness check was good")
        self.request = seconds("request", "From the head of a request to the end of its answer")
        self.wait = seconds("wait", "From acceptance of an image to the start of its batch")
        self.decode = seconds("decode", "Decoding and preprocessing of an image")
        self.compute = seconds("compute", "Encoding and settling of a batch")
        self.journal = seconds("journal", "Writing a record to a journal")
        self.camera = Histogram(
            "lessmore_camera_seconds",
            "From a camera's decoded frame to its answer",
            ("stream",),
            buckets=_SECONDS,
            registry=self.collectors,
        )
        self.cameras: dict[str, Callable[[], dict[str, Any]]] = {}
        """What the server's own cameras say of themselves, by their streams."""
        self.collectors.register(_CameraFigures(self.cameras))
        self.load = seconds("load", "Bringing a stream back into memory")
        self.batch = Histogram(
            "lessmore_batch_images", "Images of a batch", buckets=(1, 2, 4, 8, 16, 32, 64), registry=self.collectors
        )

    def text(self) -> bytes:
        """All figures in Prometheus' text format."""
        return generate_latest(self.collectors)


_FRONT = ("lessmore_errors", "lessmore_body_bytes")
"""What the process before replicas counts itself."""


class _Families:
    """Figures of several servers, each with a label that tells which."""

    def __init__(self, texts: Sequence[tuple[str, str]]) -> None:
        self._texts = texts

    def collect(self) -> Iterator[Metric]:
        """All families, once each."""
        families: dict[str, Metric] = {}
        for replica, text in self._texts:
            for family in text_string_to_metric_families(text):
                if replica == "front" and family.name not in _FRONT:
                    continue
                known = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for one in family.samples:
                    known.add_sample(one.name, {**one.labels, "replica": replica}, one.value)
        yield from families.values()


def merged_figures(told: Sequence[tuple[str, int, bytes]], front: Metrics) -> tuple[int, bytes]:
    """Status and text of what several servers told at /metrics; the first one that refused speaks for all.

    Args:
        told: Name, status and text of each.
        front: Figures of the process before them.
    """
    refused = next(((status, data) for _, status, data in told if status != 200), None)
    if refused is not None:
        return refused
    collectors = CollectorRegistry()
    texts = [("front", front.text().decode()), *((name, data.decode()) for name, _, data in told)]
    collectors.register(_Families(texts))
    return 200, generate_latest(collectors)
