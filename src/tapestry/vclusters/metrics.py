"""Metrics of the lifecycle service: operations, their steps, virtual clusters, and the use of quotas."""

from collections import Counter as Counts
from collections import defaultdict
from collections.abc import Iterator

from prometheus_client import Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tapestry.apis.operations import SNAPSHOTS
from tapestry.apis.planes import PLANES, plane_id
from tapestry.apis.projects import QUOTAS
from tapestry.apis.vclusters import VCLUSTERS
from tapestry.kube.objects import Object, value_at
from tapestry.kube.quantity import NANOS, parse_quantity
from tapestry.process.counters import Counter
from tapestry.vclusters.engines.native import vcluster_keys
from tapestry.vclusters.quota import Charge, charges_of, total_usage
from tapestry.vclusters.stored_objects import StoredObjects

OPERATION_SECONDS = Histogram(
    "tapestry_vclusters_operation_seconds",
    "Time from the start of an operation to its end.",
    ["verb", "result"],
    buckets=(0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800),
)
STEP_FAILURES = Counter(
    "tapestry_vclusters_step_failures_total", "Attempts of steps of operations that failed.", "verb", "step"
)


class ServiceCollector(Collector):
    """Collect the virtual clusters by phase and the use of quotas, from the objects of the management API."""

    def __init__(self, objects: StoredObjects) -> None:
        self._objects = objects

    def collect(self) -> Iterator[Metric]:
        vclusters = self._objects.all(VCLUSTERS)
        phases = GaugeMetricFamily(
            "tapestry_vclusters", "Number of virtual clusters by phase and host cluster.", labels=["phase", "host"]
        )
        for place, count in Counts(map(phase_and_host, vclusters)).items():
            phases.add_metric(place, count)
        labels = ["project", "resource"]
        used = GaugeMetricFamily("tapestry_vclusters_quota_used", "Use of a limited resource.", labels=labels)
        limit = GaugeMetricFamily("tapestry_vclusters_quota_limit", "Limit of a project.", labels=labels)
        charges: defaultdict[str, list[Charge]] = defaultdict(list)
        for charge in charges_of(vclusters, self._objects.all(SNAPSHOTS)):
            charges[charge.project].append(charge)
        for quota in self._objects.all(QUOTAS):
            project = quota["spec"]["project"]
            usage = total_usage(charges[project], project)
            for name, amount in value_at(quota, "spec", "limits", default={}).items():
                used.add_metric([project, name], usage[name].nano / NANOS)
                limit.add_metric([project, name], parse_quantity(str(amount), name).nano / NANOS)
        yield from (phases, used, limit, self._planes())

    def _planes(self) -> Metric:
        """Return constants by which the metrics of planes and tenants are joined with the names of virtual clusters."""
        names = GaugeMetricFamily(
            "tapestry_vclusters_plane_info",
            "Constant 1, with the plane of each virtual cluster.",
            labels=["namespace", "name", "plane"],
        )
        for plane in self._objects.all(PLANES):
            for key in vcluster_keys(plane):
                names.add_metric([*key.split("/"), plane_id(plane)], 1)
        return names

    def describe(self) -> Iterator[Metric]:
        return iter(())


def phase_and_host(vcluster: Object) -> tuple[str, str]:
    status = vcluster.get("status") or {}
    return status.get("phase", ""), status.get("hostCluster") or ""
