"""Prometheus metrics of the API client."""

from collections.abc import Callable
from contextvars import ContextVar

from tapestry.process.counters import Counter

RESOURCE_LABEL: ContextVar[Callable[[str], str]] = ContextVar("RESOURCE_LABEL", default=str)
"""Return the label for the name of a resource. A part of a process may hide the names of custom kinds."""

REQUESTS = Counter(
    "tapestry_client_requests_total",
    "Requests to API servers by verb, resource and status code (or error, if there was no response).",
    "verb",
    "resource",
    "code",
)
WATCH_RESTARTS = Counter(
    "tapestry_watch_restarts_total", "Restarts of watches, by resource and reason.", "resource", "reason"
)
SENT = Counter(
    "tapestry_client_sent_bytes_total",
    "Bytes of request bodies sent to API servers, without headers and TLS.",
)
RECEIVED = Counter(
    "tapestry_client_received_bytes_total",
    "Bytes of response bodies from API servers, including watches and logs, without headers and TLS.",
)
