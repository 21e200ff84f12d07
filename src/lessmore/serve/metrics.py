"""What Prometheus reads. docs/operations.md says what each of these means and when to worry."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)


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
        self.load = seconds("load", "Bringing a stream back into memory")
        self.batch = Histogram(
            "lessmore_batch_images", "Images of a batch", buckets=(1, 2, 4, 8, 16, 32, 64), registry=self.collectors
        )

    def text(self) -> bytes:
        """All figures in Prometheus' text format."""
        return generate_latest(self.collectors)
