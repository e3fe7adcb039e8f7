"""Metrics of host clusters and of the syncers of tenants, with few series for each.

They are computed when they are read, in a thread. The series of a host cluster end with its connection, and those of a
tenant with its syncer.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tapestry.apis.clusterbindings import Binding, ClusterBindingSpec
from tapestry.apis.hostclusters import HOST_CLUSTER
from tapestry.controller import ObjectCache
from tapestry.kube.crds import decode_spec
from tapestry.kube.objects import Object, is_deleting, value_at
from tapestry.kube.quantity import NANOS, ResourceList
from tapestry.syncer.admission import node_closure
from tapestry.syncer.config import SyncerConfig
from tapestry.syncer.leasing import LeaseRules, PolicySide, lease_for
from tapestry.syncer.policies import build_rules, parsed_policies
from tapestry.syncer.views import Twin
from tapestry.tenants.host_clusters import SILENCE_SECONDS, Host, HostClusters
from tapestry.tenants.host_connection import HostConnection
from tapestry.tenants.tenant_binding import TenantAddresses, tenant_binding
from tapestry.tenants.tenant_set import TenantSet

DEFAULTS = SyncerConfig()


@dataclass(frozen=True)
class TenantCollector(Collector):
    """Collect the state of host clusters and the lag of syncers."""

    clusters: HostClusters
    tenants: TenantSet
    hosts: ObjectCache
    policies: ObjectCache
    now: Callable[[], datetime]

    def collect(self) -> Iterator[Metric]:
        reachable = GaugeMetricFamily(
            "tapestry_host_reachable", "1 while a host cluster answers, else 0.", labels=["host"]
        )
        leased, requested = (
            GaugeMetricFamily(f"tapestry_host_{name}", text, labels=["host", "resource"])
            for name, text in (
                ("leased", "Amount of the nodes of a host cluster whose leases are open, in base units."),
                ("requested", "Amount that pods of tenants request in a host cluster, in base units."),
            )
        )
        for name, host in self.clusters.connected().items():
            reachable.add_metric([name], float(is_answering(host)))
            nodes = host.connection.nodes.source.store.list()
            offered, used = self._leased(name, host.connection, nodes), requests_of_twins(host.connection)
            for resource in {each for node in nodes for each in value_at(node, "status", "allocatable", default={})}:
                leased.add_metric([name, resource], offered[resource].nano / NANOS)
                requested.add_metric([name, resource], used[resource].nano / NANOS)
        lag = GaugeMetricFamily(
            "tapestry_tenant_sync_lag_seconds",
            "Age of the oldest change in a plane that is not in its host cluster.",
            labels=["plane", "host"],
        )
        for plane, host_name, seconds in self.tenants.sync_lags():
            lag.add_metric([plane, host_name], seconds)
        yield from (reachable, leased, requested, lag)

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def _leased(self, name: str, connection: HostConnection, nodes: Sequence[Object]) -> ResourceList:
        obj = self.hosts.store.get(name)
        try:
            return leased_amounts(nodes, self._rules(name, obj, connection), self.now()) if obj else ResourceList()
        except ValueError:  # an invalid HostCluster, or an amount of a node: it must not hide all other metrics
            return ResourceList()

    def _rules(self, name: str, obj: Object, connection: HostConnection) -> LeaseRules:
        """Return the rules for the nodes of a host cluster, as for a tenant that selects all of them."""
        spec = ClusterBindingSpec(cluster_id=name, host_cluster=name)
        binding = tenant_binding(Binding(name, "", "", spec), decode_spec(HOST_CLUSTER, obj), "", TenantAddresses())
        operator, owner = self.policies.store.list(), connection.owner_policies.source.store.list()
        return build_rules(
            binding,
            parsed_policies(operator, PolicySide.OPERATOR, binding, DEFAULTS.time_zone),
            parsed_policies(owner, PolicySide.OWNER, binding, DEFAULTS.time_zone),
            next(iter(connection.shared_namespace.source.store.list()), None),
            timedelta(seconds=DEFAULTS.warning_seconds),
        )


def is_answering(host: Host) -> bool:
    connection = host.connection
    return not connection.is_replaced and connection.transport.seconds_since_response() < SILENCE_SECONDS


def leased_amounts(nodes: Iterable[Object], rules: LeaseRules, now: datetime) -> ResourceList:
    """Return the sum of what the open nodes of a host cluster lease."""
    leases = ((node, lease_for(node, (), (), rules, now)) for node in nodes if not is_deleting(node))
    return ResourceList.total(lease.amounts for node, lease in leases if node_closure(node, lease, now) is None)


def requests_of_twins(connection: HostConnection) -> ResourceList:
    """Return what the pods of all tenants request that have not ended."""
    twins = (each for each in connection.twins.source.store.list() if isinstance(each, Twin))
    return ResourceList.total(each.requests for each in twins if each.requests is not None)
