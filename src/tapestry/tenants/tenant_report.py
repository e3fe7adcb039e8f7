"""Report of a tenant for the status of its binding: its nodes, and what it uses."""

from collections.abc import Iterable

from tapestry.kube.objects import Object, value_at
from tapestry.kube.quantity import ResourceList
from tapestry.kube.resources import NAMESPACES, PERSISTENT_VOLUME_CLAIMS, SERVICES, Resource
from tapestry.planes.open_plane import OpenPlane
from tapestry.syncer.bindings import leasing_condition
from tapestry.syncer.components import Syncer
from tapestry.syncer.drains import drained_condition
from tapestry.syncer.lease_cache import LeaseCache
from tapestry.syncer.views import Twin

STORAGE = "storage"


def tenant_report(
    syncer: Syncer, leases: LeaseCache, plane: OpenPlane, claims: Iterable[Object], conditions: Iterable[Object]
) -> Object:
    """Return status fields of the binding.

    `claims` are the tenant's claims in the host cluster, and `conditions` those of other controllers of its syncer.
    """
    caches, binding, obj = syncer.caches, syncer.current_binding.get(), syncer.current_binding.object()
    if binding is None or obj is None:
        return {}
    twins = [each for each in caches.physical_pods.store.list() if isinstance(each, Twin)]
    requests = [each.requests for each in twins if each.requests is not None]
    used, nodes = ResourceList.total(requests).texts(), caches.virtual_nodes.store.list()
    condition = leasing_condition(obj, nodes, leases.lease_rules(binding), syncer.partition.since)
    drained = drained_condition(obj, binding, caches, is_reachable=syncer.partition.since is None)
    return {
        "nodes": len(nodes),
        "pods": len(requests),
        "used": used,
        "usage": {
            "pods": str(len(requests)),
            **{f"requests.{name}": amount for name, amount in used.items() if name != "pods"},
            "requests.storage": storage_requests(claims),
            "persistentvolumeclaims": str(number_of(plane, PERSISTENT_VOLUME_CLAIMS)),
            "namespaces": str(number_of(plane, NAMESPACES)),
            "services": str(number_of(plane, SERVICES)),
        },
        "conditions": [condition, *conditions, *([drained] if drained is not None else [])],
    }


def number_of(plane: OpenPlane, resource: Resource) -> int:
    """Return the number of objects of a kind in a plane."""
    return len(plane.opened.store.list_objects(resource.name))


def storage_requests(claims: Iterable[Object]) -> str:
    amounts = (value_at(each, "spec", "resources", "requests", STORAGE) for each in claims)
    total = ResourceList.total(ResourceList.parse({STORAGE: each}) for each in amounts if each)
    return total.texts().get(STORAGE, "0")
