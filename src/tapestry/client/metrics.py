"""What the client counts."""

from functools import lru_cache

from prometheus_client import Counter

REQUESTS = Counter(
    "tapestry_client_requests_total",
    "Requests to API servers by verb, resource and code (or the error, where no answer came).",
    ["verb", "resource", "code"],
)
WATCH_RESTARTS = Counter(
    "tapestry_watch_restarts_total", "Watches that had to begin again, by resource and reason.", ["resource", "reason"]
)


@lru_cache(maxsize=4096)
def _requests(verb: str, resource: str, code: str) -> Counter:
    return REQUESTS.labels(verb, resource, code)


def count_request(verb: str, resource: str, code: str) -> None:
    _requests(verb, resource, code).inc()
