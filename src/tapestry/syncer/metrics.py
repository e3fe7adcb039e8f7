"""What a syncer counts."""

from prometheus_client import Counter, Gauge

from tapestry.kube.objects import Object
from tapestry.kube.quantity import Amounts
from tapestry.process.metrics import NAMESPACE

NODES = Gauge("virtual_nodes", "Virtual nodes of a binding.", ["binding"], namespace=NAMESPACE)
PODS = Gauge("virtual_pods", "Pods bound to the virtual nodes of a binding.", ["binding"], namespace=NAMESPACE)
LEASED = Gauge("leased", "What a binding leases in all, in base units.", ["binding", "resource"], namespace=NAMESPACE)
USED = Gauge("used", "What pods request of that, in base units.", ["binding", "resource"], namespace=NAMESPACE)
LAST_SEEN = Gauge(
    "physical_cluster_last_seen_timestamp_seconds",
    "When the physical API server was last known to answer.",
    ["binding"],
    namespace=NAMESPACE,
)
UNREACHABLE = Gauge(
    "physical_cluster_unreachable", "1 while the physical API server does not answer.", ["binding"], namespace=NAMESPACE
)
EVENTS_UNTOLD = Counter(
    "twin_events_untold", "Events about twins that were too many to be told above.", ["binding"], namespace=NAMESPACE
)

FINDINGS = Gauge(
    "findings",
    "What the last two checks of both clusters found not to be as it should.",
    ["binding", "invariant"],
    namespace=NAMESPACE,
)
MENDED = Counter("mended", "What a check removed or set right itself.", ["binding", "invariant"], namespace=NAMESPACE)


def show(binding: str, status: Object, seen: float) -> None:
    """Have the gauges say what the binding's status says."""
    NODES.labels(binding).set(status["nodes"])
    PODS.labels(binding).set(status["pods"])
    LAST_SEEN.labels(binding).set(seen)
    for gauge, field in ((LEASED, "leased"), (USED, "used")):
        present = {resource: text for resource, text in status[field].items() if text is not None}
        for resource, amount in Amounts.parse(present).items():
            gauge.labels(binding, resource).set(amount.nano / 1e9)
