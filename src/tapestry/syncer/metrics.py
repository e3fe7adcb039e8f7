"""What a syncer counts."""

from collections.abc import Callable

from prometheus_client import Counter, Gauge

from tapestry.kube.objects import Object
from tapestry.kube.quantity import ResourceList
from tapestry.process.metrics import NAMESPACE

MAPPED, REFUSED, FAILED = "mapped", "refused", "failed"
"""Outcomes of pods: one has a twin, one may not have one, one has failed by the syncer's word."""

NODES = Gauge("virtual_nodes", "Virtual nodes of a binding.", ["binding"], namespace=NAMESPACE)
PODS = Gauge("virtual_pods", "Pods bound to the virtual nodes of a binding.", ["binding"], namespace=NAMESPACE)
LEASED = Gauge(
    "leased",
    "What a binding leases now, in base units; 0 while it is closed.",
    ["binding", "resource"],
    namespace=NAMESPACE,
)
USED = Gauge("used", "What pods request of that, in base units.", ["binding", "resource"], namespace=NAMESPACE)
LAST_SEEN = Gauge(
    "physical_cluster_last_seen_timestamp_seconds",
    "When the physical API server last answered.",
    ["binding"],
    namespace=NAMESPACE,
)
UNREACHABLE = Gauge(
    "physical_cluster_unreachable", "1 while the physical API server does not answer.", ["binding"], namespace=NAMESPACE
)
POD_OUTCOMES = Counter(
    "pods",
    "Pods that were mapped, refused or failed, by reason; each counts once for an outcome.",
    ["binding", "outcome", "reason"],
    namespace=NAMESPACE,
)
EVENTS_DROPPED = Counter(
    "twin_events_untold", "Events about twins that were too many to be told above.", ["binding"], namespace=NAMESPACE
)

FINDINGS = Gauge(
    "findings",
    "What the last two checks of both clusters found not to be as it should.",
    ["binding", "invariant"],
    namespace=NAMESPACE,
)
REPAIRED = Counter("mended", "What a check removed or set right itself.", ["binding", "invariant"], namespace=NAMESPACE)


def register_binding(binding: str, last_seen: Callable[[], float]) -> None:
    """Give a binding the series that have a value from the start; `last_seen` is asked whenever they are read."""
    UNREACHABLE.labels(binding).set(0)
    LAST_SEEN.labels(binding).set_function(last_seen)
    POD_OUTCOMES.labels(binding, MAPPED, "")


def unregister_binding(binding: str) -> None:
    """Show no longer what only the process knows that works for the binding."""
    UNREACHABLE.remove(binding)
    LAST_SEEN.remove(binding)


def update_binding(binding: str, status: Object) -> None:
    """Have the gauges say what the binding's status says; what it no longer names is 0."""
    NODES.labels(binding).set(status["nodes"])
    PODS.labels(binding).set(status["pods"])
    for gauge, field in ((LEASED, "leased"), (USED, "used")):
        amounts = ResourceList.parse({resource: text or "0" for resource, text in status[field].items()})
        for resource, amount in amounts.items():
            gauge.labels(binding, resource).set(amount.nano / 1e9)
