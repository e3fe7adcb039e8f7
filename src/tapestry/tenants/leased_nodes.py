"""Leased nodes in a host cluster: virtual nodes, whose pods run in yet another cluster.

Pods on such nodes are in the network of that cluster, where neither the addresses of Services nor the DNS of the host
cluster lead anywhere. A tenant of such a host has no Services and no DNS.
"""

from collections.abc import Callable

from tapestry.apis import keys
from tapestry.controller import ObjectCache
from tapestry.kube.conditions import new_condition
from tapestry.kube.objects import Object, labels_of, name_of
from tapestry.tenants.api_service import API_CONDITION
from tapestry.tenants.dns_service import DNS_CONDITION

SERVICES_CONDITION = "ServicesSynced"
HOST_HAS_LEASED_NODES = "HostHasLeasedNodes"
MESSAGE = "the host cluster leases its nodes from other clusters, in whose networks Services and DNS lead nowhere"


def is_leased(node: Object) -> bool:
    return labels_of(node).get(keys.NODE_TYPE) == keys.NODE_TYPE_VIRTUAL


def has_leased_nodes(nodes: ObjectCache) -> bool:
    return any(is_leased(each) for each in nodes.store.list())


class LeasedNodes:
    """The leased nodes of a host cluster, as a cache of its nodes has them."""

    def __init__(self, nodes: ObjectCache) -> None:
        self._names: set[str] = set()
        self._listeners: list[Callable[[], None]] = []
        nodes.on_change(self._on_change)

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self._names)

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` when the first one appears, or the last one disappears."""
        self._listeners.append(listener)

    def _on_change(self, old: Object | None, new: Object | None) -> None:
        before = bool(self._names)
        if old is not None:
            self._names.discard(name_of(old))
        if new is not None and is_leased(new):
            self._names.add(name_of(new))
        if bool(self._names) != before:
            for each in self._listeners:
                each()


def services_condition(leased_nodes: LeasedNodes) -> Object:
    """Return the condition of a tenant's binding that says whether it has Services and DNS."""
    if leased_nodes:
        return new_condition(SERVICES_CONDITION, False, HOST_HAS_LEASED_NODES, MESSAGE)
    return new_condition(SERVICES_CONDITION, True, SERVICES_CONDITION)


def network_conditions(leased_nodes: LeasedNodes) -> list[Object]:
    """Return the conditions of a tenant's binding about what its pods reach.

    Pods on leased nodes reach neither the API of their plane nor its DNS, because these are behind Services.
    """
    types = (API_CONDITION, DNS_CONDITION) if leased_nodes else ()
    unreachable = [new_condition(each, False, HOST_HAS_LEASED_NODES, MESSAGE) for each in types]
    return [services_condition(leased_nodes), *unreachable]
