"""Spans that reach a collector: an HTTP server of this test that reads OpenTelemetry's own messages."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.serve.server import pictures, running

trace_service = pytest.importorskip(
    "opentelemetry.proto.collector.trace.v1.trace_service_pb2", reason="needs the extra traces"
)
TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture
def collector() -> Iterator[tuple[str, list[Any]]]:
    """Its address, and the spans that it got."""
    spans: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            told = trace_service.ExportTraceServiceRequest.FromString(body)
            spans.extend(one for r in told.resource_spans for s in r.scope_spans for one in s.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", spans
    server.shutdown()


def test_spans_belong_to_the_trace_of_the_client(collector: tuple[str, list[Any]], tmp_path: Path) -> None:
    address, spans = collector
    with running(tmp_path / "store", OTEL_EXPORTER_OTLP_ENDPOINT=address, NO_PROXY="127.0.0.1") as server:
        server.create("door")
        headers = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01", "X-Request-Id": "r-1"}
        server.client.post("/v1/streams/door/images", content=pictures()[0], headers=headers).raise_for_status()
        assert server.stop() == 0
    ours = {one.name: one for one in spans if one.trace_id.hex() == TRACE}
    assert {"POST /v1/streams/{stream}/images", "classify"} <= set(ours), "FastAPI may add some of its own"
    request, inner = ours["POST /v1/streams/{stream}/images"], ours["classify"]
    parents = {one.span_id: one.parent_span_id for one in ours.values()}
    outer = inner.span_id
    while outer in parents and outer != request.span_id:
        outer = parents[outer]
    assert request.parent_span_id.hex() == "b7ad6b7169203331" and outer == request.span_id
    facts = {one.key: one.value.string_value or one.value.int_value for one in request.attributes}
    assert facts["lessmore.request"] == "r-1" and facts["lessmore.stream"] == "door"
    assert facts["http.response.status_code"] == 200
    assert {one.key: one.value.int_value for one in inner.attributes} == {"lessmore.images": 1, "lessmore.failed": 0}
