"""What the client counts."""

from tapestry.process.counters import Counter

REQUESTS = Counter(
    "tapestry_client_requests_total",
    "Requests to API servers by verb, resource and code (or the error, where no answer came).",
    "verb",
    "resource",
    "code",
)
WATCH_RESTARTS = Counter(
    "tapestry_watch_restarts_total", "Watches that had to begin again, by resource and reason.", "resource", "reason"
)
SENT = Counter(
    "tapestry_client_sent_bytes_total",
    "Bytes of the bodies of requests to API servers; headers and TLS come on top.",
)
RECEIVED = Counter(
    "tapestry_client_received_bytes_total",
    "Bytes of the bodies of answers of API servers, watches and logs included; headers and TLS come on top.",
)
