"""Prometheus metrics of a syncer."""

from collections.abc import Callable

from prometheus_client import Counter, Gauge

from tapestry.kube.objects import Object
from tapestry.kube.quantity import ResourceList
from tapestry.process.metrics import NAMESPACE

MAPPED, REFUSED, FAILED = "mapped", "refused", "failed"
"""Outcomes of pods: has a twin, may not have one, failed by the syncer's decision."""

NODES = Gauge("virtual_nodes", "Virtual nodes of a binding.", ["binding"], namespace=NAMESPACE)
PODS = Gauge("virtual_pods", "Pods bound to the virtual nodes of a binding.", ["binding"], namespace=NAMESPACE)
LEASED = Gauge(
    "leased",
    "Amount that a binding leases now, in base units; 0 while it is closed.",
    ["binding", "resource"],
    namespace=NAMESPACE,
)
USED = Gauge("used", "Amount that pods request of it, in base units.", ["binding", "resource"], namespace=NAMESPACE)
LAST_SEEN = Gauge(
    "physical_cluster_last_seen_timestamp_seconds",
    "Unix time of the physical API server's last response.",
    ["binding"],
    namespace=NAMESPACE,
)
UNREACHABLE = Gauge(
    "physical_cluster_unreachable", "1 while the physical API server is unreachable.", ["binding"], namespace=NAMESPACE
)
POD_OUTCOMES = Counter(
    "pods",
    "Pods that were mapped, rejected or failed, by reason; each pod counts once per outcome.",
    ["binding", "outcome", "reason"],
    namespace=NAMESPACE,
)
EVENTS_DROPPED = Counter(
    "twin_events_untold", "Events about twins that were dropped by the rate limit.", ["binding"], namespace=NAMESPACE
)

FINDINGS = Gauge(
    "findings",
    "Inconsistencies found by both of the last two consistency checks.",
    ["binding", "invariant"],
    namespace=NAMESPACE,
)
REPAIRED = Counter("mended", "Objects that a check deleted or repaired.", ["binding", "invariant"], namespace=NAMESPACE)


def register_binding(binding: str, last_seen: Callable[[], float]) -> None:
    """Create the series that have a value from the start; `last_seen` is called at each scrape."""
    UNREACHABLE.labels(binding).set(0)
    LAST_SEEN.labels(binding).set_function(last_seen)
    POD_OUTCOMES.labels(binding, MAPPED, "")


def unregister_binding(binding: str) -> None:
    """Remove the series that only the process serving the binding can report."""
    UNREACHABLE.remove(binding)
    LAST_SEEN.remove(binding)


def update_binding(binding: str, status: Object) -> None:
    """Set the gauges from the binding's status; resources that it no longer names become 0."""
    NODES.labels(binding).set(status["nodes"])
    PODS.labels(binding).set(status["pods"])
    for gauge, field in ((LEASED, "leased"), (USED, "used")):
        amounts = ResourceList.parse({resource: text or "0" for resource, text in status[field].items()})
        for resource, amount in amounts.items():
            gauge.labels(binding, resource).set(amount.nano / 1e9)
