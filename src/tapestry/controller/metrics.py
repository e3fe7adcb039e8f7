"""What the framework counts."""

from functools import lru_cache

from prometheus_client import Counter, Gauge, Histogram

from tapestry.process.metrics import LATENCY_BUCKETS

RECONCILES = Histogram(
    "tapestry_reconcile_seconds",
    "Reconcile passes by controller and outcome (ok, requeued, terminal, error).",
    ["controller", "outcome"],
    buckets=LATENCY_BUCKETS,
)
SYNC = Histogram(
    "tapestry_sync_seconds",
    "From a change, or the time that a pass was asked for, to the end of the pass that saw to it.",
    ["controller"],
    buckets=LATENCY_BUCKETS,
)
ERRORS = Counter(
    "tapestry_reconcile_errors_total", "Passes that raised, by controller and reason.", ["controller", "reason"]
)
RETRIES = Counter(
    "tapestry_reconcile_retries_total",
    "Passes put off after an error, by controller and reason.",
    ["controller", "reason"],
)
QUEUE_DEPTH = Gauge("tapestry_queue_depth", "Keys that wait for a worker.", ["controller"])
QUEUE_AGE = Gauge("tapestry_queue_age_seconds", "Seconds that the key in front has waited.", ["controller"])
CACHED = Gauge("tapestry_cached_objects", "Objects held in an informer's store.", ["resource"])
IS_LEADER = Gauge("tapestry_is_leader", "1 while this process leads the election.", ["election"])
ELECTIONS = Counter("tapestry_elections_total", "Elections won, lost and failed, by outcome.", ["election", "outcome"])
EVENTS_DROPPED = Counter("tapestry_events_dropped_total", "Events not recorded, by why.", ["why"])


@lru_cache(maxsize=1024)
def passes(controller: str, outcome: str) -> Histogram:
    """The series of `RECONCILES` for a controller and an outcome; looking one up by labels is slow."""
    return RECONCILES.labels(controller, outcome)


@lru_cache(maxsize=1024)
def syncs(controller: str) -> Histogram:
    """The series of `SYNC` for a controller."""
    return SYNC.labels(controller)
