"""Capacity of a host cluster: what policies lease to all of its tenants together."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

from tapestry.apis.clusterbindings import Binding, ClusterBindingSpec
from tapestry.apis.hostclusters import HOST_CLUSTER
from tapestry.kube.crds import decode_spec
from tapestry.kube.objects import Object, name_of
from tapestry.kube.quantity import ResourceList
from tapestry.syncer.config import SyncerConfig
from tapestry.syncer.leasing import LeaseRules, LeaseState, PolicySide, lease_for
from tapestry.syncer.policies import build_rules, parsed_policies
from tapestry.syncer.total_limits import combined_limits

RESOURCES = ("cpu", "memory")


class HostOffer(NamedTuple):
    open_nodes: int
    """Number of nodes whose lease is open now."""
    capacity: ResourceList
    """Amounts that all nodes with a policy lease in its windows. What pods of others hold is not subtracted."""


def host_rules(host: Object, operator: Iterable[Object], owner: Iterable[Object]) -> LeaseRules:
    """Return the rules for the nodes of a host cluster that hold for all of its tenants."""
    name, zone = name_of(host), SyncerConfig().time_zone
    selector = decode_spec(HOST_CLUSTER, host).node_selector
    spec = ClusterBindingSpec(cluster_id=name, host_cluster=name, node_selector=selector)
    binding = Binding(name, "", "", spec, manager_namespace="")
    sides = (
        parsed_policies(operator, PolicySide.OPERATOR, binding, zone),
        parsed_policies(owner, PolicySide.OWNER, binding, zone),
    )
    return build_rules(binding, *sides, mount=None, warning=timedelta(0))


def host_offer(nodes: Iterable[Object], rules: LeaseRules, now: datetime) -> HostOffer:
    leases = [lease_for(each, (), (), rules, now) for each in nodes]
    leased = [each for each in leases if each.state is not LeaseState.WITHDRAWN]
    total, limits = ResourceList.total(each.amounts for each in leased), combined_limits(rules, now)
    amounts = {name: min(total[name], limits.get(name, total[name])) for name in RESOURCES}
    return HostOffer(sum(each.state is LeaseState.OPEN for each in leased), ResourceList(amounts))
