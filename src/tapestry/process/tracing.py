"""Tracing with OpenTelemetry: off unless configured, and next to free while it is off.

    with tracing.span("create twin", parent=annotations.get(TRACEPARENT), namespace="default", name="web-0"):
        ...

A span of one process goes on in another through its `traceparent()`, the W3C text, in a header or an annotation: that
makes one trace of what happens to a pod in both clusters.  The packages come with `pip install 'kube-tapestry[otel]'`.
"""

# ruff: noqa: PLC0415  the packages are optional and slow to import: only a process that traces pays for them

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from tapestry.process.logs import loggable

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

HEADER = "traceparent"
TRACES_PATH = "/v1/traces"

_NO_SPAN: AbstractContextManager[None] = nullcontext()


class TracingUnavailable(RuntimeError):
    """Tracing was asked for and its packages are not installed."""

    def __init__(self, missing: str | None) -> None:
        super().__init__(
            f"tracing needs {missing or 'opentelemetry'}; install it with: pip install 'kube-tapestry[otel]'"
        )


def span(title: str, /, *, parent: str | None = None, **attributes: Any) -> AbstractContextManager[Any]:
    """A span around a block: below `parent`, a traceparent of another process, or else below the current one.

    The block gets the OpenTelemetry span, or None while tracing is off.  Attributes that are None are left out; a
    parent that does not parse counts as none, for anyone may have written it.
    """
    tracing = _Active.tracing
    return _NO_SPAN if tracing is None else tracing.span(title, parent, attributes)


def traceparent() -> str | None:
    """The current span, for another process to go on from; None when there is none or tracing is off."""
    tracing = _Active.tracing
    return None if tracing is None else tracing.traceparent()


def configure(endpoint: str, sample_ratio: float = 1.0, service: str = "tapestry") -> None:
    """Sends spans to the OTLP collector at `endpoint`, as in `http://collector:4318`, until `stop`.

    `sample_ratio` is the part of new traces that is kept; of a trace that began elsewhere, its beginner decided.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise TracingUnavailable(error.name) from error
    url = endpoint.rstrip("/").removesuffix(TRACES_PATH) + TRACES_PATH
    start(OTLPSpanExporter(url), sample_ratio, service)


def start(exporter: "SpanExporter", sample_ratio: float = 1.0, service: str = "tapestry") -> None:
    """Hands the spans of this process to `exporter`, in batches from a thread; ends what was started before."""
    stop()
    _Active.tracing = Tracing(exporter, sample_ratio, service)


def stop() -> None:
    """Switches tracing off and exports what is left; that waits for the collector, so give it a thread."""
    tracing, _Active.tracing = _Active.tracing, None
    if tracing is not None:
        tracing.shutdown()


class Tracing:
    """Tracing that is on; OpenTelemetry's own globals are left to whoever else uses them."""

    def __init__(self, exporter: "SpanExporter", sample_ratio: float, service: str) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(sample_ratio)), resource=Resource.create({"service.name": service})
        )
        provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = provider.get_tracer("tapestry")
        self._propagator = TraceContextTextMapPropagator()
        self.shutdown = provider.shutdown

    @contextmanager
    def span(self, title: str, parent: str | None, attributes: Mapping[str, Any]) -> Iterator[Any]:
        from opentelemetry.context import get_current
        from opentelemetry.trace import StatusCode

        with self._tracer.start_as_current_span(
            title,
            self._propagator.extract({HEADER: parent}, get_current()) if parent else None,
            attributes={key: attribute_value(value) for key, value in attributes.items() if value is not None},
            record_exception=False,  # the SDK would export the message and the traceback as they are, secrets and all
            set_status_on_exception=False,
        ) as current:
            try:
                yield current
            except Exception as error:
                current.set_status(StatusCode.ERROR, loggable(error))
                raise

    def traceparent(self) -> str | None:
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier)
        return carrier.get(HEADER)


class _Active:
    """What is switched on in this process."""

    tracing: Tracing | None = None


def attribute_value(value: Any) -> str | int | float:
    """`value` as a span may carry it: redacted like a value in a log line."""
    shown = loggable(value)
    return shown if isinstance(shown, str | int | float) else str(shown)
