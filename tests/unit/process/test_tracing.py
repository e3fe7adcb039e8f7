import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from tapestry.process import tracing


@pytest.fixture(autouse=True)
def _off_again() -> Iterator[None]:
    yield
    tracing.stop()


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    found = InMemorySpanExporter()
    tracing.start(found, 1.0, "syncer")
    return found


def exported(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    tracing.stop()
    return {span.name: span for span in exporter.get_finished_spans()}


def test_tracing_is_off_by_default() -> None:
    with tracing.span("work", name="web-0") as current:
        assert current is None


def test_disabled_tracing_does_not_import_opentelemetry() -> None:
    program = (
        "import sys; from tapestry.process import tracing\n"
        "with tracing.span('work'): pass\n"
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_span_has_name_attributes_and_service(exporter: InMemorySpanExporter) -> None:
    pod = {"kind": "Pod", "metadata": {"namespace": "default", "name": "web-0"}}
    with tracing.span("create twin", name="web-0", tries=2, node=None, pod=pod, zones=["a", "b"]):
        pass
    found = exported(exporter)["create twin"]
    assert found.attributes == {"name": "web-0", "tries": 2, "pod": "Pod default/web-0", "zones": "['a', 'b']"}
    assert found.resource.attributes["service.name"] == "syncer"


def test_spans_nest_like_blocks(exporter: InMemorySpanExporter) -> None:
    with tracing.span("outer"), tracing.span("inner"):
        pass
    found = exported(exporter)
    assert found["inner"].parent is not None
    assert found["inner"].parent.span_id == found["outer"].context.span_id
    assert found["outer"].parent is None


def test_unsampled_trace_stays_unsampled() -> None:
    exporter = InMemorySpanExporter()
    tracing.start(exporter, 0.0)
    with tracing.span("outer"), tracing.span("inner"):
        pass
    assert exported(exporter) == {}


def test_rule_7_error_marks_span_without_secrets(exporter: InMemorySpanExporter) -> None:
    def fail() -> None:
        with tracing.span("work", note="password=hunter2"):
            raise ValueError("token=abcdef was refused")

    with pytest.raises(ValueError, match="token=abcdef"):
        fail()
    found = exported(exporter)["work"]
    assert found.status.status_code is StatusCode.ERROR
    assert found.status.description == "ValueError: token=[redacted] was refused"
    assert found.attributes == {"note": "password=[redacted]"}
    assert "abcdef" not in found.to_json()


def test_spans_are_sent_to_a_collector() -> None:
    bodies: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        tracing.configure(f"http://127.0.0.1:{server.server_port}/", 1.0, "manager")
        with tracing.span("work"):
            pass
        tracing.stop()
        server.shutdown()
        thread.join()
    ((path, body),) = bodies
    (resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
    assert path == "/v1/traces"
    assert [span.name for scope in resource.scope_spans for span in scope.spans] == ["work"]
    assert {a.key: a.value.string_value for a in resource.resource.attributes}["service.name"] == "manager"


def test_missing_packages_error_explains_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(
        tracing.TracingUnavailable, match=r"tracing needs opentelemetry\S*; install .*'kube-tapestry\[otel\]'"
    ):
        tracing.configure("http://127.0.0.1:4318")
