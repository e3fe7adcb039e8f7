"""Tracing with OpenTelemetry.  Off unless configured, and almost free while off.

    with tracing.span("create twin", namespace="default", name="web-0"):
        ...

Install the packages with `pip install 'kube-tapestry[otel]'`.
"""

# ruff: noqa: PLC0415  the packages are optional and slow to import

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from tapestry.process.logs import loggable

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

TRACES_PATH = "/v1/traces"

_NO_SPAN: AbstractContextManager[None] = nullcontext()


class TracingUnavailable(RuntimeError):
    """Tracing is configured, but its packages are not installed."""

    def __init__(self, missing: str | None) -> None:
        super().__init__(
            f"tracing needs {missing or 'opentelemetry'}; install it with: pip install 'kube-tapestry[otel]'"
        )


def span(title: str, /, **attributes: Any) -> AbstractContextManager[Any]:
    """Return a span around a block, as a child of the current span.

    The block gets the OpenTelemetry span, or None while tracing is off.  Attributes that are None are omitted.
    """
    tracing = _Active.tracing
    return _NO_SPAN if tracing is None else tracing.span(title, attributes)


def configure(endpoint: str, sample_ratio: float = 1.0, service: str = "tapestry") -> None:
    """Send spans to the OTLP collector at `endpoint`, as in `http://collector:4318`, until `stop`.

    `sample_ratio` is the fraction of traces to keep.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise TracingUnavailable(error.name) from error
    url = endpoint.rstrip("/").removesuffix(TRACES_PATH) + TRACES_PATH
    start(OTLPSpanExporter(url), sample_ratio, service)


def start(exporter: "SpanExporter", sample_ratio: float = 1.0, service: str = "tapestry") -> None:
    """Send the spans of this process to `exporter`, in batches from a thread.  Stop any earlier exporter."""
    stop()
    _Active.tracing = Tracing(exporter, sample_ratio, service)


def stop() -> None:
    """Switch tracing off and export remaining spans.  This blocks on the collector, so call it in a thread."""
    tracing, _Active.tracing = _Active.tracing, None
    if tracing is not None:
        tracing.shutdown()


class Tracing:
    """Active tracing.  It does not use OpenTelemetry's globals, which other packages may use."""

    def __init__(self, exporter: "SpanExporter", sample_ratio: float, service: str) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

        provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(sample_ratio)), resource=Resource.create({"service.name": service})
        )
        provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = provider.get_tracer("tapestry")
        self.shutdown = provider.shutdown

    @contextmanager
    def span(self, title: str, attributes: Mapping[str, Any]) -> Iterator[Any]:
        from opentelemetry.trace import StatusCode

        with self._tracer.start_as_current_span(
            title,
            attributes={key: attribute_value(value) for key, value in attributes.items() if value is not None},
            record_exception=False,  # the SDK would export message and traceback without redaction
            set_status_on_exception=False,
        ) as current:
            try:
                yield current
            except Exception as error:
                current.set_status(StatusCode.ERROR, loggable(error))
                raise


class _Active:
    """The active tracing of this process."""

    tracing: Tracing | None = None


def attribute_value(value: Any) -> str | int | float:
    """Return `value` as a span attribute, redacted like a value in a log line."""
    safe = loggable(value)
    return safe if isinstance(safe, str | int | float) else str(safe)
