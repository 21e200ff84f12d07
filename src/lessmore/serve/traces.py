"""Spans of OpenTelemetry, where it is installed; elsewhere nothing happens.

With `pip install 'lessmore[traces]'` and `OTEL_EXPORTER_OTLP_ENDPOINT`, the server sends its spans there. A program
that sets OpenTelemetry up on its own, such as `opentelemetry-instrument`, gets them, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


class _NoSpan:
    def update_name(self, name: str) -> None: ...

    def set_attributes(self, facts: Mapping[str, Any]) -> None: ...


@contextmanager
def span(name: str, headers: Mapping[str, str] | None = None) -> Iterator[Any]:
    """A span of the current trace; what is added with `set_attributes` is seen by whoever looks at traces.

    Args:
        name: What is being done.
        headers: Of a request, which may belong to a trace of its sender; None goes on with the trace here.
    """
    try:
        from opentelemetry import propagate, trace
    except ModuleNotFoundError:
        yield _NoSpan()
        return
    context = None if headers is None else propagate.extract(dict(headers))
    kind = trace.SpanKind.INTERNAL if headers is None else trace.SpanKind.SERVER
    with trace.get_tracer("lessmore").start_as_current_span(name, context, kind, record_exception=False) as found:
        yield found


@contextmanager
def exported_traces() -> Iterator[None]:
    """Send spans to the endpoint that the environment names, if there is one and the packages are installed."""
    provider = _provider() if any(os.environ.get(name) for name in _ENDPOINTS) else None
    try:
        yield
    finally:
        if provider is not None:
            provider.shutdown()


def _provider() -> Any:
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError:
        return None
    name = os.environ.get("OTEL_SERVICE_NAME", "lessmore")
    provider = TracerProvider(resource=Resource.create({"service.name": name}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return provider
